"""Text of others, as a terminal, a page or a log may show it."""

from __future__ import annotations

import functools
import re
from typing import Final

_ESCAPES: Final = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])"
# What XML, HTML and terminals cannot hold, and the signs that turn the direction of what follows.
_UNPRINTABLE: Final = (
    "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def printable(text: str) -> str:
    """Return the text without colours, control characters and signs that turn its direction."""
    # What Python calls printable has none of them; to compile the patterns takes as long as to import a library.
    return text if text.isprintable() else _compiled(_UNPRINTABLE).sub("", _compiled(_ESCAPES).sub("", text))


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
