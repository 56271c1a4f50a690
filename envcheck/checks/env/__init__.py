"""Checks that measure inside the environment under test, in its own Python; one file each.

Standard library plus torch, torch imported inside functions only; Python >= 3.9.
"""
