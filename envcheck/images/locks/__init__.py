"""Locks: exact versions with sha256, one file per index."""
