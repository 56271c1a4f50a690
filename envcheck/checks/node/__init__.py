"""Checks that judge a Snapshot; one file each."""
