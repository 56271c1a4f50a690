"""Read, check and write matrix.yaml."""
