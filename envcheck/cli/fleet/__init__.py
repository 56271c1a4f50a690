"""The commands for many nodes."""
