"""What stands in a line: numbers with a noun, and text of others made printable.

Standard library only, and Python 3.9: foreign interpreters import it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

_ESCAPES = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])"
# What XML, HTML and terminals cannot hold, and the signs that turn the direction of what follows.
_UNPRINTABLE = (
    "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return "1 cell", "2 cells"; `plural` is for nouns that do not end in s then."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def numbered(noun: str, members: Iterable[object]) -> str:
    """Return "rank 1", "ranks 1 and 2", "ranks 0, 1 and 2"."""
    *others, last = map(str, members)
    return f"{noun}s {', '.join(others)} and {last}" if others else f"{noun} {last}"


def printable(text: str) -> str:
    """Return the text without colours, control characters and signs that turn its direction."""
    # What Python calls printable has none of them; to compile the patterns takes as long as to import a library.
    return text if text.isprintable() else _compiled(_UNPRINTABLE).sub("", _compiled(_ESCAPES).sub("", text))


@functools.cache  # Python 3.9
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
