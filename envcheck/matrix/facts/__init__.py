"""The facts of matrix.yaml as typed data, and lookups in them."""
