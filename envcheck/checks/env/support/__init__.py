"""Helpers that several environment checks share."""
