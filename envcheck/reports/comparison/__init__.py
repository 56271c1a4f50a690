"""Compare two reports."""
