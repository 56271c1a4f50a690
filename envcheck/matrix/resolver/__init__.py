"""Decide which torch, CUDA variant and Python can run on a machine."""
