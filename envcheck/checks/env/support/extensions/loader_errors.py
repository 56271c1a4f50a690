"""What a text of the dynamic loader names: a symbol, a library, or a version of the C library (glibc, dl-*.c)."""

from __future__ import annotations

import re
from typing import NamedTuple

_PATTERNS = (
    ("symbol", re.compile(r"undefined symbol: ([^\s,()]+)")),
    ("version", re.compile(r"version [`']((?:GLIBC|GLIBCXX|CXXABI)_[\w.]+)' not found")),
    ("library", re.compile(r"(\S+): cannot open shared object file")),
    ("invalid", re.compile(r"(\S+): (?:invalid ELF header|file too short|wrong ELF class\S*)")),
)


class LoaderError(NamedTuple):
    """What a library lacks. `kind` is "symbol", "library" or "version"; "invalid" where it is no library."""

    kind: str
    name: str


def cause(text: str) -> LoaderError | None:
    """Return what the loader did not find, None if the text is not the loader's.

    A text that has several is of a package with a library for each version of another, of which one would do: that a
    library was there, and a symbol was not, says more than that other versions are not installed.
    """
    named = (LoaderError(kind, match[1]) for kind, pattern in _PATTERNS for match in [pattern.search(text)] if match)
    return next(named, None)
