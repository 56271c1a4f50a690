"""Measure which mirrors have the files that are needed, and how fast they are."""
