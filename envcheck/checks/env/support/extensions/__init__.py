"""What installed packages with native code need, and what their environment has."""
