"""Compare versions of drivers, CUDA and compute capabilities: per dotted field, as numbers."""

from __future__ import annotations


def key(version: str) -> tuple[int, ...]:
    """Return the sort key: 570.26 < 570.124, and 12.8 < 12.10. Raises ValueError on anything but dotted digits."""
    return tuple(int(field) for field in version.split("."))
