"""Numbers with a noun. Standard library only, and Python 3.9: foreign interpreters import it."""

from __future__ import annotations

from collections.abc import Iterable


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return "1 cell", "2 cells"; `plural` is for nouns that do not end in s then."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def numbered(noun: str, members: Iterable[object]) -> str:
    """Return "rank 1", "ranks 1 and 2", "ranks 0, 1 and 2"."""
    *others, last = map(str, members)
    return f"{noun}s {', '.join(others)} and {last}" if others else f"{noun} {last}"
