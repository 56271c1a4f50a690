"""Native libraries and the wheels that hold them, read without loading them. What is read is not trusted."""
