"""A number before a noun. Standard library only, and Python 3.9: foreign interpreters import it."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return "1 cell", "2 cells"; `plural` is for nouns that do not end in s then."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
