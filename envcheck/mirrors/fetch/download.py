"""Download one file of known size: threads fetch parts of it from the sources in order, and its hash follows them."""

from __future__ import annotations

import bisect
import collections
import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final

from envcheck.errors import PromiseError, UnavailableError
from envcheck.mirrors.fetch import disk
from envcheck.mirrors.fetch.request import (
    LONGEST_WAIT,
    SLOW_ANSWERS,
    StoppedError,
    TransferOptions,
    WantedFile,
    no_answer_error,
)
from envcheck.mirrors.net.network_errors import BrokenError, NetworkError, SlowError, StatusError, joined_advice
from envcheck.mirrors.net.responses import HttpResponse, WholeFileError, etag_of, file_size
from envcheck.mirrors.net.urls import host_of

MIB: Final = 1 << 20
# A piece is what the journal notes: 1 MiB, or as much as makes this many pieces.
_MOST_PIECES: Final = 4096
# Bytes of one request, in whole pieces; fewer near the end, so that the last requests end together.
_REQUEST: Final = 8 * MIB
# Seconds that a source rests after its first failure and after later ones.
BACKOFF: Final[tuple[float, ...]] = (1.0, 2.0, 5.0, 15.0)
# Bytes that a failed request must have delivered for its source to count as working.
_MOVED: Final = 1 << 16
# Seconds that other connections wait for a source's first response before they use the next source.
_INTRODUCTION: Final = 1.0
_CROWDED: Final = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
# A power cut may lose the pieces of this many seconds.
_SAVE_SECONDS: Final = 2.0
_TICK: Final = 0.5


@dataclasses.dataclass(eq=False)
class _Source:
    """The state of a source. `room`: the requests that it may have at once. `since`: when it got its first one.

    `waited`: the seconds that it has asked to wait since it last gave something.
    """

    url: str
    room: int
    ranges: bool = True
    dropped: bool = False
    answered: bool = False
    busy: int = 0
    since: float = 0.0
    gave: int = 0
    failures: int = 0
    waited: float = 0.0
    resting_until: float = 0.0
    etags: set[str | None] = dataclasses.field(default_factory=set)
    error: NetworkError | None = None


@dataclasses.dataclass(eq=False)
class _Part:
    """The bytes from `at` up to, not including, `stop`, to fetch from a source.

    A source without ranges gives the whole file, of which the pieces in `skipped` are there already.
    """

    source: _Source
    at: int
    stop: int
    skipped: frozenset[int] | None = None


def piece_size(size: int) -> int:
    """Return the piece size in bytes for a file of `size` bytes."""
    piece = MIB
    while size > piece * _MOST_PIECES:
        piece *= 2
    return piece


