"""Words of several commands."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return "1 cell", "2 cells"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
