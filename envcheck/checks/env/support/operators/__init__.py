"""Rows of the operator checks, and their references in plain Python."""
