"""Which part of which piece is fetched from which source next: a state machine without clock, thread, disk, network."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping
from typing import Final

from envcheck.mirrors.fetch.limits import LONGEST_WAIT, SLOW_ANSWERS
from envcheck.mirrors.fetch.plan.pieces import Failure, RangeTask, Span, spans

# Seconds a source rests after a failure, and after the next ones.
BACKOFF: Final[tuple[float, ...]] = (1.0, 2.0, 5.0, 15.0)
_CHANGES: Final = 2
# Seconds that the other connections wait for the first answer of a source, before they turn to the next one.
_INTRODUCTION: Final = 1.0
# So many pieces in a row, and a source that was too crowded is given one connection more.
_TRUSTED: Final = 8
# Towards the end a request asks for less than a piece, so that the last ones end together: never for fewer bytes than
# these, nor for less than what a connection brings in these seconds.
SMALLEST_PART: Final = 1 << 18
_SHORTEST: Final = 0.25
# What a request must have brought before it failed, for the source to count as one that moves.
_MOVED: Final = 1 << 16
# The source of a piece that several sources gave parts of; that of one an earlier run had, from who is not asked now.
MIXED: Final = -1
EARLIER: Final = -2


@dataclasses.dataclass
class SourceState:
    """What is known of a source. `rests` is when it may be asked again; `known`, whether its ETag (or none) is told.

    `room` is how many requests it may have under way, `gave` how many it has answered in full. `fickle`: its ETag
    differs from request to request (servers behind one name), so that it says nothing; the hash of the whole still
    does. `rate`: the bytes a second that one of its connections brought of late. `asked`: the seconds for which it has
    asked to be left alone since it gave something.
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
    fix: str = ""
    rate: float = 0.0
    asked: float = 0.0


@dataclasses.dataclass
class _PieceState:
    """A piece of which some has come or is coming: what nobody is bringing, who gave what there is, who is at it.

    `stale`: some of it is of another file; it starts over once nobody writes to it.
    """

    gaps: list[Span]
    givers: set[int] = dataclasses.field(default_factory=set)
    busy: list[int] = dataclasses.field(default_factory=list)
    coming: int = 0
    stale: bool = False


def backoff_seconds(failures: int, failure: Failure) -> float:
    """Return the seconds for which a source is left alone that has failed so many times."""
    usual = BACKOFF[max(0, min(failures, len(BACKOFF)) - 1)]
    return min(usual if failure.after is None else failure.after, LONGEST_WAIT)


def _stalled_midway(failure: Failure, known: SourceState) -> bool:
    """Return whether a source that gives has one connection on which nothing more comes."""
    return failure.silent and (known.gave > 0 or failure.got >= _MOVED)


