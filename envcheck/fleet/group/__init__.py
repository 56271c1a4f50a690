"""A run whose ranks are on several nodes: who takes part, how the nodes meet, and what each of their reports says."""
