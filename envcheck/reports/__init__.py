"""RunReport and its forms."""
