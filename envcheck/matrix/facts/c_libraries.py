"""The C library of each distribution that `bases` names: a wheel for a newer one does not load there."""

from __future__ import annotations

from typing import Final

from envcheck.matrix.facts.model import Base, Matrix
from envcheck.matrix.facts.versions import key

# Their packages libc6: 2.35-0ubuntu3, 2.36-9, 2.39-0ubuntu8 and 2.41-12.
_GLIBC: Final = {"jammy": "2.35", "bookworm": "2.36", "noble": "2.39", "trixie": "2.41"}


def glibc_of(base: Base) -> str | None:
    """Return the glibc of a base; None where it is not known."""
    return _GLIBC.get(base.suite)


def glibc(matrix: Matrix, python: str) -> str | None:
    """Return the glibc of the base with this Python; without such a base that of the oldest one. None: not known."""
    base = matrix.base(python)
    if base is not None:
        return glibc_of(base)
    return min((_GLIBC[each.suite] for each in matrix.bases if each.suite in _GLIBC), key=key, default=None)
