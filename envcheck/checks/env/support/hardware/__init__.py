"""Speeds, links and samples of GPUs while they work."""
