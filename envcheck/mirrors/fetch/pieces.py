"""Which piece is fetched from which source next: a state machine without clock, thread, disk or network."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

MIB: Final = 1 << 20
# Enough pieces for every connection to have several, and few enough for a short journal: 1 MiB up to 64 MB, 8 MiB from
# 512 MB to 16 GB, 64 MiB at 128 GB.
_SMALLEST: Final = MIB
_USUAL: Final = 8 * MIB
_FEW: Final = 64
_MANY: Final = 2048
# Seconds a source rests after a failure, and after the next ones.
BACKOFF: Final[tuple[float, ...]] = (1.0, 2.0, 5.0, 15.0)
_MOST_PATIENT: Final = 120.0
_CHANGES: Final = 2
# Seconds that the other connections wait for the first answer of a source, before they turn to the next one.
_INTRODUCTION: Final = 1.0
# So many pieces in a row, and a source that was too crowded is given one connection more.
_TRUSTED: Final = 8


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
class Task:
    """One piece to be asked of one source; `etag` is what the source's other pieces came with."""

    piece: int
    span: Span
    source: int
    etag: str | None = None


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a source gave no piece. `drop`: it never will. `whole`: it knows no ranges.

    `after`: the seconds it asked to be left alone. `changed`: what it has now is another file than before. `crowded`:
    it serves some of our requests, and this one was too many.
    """

    reason: str
    drop: bool = False
    whole: bool = False
    after: float | None = None
    changed: bool = False
    crowded: bool = False


@dataclasses.dataclass
class Source:
    """What is known of a source. `rests` is when it may be asked again; `known`, whether its ETag (or none) is told.

    `room` is how many requests it may have under way, `gave` how many pieces it has given. `fickle`: its ETag differs
    from request to request (servers behind one name), so that it says nothing; the hash of the whole still does.
    """

    room: int
    ranges: bool = True
    failures: int = 0
    changes: int = 0
    rests: float = 0.0
    dropped: bool = False
    known: bool = False
    etag: str | None = None
    busy: int = 0
    since: float = 0.0
    gave: int = 0
    fickle: bool = False
    reason: str = ""


def piece_size(size: int) -> int:
    """Return the bytes of a piece of a file of `size` bytes: a power of two, from 1 MiB on."""
    piece = _SMALLEST
    while (piece < _USUAL and size > piece * _FEW) or size > piece * _MANY:
        piece *= 2
    return piece


def spans(size: int, piece: int) -> list[Span]:
    """Return the pieces of a file, in order; none of an empty one."""
    return [Span(start, min(start + piece, size)) for start in range(0, size, piece)]


class Board:
    """What is done, what is under way, and what may be taken next. Times are seconds of one monotonic clock.

    Sources are in the order of preference: the next piece is asked of the first one that is not dropped, does not
    rest, and has fewer than `per_source` requests under way. A source that cannot do ranges gets no task. Until a
    source has told which file it has (its ETag), it gets one request and the others wait a moment for it: the next can
    then ask for that same file.
    """

    def __init__(self, size: int, piece: int, sources: int, *, per_source: int, done: Mapping[int, int]) -> None:
        self.spans = spans(size, piece)
        self.sources = [Source(per_source) for _ in range(sources)]
        self.done = {index: source for index, source in done.items() if index < len(self.spans)}
        self._missing = [index for index in range(len(self.spans) - 1, -1, -1) if index not in self.done]
        self._per_source = per_source
        self.under_way: set[int] = set()

    @property
    def complete(self) -> bool:
        """Tell whether every piece is there."""
        return len(self.done) == len(self.spans)

    @property
    def received(self) -> int:
        """Return the bytes that are there."""
        return sum(self.spans[index].size for index in self.done)

    def take(self, now: float) -> Task | None:
        """Return the next task, or None: all is done or under way, or nobody may be asked now (see `wait`)."""
        source = next((index for index, known in enumerate(self.sources) if self._usable(known, now)), None)
        if source is None or not self._missing:
            return None
        known = self.sources[source]
        if known.busy and not known.known:
            return None  # it is about to say which file it has
        piece = self._missing.pop()
        self.under_way.add(piece)
        known.busy += 1
        known.since = now
        return Task(piece, self.spans[piece], source, self.sources[source].etag)

    def wait(self, now: float) -> float | None:
        """Return the seconds until a resting source may be asked again, or None where none will be."""
        rests = [known.rests for known in self.sources if not known.dropped and known.ranges]
        return max(0.0, min(rests) - now) if rests else None

    def answered(self, task: Task, etag: str | None) -> None:
        """Note that a source has told which file it has; the piece is still on its way."""
        source = self.sources[task.source]
        if not source.known:
            source.known, source.etag = True, None if source.fickle else etag

    def arrived(self, task: Task, etag: str | None) -> bool:
        """Note that a piece is on the disk; tell whether it counts: not when it is of the file before a change."""
        source = self._ended(task)
        source.failures = 0
        source.gave += 1
        if source.gave % _TRUSTED == 0 and source.room < self._per_source:
            source.room += 1
        if source.etag is not None and etag not in {None, source.etag}:
            self._missing.append(task.piece)
            return False
        self.done[task.piece] = task.source
        return True

    def failed(self, task: Task, failure: Failure, now: float) -> list[int]:
        """Note that a piece did not come; return the pieces to be forgotten, as their source has become another file.

        A source that failed rests, longer each time, and is dropped when it failed once more than there are rests:
        requests that fail together have failed once. One that has given pieces is not dropped at once, whatever it says
        now: a signed link may have run out.
        """
        known = self._ended(task)
        self._missing.append(task.piece)
        known.reason = failure.reason
        if failure.changed:
            return self._changed(task, known)
        known.ranges = known.ranges and not failure.whole
        if failure.crowded and known.busy:
            known.room = min(known.room, known.busy)
        elif known.rests <= now:
            known.failures += 1
        known.dropped = known.dropped or (failure.drop and not known.gave) or known.failures > len(BACKOFF)
        self._rest(known, failure, now)
        return []

    @staticmethod
    def _rest(known: Source, failure: Failure, now: float) -> None:
        if failure.crowded and known.busy and failure.after is None:
            return  # there is room when one of the others has ended
        rest = BACKOFF[max(0, min(known.failures, len(BACKOFF)) - 1)] if failure.after is None else failure.after
        known.rests = max(known.rests, now + min(rest, _MOST_PATIENT))

    def forget(self, pieces: list[int]) -> None:
        """Have these pieces fetched again."""
        for piece in pieces:
            del self.done[piece]
        self._missing = sorted({*self._missing, *pieces}, reverse=True)

    def _changed(self, task: Task, known: Source) -> list[int]:
        if task.etag != known.etag:
            return []  # another of its requests was told so already
        known.changes += 1
        known.known, known.etag = False, None
        known.fickle = known.changes >= _CHANGES
        stale = [piece for piece, source in self.done.items() if source == task.source]
        self.forget(stale)
        return stale

    def _ended(self, task: Task) -> Source:
        self.under_way.discard(task.piece)
        known = self.sources[task.source]
        known.busy -= 1
        return known

    def _usable(self, known: Source, now: float) -> bool:
        if not known.known and known.busy:
            return now - known.since < _INTRODUCTION
        return known.ranges and not known.dropped and known.rests <= now and known.busy < known.room
