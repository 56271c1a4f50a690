"""Operators that have a formula: each with options and sizes from a seed, beside its reference in plain Python."""
