"""What a file is cut into, what is asked of a source, and why it may not come: values, and nothing that acts."""

from __future__ import annotations

import dataclasses
from typing import Final

MIB: Final = 1 << 20
# Enough pieces for every connection to have several, and few enough for a short journal: 1 MiB up to 64 MB, 8 MiB from
# 512 MB to 16 GB, 64 MiB at 128 GB.
_SMALLEST: Final = MIB
_USUAL: Final = 8 * MIB
_FEW: Final = 64
_MANY: Final = 2048


@dataclasses.dataclass(frozen=True)
class Span:
    """Bytes `start` up to, not including, `stop`."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Return the number of bytes."""
        return self.stop - self.start


@dataclasses.dataclass(frozen=True)
class RangeTask:
    """A piece, or a part of one, to be asked of one source; `etag` is what the source's other pieces came with.

    `changes` is how often the source's file had become another one when this was taken. `alone`: its source is asked
    for nothing else meanwhile.
    """

    piece: int
    span: Span
    source: int
    etag: str | None = None
    changes: int = 0
    alone: bool = False


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a source did not give what was asked, and `fix`, where that is not to ask another mirror.

    `drop`: it never will. `whole`: it knows no ranges. `after`: the seconds it asked to be left alone. `changed`: what
    it has now is another file than before. `crowded`: it serves some of our requests, and this one was too many.
    `got`: the bytes that came, and can be gone on with. `slow`: what came hardly moved. `silent`: it is slow because
    nothing came any more.
    """

    reason: str
    drop: bool = False
    whole: bool = False
    after: float | None = None
    changed: bool = False
    crowded: bool = False
    got: int = 0
    fix: str = ""
    slow: bool = False
    silent: bool = False


def piece_size(size: int) -> int:
    """Return the bytes of a piece of a file of `size` bytes: a power of two, from 1 MiB on."""
    piece = _SMALLEST
    while (piece < _USUAL and size > piece * _FEW) or size > piece * _MANY:
        piece *= 2
    return piece


def spans(size: int, piece: int) -> list[Span]:
    """Return the pieces of a file, in order; none of an empty one."""
    return [Span(start, min(start + piece, size)) for start in range(0, size, piece)]
