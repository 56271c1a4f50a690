"""Hash again what a mirror site serves."""
