"""Fixtures every part of the tests may use."""
