"""Judges what the check `extensions` measured, in envcheck's own process: with facts and version rules."""
