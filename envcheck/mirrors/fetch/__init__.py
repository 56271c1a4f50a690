"""Fetch one file of a known hash from any of several sources, in pieces, and go on after any interruption."""
