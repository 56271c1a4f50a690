"""The pieces of a file, the tasks for a source, and the failures of a source; plain data."""

from __future__ import annotations

from typing import Final

from envcheck.struct_types import LightRecord

MIB: Final = 1 << 20
# Enough pieces for several per connection, and few enough for a short journal: 1 MiB up to 64 MB, 8 MiB from
# 512 MB to 16 GB, 64 MiB at 128 GB.
_SMALLEST: Final = MIB
_USUAL: Final = 8 * MIB
_FEW: Final = 64
_MANY: Final = 2048


class Span(LightRecord, frozen=True):
    """Bytes `start` up to, not including, `stop`."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return self.stop - self.start


class RangeTask(LightRecord, frozen=True):
    """A piece, or a part of one, to fetch from one source; `etag` is that of the source's other pieces.

    `changes` is how often the source's file had changed when this task was taken. `alone`: the source gets no other
    request meanwhile.
    """

    piece: int
    span: Span
    source: int
    etag: str | None = None
    changes: int = 0
    alone: bool = False


class Failure(LightRecord, frozen=True):
    """Why a request failed, and `fix`: what to do, if it is not to choose another mirror.

    `drop`: the source will never succeed. `whole`: it does not support ranges. `after`: the seconds it asked to wait.
    `changed`: its file has changed. `crowded`: it refused this request because others are open. `got`: the bytes that
    came and can be kept. `slow`: the response stalled. `silent`: it is slow because nothing came any more. `missing`:
    the source says that it does not have the file.
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
    missing: bool = False


def piece_size(size: int) -> int:
    """Return the piece size in bytes for a file of `size` bytes: a power of two, at least 1 MiB."""
    piece = _SMALLEST
    while (piece < _USUAL and size > piece * _FEW) or size > piece * _MANY:
        piece *= 2
    return piece


def spans(size: int, piece: int) -> list[Span]:
    """Return the pieces of a file in order; an empty file has none."""
    return [Span(start, min(start + piece, size)) for start in range(0, size, piece)]
