"""Download one file of known size: threads fetch parts of it from the sources in order, and its hash follows them."""

from __future__ import annotations

import bisect
import collections
import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final

from envcheck.errors import UnavailableError
from envcheck.mirrors.fetch import disk
from envcheck.mirrors.fetch.request import (
    LONGEST_WAIT,
    SLOW_ANSWERS,
    NoSourceError,
    StoppedError,
    TransferOptions,
    WantedFile,
    no_answer_error,
    try_sources,
)
from envcheck.mirrors.net.network_errors import BrokenError, NetworkError, SlowError, StatusError, joined_advice
from envcheck.mirrors.net.responses import HttpResponse, WholeFileError, file_size
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
_CUT: Final = "the response ended too early"


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
    error: NetworkError | None = None


@dataclasses.dataclass(eq=False)
class _Part:
    """The bytes from `at` up to, not including, `stop`, to fetch from a source."""

    source: _Source
    at: int
    stop: int


def piece_size(size: int) -> int:
    """Return the piece size in bytes for a file of `size` bytes."""
    piece = MIB
    while size > piece * _MOST_PIECES:
        piece *= 2
    return piece


class FileDownload:
    """The download of one file. `moved`: the bytes that came over the network; `found`: those of an earlier run.

    `sound`: the file has its hash.
    """

    def __init__(
        self, target: WantedFile, options: TransferOptions, part: Path, file: int, size: int, urls: Sequence[str]
    ) -> None:
        self._target, self._options, self._file, self.size = target, options, file, size
        self._piece = piece_size(size)
        noted_size, noted_piece, noted = disk.read_journal(part, target.digest)
        present = noted if (noted_size, noted_piece) == (size, self._piece) else set()
        disk.reserve(file, size, part)
        self._journal = disk.Journal(part, target.digest, size, self._piece)
        self._journal.rewrite(present)
        self._changed = threading.Condition()
        self._open: set[HttpResponse] = set()
        self._error: BaseException | None = None
        self._over = False
        self._sources = [_Source(url, options.connections) for url in urls]
        starts = range(0, size, self._piece)
        self._lacking = [0 if n in present else min(self._piece, size - start) for n, start in enumerate(starts)]
        self._gaps = [(start, start + lacking) for start, lacking in zip(starts, self._lacking, strict=True) if lacking]
        self._present = self.found = size - sum(self._lacking)
        self._unsaved: list[int] = []
        self._saved = time.monotonic()
        self._hashed, self._hasher = 0, target.hasher(size)
        self.moved = 0
        self.sound = False

    def run(self) -> None:
        """Download every byte and compare the hash. Raise UnavailableError if no source gives it."""
        self._run_threads(self._work, min(self._options.connections, len(self._gaps)))
        whole = [source.url for source in self._sources if not source.ranges and not source.dropped]
        if self._hashed < self.size and whole:
            self._over, self.found = False, 0
            self._run_threads(lambda: self._work_whole(whole), 1)
        if self._hashed < self.size:
            raise self._no_source_error()
        self.sound = self._hasher.hexdigest() == self._target.digest

    def whole_sources(self) -> set[str]:
        """Return the URLs that gave all of the file."""
        return {source.url for source in self._sources if source.gave == self.size}

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

    def _run_threads(self, work: Callable[[], None], number: int) -> None:
        """Run this work in threads until all have ended; raise the error of one, or what ended the waiting."""
        self._working = number

        def worker() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 (raised below: a thread that dies unheard leaves it waiting)
                known = disk.disk_error(error, self._target.path, self.size) if isinstance(error, OSError) else error
                self._error, self._over = known, True
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

        name = f"fetch {self._target.path.name}"
        threads = [threading.Thread(target=worker, daemon=True, name=name) for _ in range(number)]
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
        with self._changed:
            self._over = True
            self._changed.notify_all()
            for answer in self._open:
                answer.abort()

    def _is_over(self) -> bool:
        return self._over or self._options.stop.is_set()

    def _work(self) -> None:
        while (part := self._next_part()) is not None:
            self._fetch_part(part)
            self._save()

    def _next_part(self) -> _Part | None:
        with self._changed:
            while not self._is_over():
                able = [source for source in self._sources if source.ranges and not source.dropped]
                if not any(source.busy for source in self._sources) and not (self._gaps and able):
                    return None
                if self._gaps and (part := self._take(able, time.monotonic())):
                    return part
                self._changed.wait(_TICK / 10 if self._gaps else _TICK)
            return None

    def _take(self, able: Sequence[_Source], now: float) -> _Part | None:
        """Take the first gap for the first free source, or only its beginning if others should fetch the rest."""
        for source in able:
            if source.busy and not source.answered:
                if now - source.since < _INTRODUCTION:
                    return None  # it is about to answer its first request
            elif source.resting_until <= now and source.busy < source.room:
                left = self.size - self._present
                most = max(1, min(_REQUEST, left // (2 * self._options.connections)) // self._piece) * self._piece
                start, stop = self._gaps.pop(0)
                while self._gaps and self._gaps[0][0] == stop and stop - start < most:
                    stop = self._gaps.pop(0)[1]
                source.since = source.since if source.busy else now
                source.busy += 1
                return _Part(source, start, stop)
        return None

    def _fetch_part(self, part: _Part) -> None:
        began, error = part.at, None
        try:
            self._request(part)
        except NetworkError as failure:
            error = failure
        finally:
            with self._changed:
                part.source.busy -= 1
                if part.at < part.stop:
                    bisect.insort(self._gaps, (part.at, part.stop))
                if error is None:
                    part.source.failures, part.source.waited = 0, 0.0
                elif not self._is_over():
                    self._failed(part.source, error, part.at - began)
                self._changed.notify_all()

    @contextlib.contextmanager
    def _answer(self, url: str, headers: Mapping[str, str]) -> Iterator[HttpResponse | None]:
        """Yield the response to a request, which `_end` can abort; None if all is over before."""
        while not self._options.slots.acquire(timeout=_TICK):
            if self._is_over():
                yield None
                return
        try:
            with self._options.client.get(url, headers) as answer:
                with self._changed:
                    self._open.add(answer)
                try:
                    yield None if self._over else answer
                finally:
                    with self._changed:
                        self._open.discard(answer)
        finally:
            self._options.slots.release()

    def _request(self, part: _Part) -> None:
        """Fetch a part; write it to its place in the file. What comes beyond it is not read."""
        with self._answer(part.source.url, {"Range": f"bytes={part.at}-{part.stop - 1}"}) as answer:
            if answer is None:
                return
            answer.demand_range(part.at, part.stop, self.size)
            with self._changed:
                part.source.answered = True
                self._changed.notify_all()
            for chunk in self._chunks(answer):
                fresh = chunk[: part.stop - part.at]
                while fresh:
                    piece = part.at // self._piece
                    left = (piece + 1) * self._piece - part.at
                    head, fresh = fresh[:left], fresh[left:]
                    disk.write(self._file, head, part.at)
                    self._arrived(part.source, piece, len(head))
                    part.at += len(head)
                if part.at == part.stop or self._is_over():
                    return
        raise BrokenError(_CUT)

    def _chunks(self, answer: HttpResponse) -> Iterator[bytes]:
        for chunk in answer.chunks(self._options.limiter.chunk):
            self._options.limiter.take(len(chunk), self._options.stop)
            yield chunk

    def _arrived(self, source: _Source, piece: int, size: int) -> None:
        with self._changed:
            self.moved += size
            self._present += size
            source.gave += size
            self._lacking[piece] -= size
            if not self._lacking[piece]:
                self._unsaved.append(piece)
                self._changed.notify_all()

    def _work_whole(self, urls: Sequence[str]) -> None:
        """Fetch all of the file from the first source that gives it, each of which ignores ranges."""
        try:
            try_sources(urls, self._fetch_whole, self._options.stop)
        except NoSourceError as error:
            for source in self._sources:
                source.error = error.reasons.get(source.url, source.error)

    def _fetch_whole(self, url: str) -> None:
        hasher, at = self._target.hasher(self.size), 0
        with self._answer(url, {}) as answer:
            if answer is None:
                return
            answer.demand_ok()
            length = file_size(answer.status, answer.headers)
            if length not in {None, self.size}:
                message = f"its file has {length} bytes, not {self.size}"
                raise NetworkError(message)
            for chunk in self._chunks(answer):
                fresh = chunk[: self.size - at]
                disk.write(self._file, fresh, at)
                hasher.update(fresh)
                at = self._present = at + len(fresh)
                self.moved += len(fresh)
                if at == self.size or self._is_over():
                    break
        if at < self.size:
            broken = BrokenError(_CUT)
            broken.retry = not self._is_over()
            raise broken
        for source in self._sources:
            source.gave = self.size if source.url == url else 0
        self._hashed, self._hasher = self.size, hasher

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
