"""Read, check, format and show matrix.yaml."""
