"""Plan images for a fleet: the fewest published cells that run on all its nodes."""