class FileDownload:
    """The download of one file. `moved`: the bytes that came over the network; `found`: those of an earlier run."""

    def __init__(self, target: WantedFile, options: TransferOptions, part: Path, file: int, size: int) -> None:
        self._target, self._options, self._file, self.size = target, options, file, size
        self._piece = piece_size(size)
        noted_size, noted_piece, noted = disk.read_journal(part, target.digest)
        disk.reserve(file, size, part)
        self._journal = disk.Journal(part, target.digest, size, self._piece)
        self._changed = threading.Condition()
        self._open: set[HttpResponse] = set()
        self._error: BaseException | None = None
        self._over = False
        self._sources: list[_Source] = []
        self.moved = 0
        self._begin(noted if (noted_size, noted_piece) == (size, self._piece) else set())

    def _begin(self, present: set[int]) -> None:
        """Start with these pieces, and with none of the others."""
        count = -(-self.size // self._piece)
        self._lacking = [0 if piece in present else self._size_of(piece) for piece in range(count)]
        self._gaps = self._missing()
        self._present = self.found = self.size - sum(self._lacking)
        self._unsaved: list[int] = []
        self._saved = time.monotonic()
        self._hashed, self._hasher = 0, self._target.hasher(self.size)
        self._journal.rewrite(present)

    def _size_of(self, piece: int) -> int:
        return min(self._piece, self.size - piece * self._piece)

    def _missing(self) -> list[tuple[int, int]]:
        """Return the pieces that are not complete, as pairs of start and stop."""
        starts = (piece * self._piece for piece, lacking in enumerate(self._lacking) if lacking)
        return [(start, min(start + self._piece, self.size)) for start in starts]

    def run(self) -> None:
        """Download every byte and verify the hash, or raise PromiseError or UnavailableError.

        If the hash is wrong, the file is fetched again from each source alone that did not give all of it before.
        """
        if self._fetch(self._target.urls):
            return
        # One whose ETag changed gave parts of two files.
        wrong = [source.url for source in self._sources if source.gave == self.size and len(source.etags) == 1]
        for url in self._target.urls if self.size else ():
            if url in wrong:
                continue
            self._options.note(f"the file has a wrong hash: fetching all of it from {host_of(url)}")
            self._begin(set())
            with contextlib.suppress(UnavailableError):
                if self._fetch([url]):
                    return
        self._journal.rewrite(())
        self._unsaved.clear()
        kind = "sha256" if self._target.sha256 else "git's sha1"
        message = f"{self._target.path.name}: no source has the file with {kind} {self._target.digest[:12]}..."
        fix = "check the hash, and compare the mirrors with the origin: they may serve wrong bytes"
        raise PromiseError(message, fix=fix)

    def sources(self) -> dict[str, int]:
        """Return the bytes that came from each host, and those of an earlier run."""
        gave: collections.Counter[str] = collections.Counter()
        for source in self._sources:
            gave[host_of(source.url)] += source.gave
        return +(gave + collections.Counter({"an earlier run": self.found}))

    def close(self) -> None:
        """Note what is complete, for a later run, and close the journal."""
        self._save(final=True)
        self._journal.close()

    def _fetch(self, urls: Sequence[str]) -> bool:
        """Fetch what is missing from these sources; return whether the file then has its hash.

        Raise UnavailableError if they do not give it.
        """
        self._sources = [_Source(url, self._options.connections) for url in urls]
        self._over, self._working = False, min(self._options.connections, len(self._gaps))
        threads = [
            threading.Thread(target=self._work, daemon=True, name=f"fetch {self._target.path.name}")
            for _ in range(self._working)
        ]
        for thread in threads:
            thread.start()
        try:
            self._follow()
        finally:
            self._end()
            for thread in threads:
                thread.join()
        if self._error is not None:
            raise self._error
        if self._hashed < self.size:
            raise self._no_source_error()
        return self._hasher.hexdigest() == self._target.digest

    def _follow(self) -> None:
        """Hash the pieces in order as they arrive, and report the progress, until all threads have ended."""
        reported, working = 0.0, True
        while working or self._is_next_present():
            with self._changed:
                self._changed.wait_for(lambda: self._is_next_present() or not self._working, _TICK)
                working, present = self._working > 0, self._is_next_present()
            if self._options.stop.is_set():
                raise StoppedError
            if present:
                stop = min(self._hashed + self._piece, self.size)
                disk.feed(self._hasher, self._file, self._hashed, stop)
                self._hashed = stop
            if time.monotonic() - reported >= _TICK:
                reported = time.monotonic()
                self._options.progress(self._present, self.size)

    def _is_next_present(self) -> bool:
        return self._hashed < self.size and not self._lacking[self._hashed // self._piece]

    def _end(self) -> None:
        """Abort every open response; a waiting read gets no more bytes."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
            for answer in self._open:
                answer.abort()

    def _is_over(self) -> bool:
        return self._over or self._options.stop.is_set()

    def _work(self) -> None:
        try:
            while (part := self._next_part()) is not None:
                self._fetch_part(part)
                self._save()
        except Exception as error:  # noqa: BLE001 (raised again in `_fetch`: a thread that dies unheard leaves it waiting)
            self._error = disk.disk_error(error, self._target.path, self.size) if isinstance(error, OSError) else error
            self._over = True
        with self._changed:
            self._working -= 1
            self._changed.notify_all()

    def _next_part(self) -> _Part | None:
        """Return what to fetch next, when a source is free; None if there is nothing more to do."""
        with self._changed:
            while not self._is_over():
                now = time.monotonic()
                busy = any(source.busy for source in self._sources)
                able = [source for source in self._sources if not source.dropped]
                if not busy and not (self._gaps and able):
                    return None
                if part := self._take(able, now, busy=busy):
                    return part
                self._changed.wait(_TICK / 10 if self._gaps else _TICK)
            return None

    def _take(self, able: Sequence[_Source], now: float, *, busy: bool) -> _Part | None:
        if not self._gaps:
            return None
        ranged = [source for source in able if source.ranges]
        for source in ranged:
            if source.busy and not source.answered:
                if now - source.since < _INTRODUCTION:
                    return None  # it is about to answer its first request
            elif source.resting_until <= now and source.busy < source.room:
                return self._cut(source, now)
        if ranged or busy or not able or able[0].resting_until > now:
            return None
        whole = able[0]
        self._gaps.clear()
        whole.busy += 1
        return _Part(whole, 0, self.size, frozenset(i for i, lacking in enumerate(self._lacking) if not lacking))

    def _cut(self, source: _Source, now: float) -> _Part:
        """Take the first gap for a source, or only its beginning if other connections should fetch the rest."""
        left = self.size - self._present
        most = max(1, min(_REQUEST, left // (2 * self._options.connections)) // self._piece) * self._piece
        start, stop = self._gaps.pop(0)
        while self._gaps and self._gaps[0][0] == stop and stop - start < most:
            stop = self._gaps.pop(0)[1]
        source.since = source.since if source.busy else now
        source.busy += 1
        return _Part(source, start, stop)

    def _fetch_part(self, part: _Part) -> None:
        began, error = part.at, None
        try:
            while not self._options.slots.acquire(timeout=_TICK):
                if self._is_over():
                    return
            try:
                self._request(part)
            except NetworkError as failure:
                error = failure
            finally:
                self._options.slots.release()
        finally:
            with self._changed:
                part.source.busy -= 1
                self._give_back(part)
                if error is None:
                    part.source.failures, part.source.waited = 0, 0.0
                elif not self._is_over():
                    self._failed(part.source, error, self._brought(part, began))
                self._changed.notify_all()

    def _brought(self, part: _Part, began: int) -> int:
        """Return the bytes that a request brought. Of a whole file only new pieces stay: the next one begins at 0."""
        if part.skipped is None:
            return part.at - began
        pieces = {piece for piece, lacking in enumerate(self._lacking) if not lacking} - part.skipped
        return sum(map(self._size_of, pieces))

    def _give_back(self, part: _Part) -> None:
        """Put what a request did not bring back among the gaps."""
        if part.at == part.stop:
            return
        if part.skipped is None:
            bisect.insort(self._gaps, (part.at, part.stop))
            return
        self._gaps = self._missing()
        for start, _ in self._gaps:  # the next answer of the source begins at 0 again
            piece = start // self._piece
            partial = self._size_of(piece) - self._lacking[piece]
            self._present, part.source.gave = self._present - partial, part.source.gave - partial
            self._lacking[piece] = self._size_of(piece)

    def _request(self, part: _Part) -> None:
        headers = {"Range": f"bytes={part.at}-{part.stop - 1}"} if part.skipped is None else {}
        with self._options.client.get(part.source.url, headers) as answer:
            with self._changed:
                if self._over:
                    return
                self._open.add(answer)
            try:
                self._check(part, answer)
                self._receive(part, answer)
            finally:
                with self._changed:
                    self._open.discard(answer)

    def _check(self, part: _Part, answer: HttpResponse) -> None:
        """Raise NetworkError unless the response is what was asked for; note what it says about its source."""
        if part.skipped is None:
            answer.demand_range(part.at, part.stop, self.size)
        else:
            answer.demand_ok()
            length = file_size(answer.status, answer.headers)
            if length not in {None, self.size}:
                message = f"its file has {length} bytes, not {self.size}"
                raise NetworkError(message)
        with self._changed:
            part.source.answered = True
            part.source.etags.add(etag_of(answer.headers))
            self._changed.notify_all()

    def _receive(self, part: _Part, answer: HttpResponse) -> None:
        """Write the response to its place in the file; what comes beyond it is not read."""
        for chunk in answer.chunks(self._options.limiter.chunk):
            fresh = chunk[: part.stop - part.at]
            self._options.limiter.take(len(fresh), self._options.stop)
            while fresh:
                piece = part.at // self._piece
                head, fresh = fresh[: (piece + 1) * self._piece - part.at], fresh[(piece + 1) * self._piece - part.at :]
                if part.skipped is None or piece not in part.skipped:
                    disk.write(self._file, head, part.at)
                    self._arrived(part.source, piece, len(head))
                part.at += len(head)
            if part.at == part.stop or self._is_over():
                return
        message = "the response ended too early"
        raise BrokenError(message)

    def _arrived(self, source: _Source, piece: int, size: int) -> None:
        with self._changed:
            self.moved += size
            self._present += size
            source.gave += size
            self._lacking[piece] -= size
            if not self._lacking[piece]:
                self._unsaved.append(piece)
                self._changed.notify_all()

    def _failed(self, source: _Source, error: NetworkError, got: int) -> None:
        """Note a failure: its source rests, longer each time, or is dropped.

        Requests that fail together have failed once. A source that has given something is not dropped at once, whatever
        it says now: a signed link may have run out.
        """
        now, source.error = time.monotonic(), error
        if isinstance(error, WholeFileError):
            source.ranges = False
            self._options.note(f"{host_of(source.url)}: {error}")
            return
        if isinstance(error, StatusError) and error.status in _CROWDED and source.busy:
            source.room = min(source.room, source.busy)
            if error.after is None or error.after > LONGEST_WAIT:
                return  # a slot is free when another request has ended
        elif source.resting_until <= now:
            source.failures = 1 if got >= _MOVED else source.failures + 1
            source.waited += error.after or 0.0
        slow = isinstance(error, SlowError)
        if slow and source.gave < MIB:
            source.room = 1  # its bandwidth may be too small for several
        lasting = not error.retry and not isinstance(error, BrokenError) and not source.gave
        often = source.failures > (SLOW_ANSWERS - 1 if slow else len(BACKOFF))
        source.dropped = source.dropped or lasting or often or source.waited > LONGEST_WAIT
        rest = BACKOFF[min(source.failures, len(BACKOFF)) - 1] if error.after is None else error.after
        source.resting_until = max(source.resting_until, now + min(rest, LONGEST_WAIT))
        if source.dropped or (error.after or 0.0) >= 1:
            self._options.note(f"{host_of(source.url)}: {error}")

    def _save(self, *, final: bool = False) -> None:
        """Note the complete pieces in the journal from time to time, when their bytes are on the disk."""
        with self._changed:
            if not self._unsaved or not (final or time.monotonic() - self._saved >= _SAVE_SECONDS):
                return
            pieces, self._unsaved, self._saved = self._unsaved, [], time.monotonic()
        os.fdatasync(self._file)
        self._journal.add(pieces)

    def _no_source_error(self) -> UnavailableError:
        errors = [source.error for source in self._sources]
        reasons = "; ".join(f"{host_of(source.url)}: {source.error or 'not asked'}" for source in self._sources)
        message = f"{self._target.path.name}: no source can provide it: {reasons or 'no source is known'}"
        kept = ": the pieces that are whole are kept" if not all(self._lacking) else ""
        fix = joined_advice((e.fix for e in errors if e), f", or run it again{kept}", other=self._target.other_fix)
        return no_answer_error(message, fix, errors)
