"""Decide which part of which piece to fetch next, and from where; without clock, threads, disk or network."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping
from typing import Final

from envcheck.mirrors.fetch.limits import LONGEST_WAIT, SLOW_ANSWERS
from envcheck.mirrors.fetch.plan.pieces import Failure, RangeTask, Span, spans

# Seconds that a source rests after its first failure and after later ones.
BACKOFF: Final[tuple[float, ...]] = (1.0, 2.0, 5.0, 15.0)
_CHANGES: Final = 2
# Seconds that other connections wait for a source's first response before they use the next source.
_INTRODUCTION: Final = 1.0
# After this many pieces, a source that was crowded gets one more connection.
_TRUSTED: Final = 8
# Near the end a request asks for less than a piece, so that the last requests end together: at least this many bytes,
# and at least what a connection delivers in _SHORTEST seconds.
SMALLEST_PART: Final = 1 << 18
_SHORTEST: Final = 0.25
# Bytes that a failed request must have delivered for its source to count as working.
_MOVED: Final = 1 << 16
# A piece with parts from several sources; a piece from an earlier run whose source is not used now.
MIXED: Final = -1
EARLIER: Final = -2


@dataclasses.dataclass
class SourceState:
    """The state of a source. `resting_until`: when it may be used again. `identified`: whether its ETag is known.

    `room`: how many requests it may have at once. `served`: how many it has completed. `unstable_etag`: its ETag
    differs between requests (several servers behind one name), so only the hash of the whole file counts. `rate`: the
    recent bytes a second of one connection. `waited`: the seconds that it has asked to wait since its last piece.
    `missing`: its last answer says that it does not have the file.
    """

    room: int
    ranges: bool = True
    failures: int = 0
    changes: int = 0
    resting_until: float = 0.0
    dropped: bool = False
    identified: bool = False
    etag: str | None = None
    busy: int = 0
    since: float = 0.0
    served: int = 0
    unstable_etag: bool = False
    reason: str = ""
    fix: str = ""
    missing: bool = False
    rate: float = 0.0
    waited: float = 0.0


@dataclasses.dataclass
class _PieceState:
    """A piece in progress: its missing parts, the sources of the present parts, and the sources at work.

    `stale`: a part comes from a changed file; the piece starts over when no request writes to it.
    """

    gaps: list[Span]
    sources: set[int] = dataclasses.field(default_factory=set)
    busy: list[int] = dataclasses.field(default_factory=list)
    requested: int = 0
    stale: bool = False


def backoff_seconds(failures: int, failure: Failure) -> float:
    """Return the seconds that a source rests after this many failures."""
    usual = BACKOFF[max(0, min(failures, len(BACKOFF)) - 1)]
    return min(usual if failure.after is None else failure.after, LONGEST_WAIT)


def _stalled_midway(failure: Failure, state: SourceState) -> bool:
    """Return whether a source that gives has one connection on which nothing more comes."""
    return failure.silent and (state.served > 0 or failure.got >= _MOVED)


class PieceScheduler:
    """Track the pieces that are done and in progress, and choose the next task. Times are monotonic seconds.

    Sources are in order of preference: the next task goes to the first source that is not dropped, does not rest, and
    has fewer than `per_source` open requests. A source without range support gets no task. Until a source has sent its
    ETag it gets one request, and the others wait briefly for it. The missing parts of a piece in progress go before a
    new piece, so that a killed process loses few pieces.
    """

    def __init__(self, size: int, piece: int, sources: int, *, per_source: int, done: Mapping[int, int]) -> None:
        self.spans = spans(size, piece)
        self.sources = [SourceState(per_source) for _ in range(sources)]
        self.done = {index: source for index, source in done.items() if index < len(self.spans)}
        self._missing = [index for index in range(len(self.spans)) if index not in self.done]
        self._begun: dict[int, _PieceState] = {}
        self._piece_sources: dict[int, set[int]] = {}
        self._per_source = per_source
        self._left = sum(self.spans[index].size for index in self._missing)

    @property
    def complete(self) -> bool:
        """Tell whether every piece is done."""
        return len(self.done) == len(self.spans)

    @property
    def received(self) -> int:
        """Return the bytes of the pieces that are done."""
        return sum(self.spans[index].size for index in self.done)

    @property
    def begun(self) -> int:
        """Return the bytes that have arrived of pieces in progress."""
        return sum(self._came(piece, begun) for piece, begun in self._begun.items())

    @property
    def under_way(self) -> set[int]:
        """Return the pieces with an open request."""
        return {piece for piece, begun in self._begun.items() if begun.busy}

    def take(self, now: float) -> RangeTask | None:
        """Return the next task, or None if everything is done or requested, or no source is free (see `wait`)."""
        source = next((index for index, state in enumerate(self.sources) if self._usable(state, now)), None)
        if source is None:
            return None
        state = self.sources[source]
        if state.busy and not state.identified:
            return None  # it is about to send its ETag
        following = self._next()
        if following is None:
            return None
        piece, begun = following
        span = self._cut(begun, state)
        begun.busy.append(source)
        begun.requested += span.size
        self._left -= span.size
        state.busy += 1
        state.since = now
        return RangeTask(piece, span, source, state.etag, state.changes, alone=state.room == 1)

    def wait(self, now: float) -> float | None:
        """Return the seconds until a resting source may be used again, or None if there is none."""
        rests = [state.resting_until for state in self.sources if not state.dropped and state.ranges]
        return max(0.0, min(rests) - now) if rests else None

    def suspect(self, source: int) -> None:
        """Note that a source was silent before this file was begun: it gets one request, and no second chance."""
        self.sources[source].failures = SLOW_ANSWERS - 1
        self.sources[source].room = 1

    def answered(self, task: RangeTask, etag: str | None) -> None:
        """Record the ETag that a source has sent; the piece is still in transfer."""
        source = self.sources[task.source]
        if not source.identified and task.changes == source.changes:
            source.identified, source.etag = True, None if source.unstable_etag else etag

    def arrived(self, task: RangeTask, etag: str | None, seconds: float = 0.0) -> bool:
        """Record that a task's bytes are written, and the seconds it took; tell whether its piece is now done.

        Bytes from before a change of the file do not count.
        """
        source, begun = self._ended(task)
        source.failures, source.waited = 0, 0.0
        source.served += 1
        if seconds > 0:
            source.rate = task.span.size / seconds
        if source.served % _TRUSTED == 0 and source.room < self._per_source:
            source.room += 1
        begun.stale |= source.etag is not None and etag not in {None, source.etag}
        begun.sources.add(task.source)
        self._settle()
        return task.piece in self.done

    def failed(self, task: RangeTask, failure: Failure, now: float) -> list[int]:
        """Record a failure; return the pieces to forget because the file of their source has changed.

        A source that failed rests, longer each time, and is dropped when it failed once more than there are rests:
        requests that fail together have failed once, and the last source of all is not dropped while it still moves.
        One that has given pieces is not dropped at once, whatever it says now: a signed link may have run out. One that
        asks for more than LONGEST_WAIT is dropped, as is one that hardly moves though one connection alone asks it, or
        that gave pieces and then was silent twice with none in between.
        """
        state, begun = self._ended(task)
        self._give_back(task, begun, failure.got)
        state.reason, state.fix, state.missing = failure.reason, failure.fix, failure.missing
        forgotten = self._changed(task, state) if failure.changed else []
        if not failure.changed:
            self._refused(state, failure, now)
            mute = task.alone or _stalled_midway(failure, state)
            state.dropped |= failure.slow and mute and state.failures >= SLOW_ANSWERS
        self._settle()
        return forgotten

    def _refused(self, state: SourceState, failure: Failure, now: float) -> None:
        state.ranges = state.ranges and not failure.whole
        if failure.crowded and state.busy:
            state.room = min(state.room, state.busy)
        elif state.resting_until <= now:
            state.failures += 1
            state.waited += failure.after or 0.0
        if failure.slow and not _stalled_midway(failure, state):
            state.room = 1  # its bandwidth may be too small for several
        if failure.got >= _MOVED and self._last(state):
            state.failures = 1
        never = (failure.drop and not state.served) or state.waited > LONGEST_WAIT
        state.dropped = state.dropped or never or state.failures > len(BACKOFF)
        self._pause_source(state, failure, now)

    @staticmethod
    def _pause_source(state: SourceState, failure: Failure, now: float) -> None:
        if failure.crowded and state.busy and (failure.after is None or failure.after > LONGEST_WAIT):
            return  # a slot is free when another request has ended
        state.resting_until = max(state.resting_until, now + backoff_seconds(state.failures, failure))

    def forget(self, pieces: list[int]) -> None:
        """Mark pieces that were done as missing."""
        for piece in pieces:
            del self.done[piece]
            self._piece_sources.pop(piece, None)
            heapq.heappush(self._missing, piece)
            self._left += self.spans[piece].size

    def _next(self) -> tuple[int, _PieceState] | None:
        """Return the first piece with a part that no request covers; pieces in progress go first."""
        open_ = [piece for piece, begun in self._begun.items() if begun.gaps and not begun.stale]
        if open_:
            return min(open_), self._begun[min(open_)]
        if not self._missing:
            return None
        piece = heapq.heappop(self._missing)
        self._begun[piece] = _PieceState([self.spans[piece]])
        return piece, self._begun[piece]

    def _cut(self, begun: _PieceState, state: SourceState) -> Span:
        """Take a missing part of a piece, or only its beginning if another connection should fetch the rest."""
        gap = begun.gaps.pop(0)
        least = max(SMALLEST_PART, int(state.rate * _SHORTEST))
        part = max(least, self._left // (2 * self._per_source)) // SMALLEST_PART * SMALLEST_PART
        if not state.rate or gap.size < part + least:
            return gap
        begun.gaps.insert(0, Span(gap.start + part, gap.stop))
        return Span(gap.start, gap.start + part)

    def _came(self, piece: int, begun: _PieceState) -> int:
        return self.spans[piece].size - sum(gap.size for gap in begun.gaps) - begun.requested

    def _give_back(self, task: RangeTask, begun: _PieceState, received: int) -> None:
        left = Span(task.span.start + received, task.span.stop)
        begun.gaps = sorted([*begun.gaps, left], key=lambda gap: gap.start)
        self._left += left.size
        if received:
            begun.sources.add(task.source)

    def _settle(self) -> None:
        """Move each piece without an open request to the done pieces or back to the missing ones."""
        for piece, begun in [*self._begun.items()]:
            if begun.busy or (begun.gaps and begun.sources and not begun.stale):
                continue
            del self._begun[piece]
            if begun.stale or begun.gaps:
                self._left += self._came(piece, begun)
                heapq.heappush(self._missing, piece)
                continue
            self._piece_sources[piece] = begun.sources
            self.done[piece] = next(iter(begun.sources)) if len(begun.sources) == 1 else MIXED

    def _changed(self, task: RangeTask, state: SourceState) -> list[int]:
        if task.changes != state.changes:
            return []  # another request has reported this change already
        state.changes += 1
        state.identified, state.etag = False, None
        state.unstable_etag = state.changes >= _CHANGES
        for begun in self._begun.values():
            begun.stale |= task.source in begun.sources or task.source in begun.busy
        stale = [
            piece for piece, source in self.done.items() if task.source in self._piece_sources.get(piece, {source})
        ]
        self.forget(stale)
        return stale

    def _ended(self, task: RangeTask) -> tuple[SourceState, _PieceState]:
        begun = self._begun[task.piece]
        begun.busy.remove(task.source)
        begun.requested -= task.span.size
        state = self.sources[task.source]
        state.busy -= 1
        return state, begun

    def _last(self, state: SourceState) -> bool:
        return all(other is state or other.dropped or not other.ranges for other in self.sources)

    def _usable(self, state: SourceState, now: float) -> bool:
        if not state.identified and state.busy:
            return now - state.since < _INTRODUCTION
        return state.ranges and not state.dropped and state.resting_until <= now and state.busy < state.room