class PieceScheduler:
    """What is done, what is under way, and what may be taken next. Times are seconds of one monotonic clock.

    Sources are in the order of preference: the next piece is asked of the first one that is not dropped, does not
    rest, and has fewer than `per_source` requests under way. A source that cannot do ranges gets no task. Until a
    source has told which file it has (its ETag), it gets one request and the others wait a moment for it: the next can
    then ask for that same file. What lacks of a begun piece goes before a new piece, so that no more pieces are begun
    than requests were ever under way; a kill costs no more than those.
    """

    def __init__(self, size: int, piece: int, sources: int, *, per_source: int, done: Mapping[int, int]) -> None:
        self.spans = spans(size, piece)
        self.sources = [SourceState(per_source) for _ in range(sources)]
        self.done = {index: source for index, source in done.items() if index < len(self.spans)}
        self._missing = [index for index in range(len(self.spans)) if index not in self.done]
        self._begun: dict[int, _PieceState] = {}
        self._givers: dict[int, set[int]] = {}
        self._per_source = per_source
        self._left = sum(self.spans[index].size for index in self._missing)

    @property
    def complete(self) -> bool:
        """Tell whether every piece is there."""
        return len(self.done) == len(self.spans)

    @property
    def received(self) -> int:
        """Return the bytes of the pieces that are there."""
        return sum(self.spans[index].size for index in self.done)

    @property
    def begun(self) -> int:
        """Return the bytes that have come of pieces that are not whole yet."""
        return sum(self._came(piece, begun) for piece, begun in self._begun.items())

    @property
    def under_way(self) -> set[int]:
        """Return the pieces that somebody is bringing some of."""
        return {piece for piece, begun in self._begun.items() if begun.busy}

    def take(self, now: float) -> RangeTask | None:
        """Return the next task, or None: all is done or under way, or nobody may be asked now (see `wait`)."""
        source = next((index for index, known in enumerate(self.sources) if self._usable(known, now)), None)
        if source is None:
            return None
        known = self.sources[source]
        if known.busy and not known.known:
            return None  # it is about to say which file it has
        found = self._next()
        if found is None:
            return None
        piece, begun = found
        span = self._cut(begun, known)
        begun.busy.append(source)
        begun.coming += span.size
        self._left -= span.size
        known.busy += 1
        known.since = now
        return RangeTask(piece, span, source, known.etag, known.changes, alone=known.room == 1)

    def wait(self, now: float) -> float | None:
        """Return the seconds until a resting source may be asked again, or None where none will be."""
        rests = [known.rests for known in self.sources if not known.dropped and known.ranges]
        return max(0.0, min(rests) - now) if rests else None

    def suspect(self, source: int) -> None:
        """Note that a source was silent before this file was begun: it gets one request, and no second chance."""
        self.sources[source].failures = SLOW_ANSWERS - 1
        self.sources[source].room = 1

    def answered(self, task: RangeTask, etag: str | None) -> None:
        """Note that a source has told which file it has; the piece is still on its way."""
        source = self.sources[task.source]
        if not source.known and task.changes == source.changes:
            source.known, source.etag = True, None if source.fickle else etag

    def arrived(self, task: RangeTask, etag: str | None, seconds: float = 0.0) -> bool:
        """Note that what was asked for is on the disk, and the seconds it took; tell whether its piece now is there.

        What is of the file before a change does not count.
        """
        source, begun = self._ended(task)
        source.failures, source.asked = 0, 0.0
        source.gave += 1
        if seconds > 0:
            source.rate = task.span.size / seconds
        if source.gave % _TRUSTED == 0 and source.room < self._per_source:
            source.room += 1
        begun.stale |= source.etag is not None and etag not in {None, source.etag}
        begun.givers.add(task.source)
        self._settle()
        return task.piece in self.done

    def failed(self, task: RangeTask, failure: Failure, now: float) -> list[int]:
        """Note that not all came; return the pieces to be forgotten, as their source has become another file.

        A source that failed rests, longer each time, and is dropped when it failed once more than there are rests:
        requests that fail together have failed once, and the last source of all is not dropped while it still moves.
        One that has given pieces is not dropped at once, whatever it says now: a signed link may have run out. One that
        asks for more than LONGEST_WAIT is dropped, as is one that hardly moves though one connection alone asks it, or
        that gave pieces and then was silent twice with none in between.
        """
        known, begun = self._ended(task)
        self._give_back(task, begun, failure.got)
        known.reason, known.fix = failure.reason, failure.fix
        forgotten = self._changed(task, known) if failure.changed else []
        if not failure.changed:
            self._refused(known, failure, now)
            mute = task.alone or _stalled_midway(failure, known)
            known.dropped |= failure.slow and mute and known.failures >= SLOW_ANSWERS
        self._settle()
        return forgotten

    def _refused(self, known: SourceState, failure: Failure, now: float) -> None:
        known.ranges = known.ranges and not failure.whole
        if failure.crowded and known.busy:
            known.room = min(known.room, known.busy)
        elif known.rests <= now:
            known.failures += 1
            known.asked += failure.after or 0.0
        if failure.slow and not _stalled_midway(failure, known):
            known.room = 1  # its line may be too narrow for several
        if failure.got >= _MOVED and self._last(known):
            known.failures = 1
        never = (failure.drop and not known.gave) or known.asked > LONGEST_WAIT
        known.dropped = known.dropped or never or known.failures > len(BACKOFF)
        self._rest(known, failure, now)

    @staticmethod
    def _rest(known: SourceState, failure: Failure, now: float) -> None:
        if failure.crowded and known.busy and (failure.after is None or failure.after > LONGEST_WAIT):
            return  # there is room when one of the others has ended
        known.rests = max(known.rests, now + backoff_seconds(known.failures, failure))

    def forget(self, pieces: list[int]) -> None:
        """Have these pieces, which were there, fetched again."""
        for piece in pieces:
            del self.done[piece]
            self._givers.pop(piece, None)
            heapq.heappush(self._missing, piece)
            self._left += self.spans[piece].size

    def _next(self) -> tuple[int, _PieceState] | None:
        """Return the first piece of which something is brought by nobody; what is begun goes first."""
        open_ = [piece for piece, begun in self._begun.items() if begun.gaps and not begun.stale]
        if open_:
            return min(open_), self._begun[min(open_)]
        if not self._missing:
            return None
        piece = heapq.heappop(self._missing)
        self._begun[piece] = _PieceState([self.spans[piece]])
        return piece, self._begun[piece]

    def _cut(self, begun: _PieceState, known: SourceState) -> Span:
        """Take a gap of a piece, or its beginning where the rest is better brought by another connection."""
        gap = begun.gaps.pop(0)
        least = max(SMALLEST_PART, int(known.rate * _SHORTEST))
        part = max(least, self._left // (2 * self._per_source)) // SMALLEST_PART * SMALLEST_PART
        if not known.rate or gap.size < part + least:
            return gap
        begun.gaps.insert(0, Span(gap.start + part, gap.stop))
        return Span(gap.start, gap.start + part)

    def _came(self, piece: int, begun: _PieceState) -> int:
        return self.spans[piece].size - sum(gap.size for gap in begun.gaps) - begun.coming

    def _give_back(self, task: RangeTask, begun: _PieceState, got: int) -> None:
        left = Span(task.span.start + got, task.span.stop)
        begun.gaps = sorted([*begun.gaps, left], key=lambda gap: gap.start)
        self._left += left.size
        if got:
            begun.givers.add(task.source)

    def _settle(self) -> None:
        """Put each piece that nobody is at where it belongs: to what is there, or back to what nobody has begun."""
        for piece, begun in [*self._begun.items()]:
            if begun.busy or (begun.gaps and begun.givers and not begun.stale):
                continue
            del self._begun[piece]
            if begun.stale or begun.gaps:
                self._left += self._came(piece, begun)
                heapq.heappush(self._missing, piece)
                continue
            self._givers[piece] = begun.givers
            self.done[piece] = next(iter(begun.givers)) if len(begun.givers) == 1 else MIXED

    def _changed(self, task: RangeTask, known: SourceState) -> list[int]:
        if task.changes != known.changes:
            return []  # another of its requests was told so already
        known.changes += 1
        known.known, known.etag = False, None
        known.fickle = known.changes >= _CHANGES
        for begun in self._begun.values():
            begun.stale |= task.source in begun.givers or task.source in begun.busy
        stale = [piece for piece, source in self.done.items() if task.source in self._givers.get(piece, {source})]
        self.forget(stale)
        return stale

    def _ended(self, task: RangeTask) -> tuple[SourceState, _PieceState]:
        begun = self._begun[task.piece]
        begun.busy.remove(task.source)
        begun.coming -= task.span.size
        known = self.sources[task.source]
        known.busy -= 1
        return known, begun

    def _last(self, known: SourceState) -> bool:
        return all(other is known or other.dropped or not other.ranges for other in self.sources)

    def _usable(self, known: SourceState, now: float) -> bool:
        if not known.known and known.busy:
            return now - known.since < _INTRODUCTION
        return known.ranges and not known.dropped and known.rests <= now and known.busy < known.room
