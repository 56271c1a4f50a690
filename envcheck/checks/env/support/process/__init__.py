"""The process, container and files that a check runs in."""
