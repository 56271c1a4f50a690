"""The speed of GPUs and their links, and what is sampled meanwhile."""
