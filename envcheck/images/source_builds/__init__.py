"""Compile an extension that has no wheel for a cell: its sdist, the stage on `devel`, the wheel, and the store."""
