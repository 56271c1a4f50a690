"""Operators that only the full level looks at: losses, images, matrices, functions and selections used less often."""
