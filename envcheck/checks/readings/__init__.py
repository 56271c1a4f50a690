"""What checks of a node read off a snapshot."""
