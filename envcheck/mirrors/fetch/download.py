"""Download one file: in parts from the sources in order, with its hash behind them; or whole from one source."""

import bisect
import collections
import contextlib
import dataclasses
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final

from envcheck.errors import PromiseError, UnavailableError
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
from envcheck.mirrors.net.network_errors import (
    BrokenError,
    NetworkError,
    SlowError,
    StatusError,
    is_missing,
    joined_advice,
)
from envcheck.mirrors.net.responses import HttpResponse, WholeFileError, file_size
from envcheck.mirrors.profiles.model import host_of

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
_CHUNK: Final = 1 << 17
_CUT: Final = "the response ended too early"


class _WrongHashError(NetworkError):
    """A source whose file is another one."""


class _DoubtfulError(BrokenError):
    """A source of another file, or of a part of the right one: it told no size (github.com/NixOS/nix/issues/4533)."""

    retry = True


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


class FileDownload:
    """The download of one file. `moved`: the bytes that came over the network; `found`: those of an earlier run."""

    def __init__(self, target: WantedFile, options: TransferOptions, part: Path, file: int) -> None:
        self._target, self._options, self._part, self._file = target, options, part, file
        small = target.expected is not None and target.expected <= MIB
        self.small = small and not os.fstat(file).st_size  # else an earlier run has begun it in parts
        self._changed = threading.Condition()
        self._open: set[HttpResponse] = set()
        self._error: BaseException | None = None
        self._over = False
        self._sources = [_Source(url, options.connections) for url in target.urls]
        self.size = self.moved = self.found = self._present = 0
        self._piece, self._saved = MIB, time.monotonic()
        self._lacking: list[int] = []  # bytes by piece
        self._gaps: list[tuple[int, int]] = []
        self._hashed = 0  # pieces

    def run(self) -> None:
        """Download the file and verify its hash.

        A small file comes whole from the first source that has it, and so does one whose size no source tells. Any
        other comes in parts from all sources together, and then whole if they ignore ranges or their parts have a wrong
        hash. Raise PromiseError if a source has another file, UnavailableError if none gives it.
        """
        size, journal = self._target.size, disk.read_journal(self._part, self._target.digest)
        if size is None and not self.small:
            size = journal.size if journal.pieces else self._reported_size()
        if self.small or size is None:
            self._run_whole(self._target.urls)
            return
        self._begin(journal, size)
        self._hasher = self._target.hasher(self.size)
        try:
            self._run_threads(self._work, min(self._options.connections, len(self._gaps)))
        finally:
            self._save(final=True)
        if self._hashed < len(self._lacking):
            whole = [source.url for source in self._sources if not source.ranges and not source.dropped]
            if self._target.size is None and not self._present:
                # The size that the first source told may be that of another file, and the others were dropped for it.
                whole += [url for url in self._target.urls if url not in whole]
            if not whole:
                raise self._no_source_error({source.url: source.error for source in self._sources})
            self._run_whole(whole)
        elif self._hasher.hexdigest() != self._target.digest:
            others = [source.url for source in self._sources if source.gave < self.size] or list(self._target.urls)
            self._options.note(f"the file has a wrong hash: fetching all of it from {host_of(others[0])}")
            self._run_whole(others, wrong=True)

    def _run_whole(self, urls: Sequence[str], *, wrong: bool = False) -> None:
        """Download all of the file from the first source that has it. `wrong`: it was another one before."""
        if wrong:
            disk.journal_path(self._part).unlink(missing_ok=True)
        self._over, self.found, self._lacking, self._gaps = False, 0, [], []
        failed: Mapping[str, NetworkError] = {}

        def work() -> None:
            nonlocal failed
            try:
                try_sources(urls, self._fetch_whole, self._options.stop)
            except NoSourceError as error:
                failed = error.reasons

        self._run_threads(work, 1)
        if failed and (wrong or any(isinstance(error, _WrongHashError) for error in failed.values())):
            disk.discard(self._part)
            kind = "sha256" if self._target.sha256 else "git's sha1"
            message = f"{self._target.path.name}: no source has the file with {kind} {self._target.digest[:12]}..."
            fix = "check the hash, and compare the mirrors with the origin: they may serve wrong bytes"
            raise PromiseError(message, fix=fix)
        if failed or not urls:
            raise self._no_source_error({source.url: failed.get(source.url, source.error) for source in self._sources})

    def sources(self) -> dict[str, int]:
        """Return the bytes that came from each host, and those of an earlier run."""
        gave: collections.Counter[str] = collections.Counter()
        for source in self._sources:
            gave[host_of(source.url)] += source.gave
        return +(gave + collections.Counter({"an earlier run": self.found}))

    def _begin(self, journal: disk.Journal, size: int) -> None:
        """Give the file its size, and keep the pieces of an earlier run; they are of the size that was right then."""
        piece = MIB
        while size > piece * _MOST_PIECES:
            piece *= 2
        present = journal.pieces if (journal.size, journal.piece) == (size, piece) else set()
        disk.reserve(self._file, size, self._part)
        starts = range(0, size, piece)
        self.size, self._piece = size, piece
        self._lacking = [0 if n in present else min(piece, size - start) for n, start in enumerate(starts)]
        self._gaps = [(start, start + lacking) for start, lacking in zip(starts, self._lacking, strict=True) if lacking]
        self._present = self.found = size - sum(self._lacking)

    def _reported_size(self) -> int | None:
        """Return the size that the first source reports that reports any. Raise UnavailableError if none has the file.

        None: those that have it send it without its size, as codeload.github.com does.
        """

        def ask(url: str) -> int:
            with self._options.client.get(url, {"Range": "bytes=0-0"}) as answer:
                size = file_size(answer.status, answer.headers)
                if size is None and answer.status in {HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT}:
                    raise WholeFileError
                if size is None:
                    raise StatusError(answer.status, answer.headers)
                return size

        try:
            return try_sources(self._target.urls, ask, self._options.stop)[0]
        except NoSourceError as error:
            if any(isinstance(reason, WholeFileError) for reason in error.reasons.values()):
                return None
            raise self._no_source_error(error.reasons) from error

    def _run_threads(self, work: Callable[[], None], number: int) -> None:
        """Run this work in threads until all have ended; raise the error of one, or what ended the waiting."""
        self._working = number

        def worker() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 (raised below: a thread that dies unheard leaves it waiting)
                known = disk.disk_error(error, self._target.path, self.size) if isinstance(error, OSError) else error
                self._error, self._over = self._error or known, True
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
            with self._changed:
                self._over = True
                self._changed.notify_all()
                for answer in self._open:
                    answer.abort()
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
                start = self._hashed * self._piece
                disk.feed(self._hasher, self._file, start, min(start + self._piece, self.size))
                self._hashed += 1
            if time.monotonic() - reported >= _TICK:
                reported = time.monotonic()
                self._options.progress(self._present, self.size)

    def _is_next_present(self) -> bool:
        return self._hashed < len(self._lacking) and not self._lacking[self._hashed]

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
    def _answer(self, url: str, headers: Mapping[str, str]) -> Iterator[HttpResponse]:
        """Yield the response to a request; the end of all aborts it. Raise StoppedError if all is over before."""
        while not self._options.slots.acquire(timeout=_TICK):
            if self._is_over():
                raise StoppedError
        try:
            with self._options.client.get(url, headers) as answer:
                with self._changed:
                    if self._over:
                        raise StoppedError
                    self._open.add(answer)
                try:
                    yield answer
                finally:
                    with self._changed:
                        self._open.discard(answer)
        finally:
            self._options.slots.release()

    def _request(self, part: _Part) -> None:
        """Fetch a part; write it to its place in the file. What comes beyond it is not read."""
        with self._answer(part.source.url, {"Range": f"bytes={part.at}-{part.stop - 1}"}) as answer:
            answer.demand_range(part.at, part.stop, self.size)
            with self._changed:
                part.source.answered = True
                self._changed.notify_all()
            for chunk in answer.chunks(_CHUNK):
                fresh = chunk[: part.stop - part.at]
                while fresh:
                    piece = part.at // self._piece
                    left = (piece + 1) * self._piece - part.at
                    head, fresh = fresh[:left], fresh[left:]
                    disk.write(self._file, head, part.at)
                    part.at += len(head)
                    with self._changed:
                        self.moved += len(head)
                        self._present += len(head)
                        part.source.gave += len(head)
                        self._lacking[piece] -= len(head)
                        if not self._lacking[piece]:
                            self._changed.notify_all()
                if part.at == part.stop or self._is_over():
                    return
        raise BrokenError(_CUT)

    def _fetch_whole(self, url: str) -> None:
        with self._answer(url, {}) as answer:
            answer.demand_ok()
            length = file_size(answer.status, answer.headers)
            size = self._target.size if length is None else length
            if self._target.size not in {None, size}:
                answer.fail_as_another(f"its file has {size} bytes, not {self._target.size}")
            self.size, hint = size or 0, self._target.hint
            free = disk.reserve(self._file, self.size, self._part)
            # A body without a length may have no end. No wheel has 64 GiB, and no page's claim is that wrong.
            most = min(free, 2 * hint + MIB if hint else 64 << 30) if size is None else size
            hasher, at = self._target.hasher(self.size), 0
            for chunk in answer.chunks(_CHUNK):
                fresh = chunk if size is None else chunk[: size - at]
                if at + len(fresh) > most:
                    answer.fail_as_another(f"it sends more than {most} bytes and tells no size ({free} are free)")
                disk.write(self._file, fresh, at)
                hasher.update(fresh)
                at = self._present = at + len(fresh)
                self.size = max(self.size, at)
                self.moved += len(fresh)
                if at == size or self._is_over():
                    break
        if at < self.size or (size is None and self._is_over()):
            broken = BrokenError(_CUT)
            broken.retry = not self._is_over()
            raise broken
        if hasher.hexdigest() != self._target.digest:
            more, kind = (", or was cut off", _DoubtfulError) if size is None else ("", _WrongHashError)
            answer.fail_as_another(f"its file has another hash{more}", kind=kind, head=os.pread(self._file, _CHUNK, 0))
        for source in self._sources:
            source.gave = self.size if source.url == url else 0

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
        lasting = not error.retry and not isinstance(error, BrokenError) and not source.gave
        often = source.failures > (SLOW_ANSWERS - 1 if isinstance(error, SlowError) else len(BACKOFF))
        source.dropped = source.dropped or lasting or often or source.waited > LONGEST_WAIT
        rest = BACKOFF[min(source.failures, len(BACKOFF)) - 1] if error.after is None else error.after
        source.resting_until = max(source.resting_until, now + min(rest, LONGEST_WAIT))
        if source.dropped or (error.after or 0.0) >= 1:
            self._options.note(f"{host_of(source.url)}: {error}")

    def _save(self, *, final: bool = False) -> None:
        """Note the complete pieces in the journal from time to time, when their bytes are on the disk."""
        with self._changed:
            if not final and time.monotonic() - self._saved < _SAVE_SECONDS:
                return
            self._saved = math.inf  # no other thread saves meanwhile
            pieces = {number for number, lacking in enumerate(self._lacking) if not lacking}
        if pieces:
            os.fdatasync(self._file)
            disk.write_journal(self._part, disk.Journal(self._target.digest, self.size, self._piece, pieces))
        self._saved = time.monotonic()

    def _no_source_error(self, reasons: Mapping[str, NetworkError | None]) -> UnavailableError:
        errors = list(reasons.values())
        told = "; ".join(f"{host_of(url)}: {error or 'not asked'}" for url, error in reasons.items())
        message = f"{self._target.path.name}: no source can provide it: {told or 'no source is known'}"
        kept = ": the pieces that are whole are kept" if 0 in self._lacking else ""
        again = "" if errors and all(map(is_missing, errors)) else f", or run it again{kept}"
        fix = joined_advice((error.fix for error in errors if error), again, other=self._target.other_fix)
        return no_answer_error(message, fix, errors)
