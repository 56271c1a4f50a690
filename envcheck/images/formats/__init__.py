"""What other programs read of published cells: one module a format."""
