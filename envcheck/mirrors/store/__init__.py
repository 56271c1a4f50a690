"""The content-addressed store and the versions of the trees that it serves."""
