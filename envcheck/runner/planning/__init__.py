"""Which checks run, in which order, for how long."""
