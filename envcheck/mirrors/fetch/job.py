"""One file under way: threads that take pieces from the board, and the journal and hash that follow them."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Final

from envcheck.errors import UnavailableError
from envcheck.mirrors.fetch import answers, disk, journal
from envcheck.mirrors.fetch.mend import mend, nobody
from envcheck.mirrors.fetch.pace import Pace
from envcheck.mirrors.fetch.pieces import Board, Failure, Span, Task, piece_size
from envcheck.mirrors.fetch.verify import Follower, digest_of
from envcheck.mirrors.fetch.wanted import Means, StoppedError, Wanted
from envcheck.mirrors.http import Answer, NetworkError
from envcheck.mirrors.urls import host_of

# What a power cut may cost: the pieces of this many seconds.
_SYNC_SECONDS: Final = 2.0
_TICK: Final = 0.5
# How often a source without ranges is asked for the whole file.
_STREAMS: Final = 3


class Job:
    """One file under way."""

    def __init__(self, wanted: Wanted, means: Means, part: Path, file: int, size: int) -> None:
        self._wanted, self._means, self._file, self.size = wanted, means, file, size
        header = journal.Header(wanted.sha256, size, piece_size(size), journal.boot_id())
        known = disk.known(part, header)
        disk.reserve(file, size, part)
        if known:
            os.fdatasync(file)  # the new journal says of them that they are on the disk
        names = {journal.source_id(url): index for index, url in enumerate(wanted.urls)}
        done = {piece: names.get(source, -1) for piece, source in known.items()}
        self._piece_size = header.piece
        self._board = Board(size, header.piece, len(wanted.urls), per_source=means.connections, done=done)
        self._journal = journal.Journal(disk.journal_of(part), header, known)
        self._follower = Follower(file, self._board.spans)
        self._follower.arrived([*self._board.done])
        self.found = self._board.received
        self.moved = 0
        self._changed = threading.Condition()
        self._open: set[Answer] = set()
        self._stopped: BaseException | None = None
        self._ended = False
        self._working = 0

    def run(self) -> None:
        """Have every byte there and of the right hash, or raise PromiseError or UnavailableError."""
        workers = range(min(self._means.connections, len(self._board.spans) - len(self._board.done)))
        self._working = len(workers)
        threads = [self._thread(self._work) for _ in workers]
        keeper = self._thread(self._sync)
        for thread in [*threads, keeper]:
            thread.start()
        try:
            self._watch()
        finally:
            self._end(keeper, threads)
        if self._stopped is not None:
            raise self._stopped
        self._hold_on()
        if not self._board.complete:
            self._stream_or_give_up()
        if self._hashed() != self._wanted.sha256:
            self._mend()

    def sources(self) -> dict[str, int]:
        """Return the bytes that each host gave."""
        given: dict[str, int] = {}
        for piece, source in self._board.done.items():
            host = host_of(self._wanted.urls[source]) if source >= 0 else "an earlier run"
            given[host] = given.get(host, 0) + self._board.spans[piece].size
        return given

    def close(self) -> None:
        """End what runs beside it."""
        self._follower.stop()
        self._journal.close()

    def _watch(self) -> None:
        working = True
        while working:
            with self._changed:
                self._changed.wait_for(lambda: not self._working, _TICK)
                working, there = self._working > 0, self._board.received
            self._hold_on()
            self._means.progress(there, self.size)

    def _hold_on(self) -> None:
        if self._means.stop.is_set():
            raise StoppedError

    def _over(self) -> bool:
        return self._ended or self._means.stop.is_set()

    def _end(self, keeper: threading.Thread, threads: list[threading.Thread]) -> None:
        with self._changed:
            self._ended = True
            for answer in self._open:
                answer.abort()
            self._changed.notify_all()
        for thread in [keeper, *threads]:
            thread.join()

    def _thread(self, body: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=self._guarded, args=(body,), daemon=True, name=f"fetch {self._wanted.path.name}")

    def _guarded(self, body: Callable[[], None]) -> None:
        """Run a thread's body; what it raises is raised where the job was begun."""
        try:
            body()
        except Exception as error:  # noqa: BLE001 (raised again in `run`: a thread that dies unheard leaves it waiting)
            told = disk.disk_error(error, self._wanted.path, self.size) if isinstance(error, OSError) else error
            with self._changed:
                self._stopped = told
                self._ended = True
                self._changed.notify_all()

    def _work(self) -> None:
        try:
            while (task := self._next()) is not None:
                failure, etag = self._piece(task)
                self._settle(task, failure, etag)
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    def _next(self) -> Task | None:
        with self._changed:
            while not self._over() and not self._board.complete:
                task = self._board.take(time.monotonic())
                if task is not None:
                    return task
                wait = self._board.wait(time.monotonic())
                if wait is None and not self._board.under_way:
                    return None
                # Who rests can be asked again in `wait`; who is busy says so when it no longer is.
                self._changed.wait(min(wait, _TICK) if wait else _TICK)
            return None

    @contextlib.contextmanager
    def _asked(self, source: int, headers: dict[str, str]) -> Iterator[Answer]:
        """Ask a source, in its turn; the answer can be ended by whoever ends the job."""
        url = self._wanted.urls[source]
        with self._means.slots.one(host_of(url), self._over) as mine:
            if not mine:
                message = "stopped"
                raise NetworkError(message)
            with self._means.client.get(url, headers) as answer:
                with self._changed:
                    self._open.add(answer)
                try:
                    yield answer
                finally:
                    with self._changed:
                        self._open.discard(answer)

    def _piece(self, task: Task) -> tuple[Failure | None, str | None]:
        try:
            with self._asked(task.source, answers.request(task)) as answer:
                failure = answers.judge(task, answer.status, answer.headers, self.size, time.time())
                etag = answers.etag_of(answer.headers)
                if failure is None:
                    with self._changed:
                        self._board.answered(task, etag)
                        self._changed.notify_all()
                    failure = self._receive(task.span, answer)
                return failure, etag
        except NetworkError as error:
            return Failure(str(error)), None

    def _receive(self, span: Span, answer: Answer) -> Failure | None:
        at, pace = span.start, Pace()
        for chunk in pace.timed(answer.chunks(self._means.limiter.chunk)):
            if at + len(chunk) > span.stop:
                return Failure("it sends more than was asked for", drop=True)
            self._means.limiter.take(len(chunk), self._means.stop)
            disk.write(self._file, chunk, at)
            at += len(chunk)
            with self._changed:
                self.moved += len(chunk)
            if self._over():
                return Failure("stopped")
            if pace.drips:
                return Failure("it hardly moves")
        return None if at == span.stop else Failure("it ended before its length")

    def _settle(self, task: Task, failure: Failure | None, etag: str | None) -> None:
        with self._changed:
            if failure is None and self._board.arrived(task, etag):
                self._keep(task.piece, task.source)
            elif failure is not None and not self._over():
                self._forget(self._board.failed(task, failure, time.monotonic()))
                known = self._board.sources[task.source]
                if known.dropped or not known.ranges:
                    self._means.note(f"{host_of(self._wanted.urls[task.source])}: {known.reason}")
            self._changed.notify_all()

    def _keep(self, piece: int, source: int) -> None:
        self._journal.piece(piece, journal.source_id(self._wanted.urls[source]))
        self._follower.arrived([piece])

    def _forget(self, pieces: list[int]) -> None:
        if pieces:
            self._journal.forget(pieces)
            self._follower.forgotten(pieces)

    def _sync(self) -> None:
        """Tell the journal from time to time what is on the disk: after a power cut only that is believed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended, _SYNC_SECONDS)
                if self._ended:
                    return
                notes = self._journal.notes
            os.fdatasync(self._file)
            with self._changed:
                self._journal.synced(notes)

    def _stream_or_give_up(self) -> None:
        """Take what lacks from the first source that knows no ranges, in one stream."""
        whole = [index for index, known in enumerate(self._board.sources) if not known.ranges and not known.dropped]
        for source in whole:
            self._means.note(f"{host_of(self._wanted.urls[source])}: no ranges, so one stream and no going on with it")
            for _ in range(_STREAMS):
                failure = self._stream(source)
                self._hold_on()
                if failure is None:
                    return
                self._board.sources[source].reason = failure.reason
        pairs = zip(self._wanted.urls, self._board.sources, strict=True)
        reasons = "; ".join(f"{host_of(url)}: {known.reason or 'not asked'}" for url, known in pairs)
        message = f"{self._wanted.path.name}: no source gives it: {reasons or 'there is none to ask'}"
        raise UnavailableError(message, fix="name another mirror (--mirror), or run it again: what has come is kept")

    def _stream(self, source: int) -> Failure | None:
        self._ended = False
        try:
            with self._asked(source, {}) as answer:
                length = answers.total(answer.status, answer.headers)
                if answer.status != HTTPStatus.OK or length not in {None, self.size}:
                    return Failure(f"it answers {answer.status}" + (f" with {length} bytes" if length else ""))
                return self._receive_all(source, answer)
        except NetworkError as error:
            return Failure(str(error))

    def _receive_all(self, source: int, answer: Answer) -> Failure | None:
        """Write the pieces of a stream that are not there yet; each is kept as soon as it is whole."""
        at, pace = 0, Pace()
        for chunk in pace.timed(answer.chunks(self._means.limiter.chunk)):
            if at + len(chunk) > self.size:
                return Failure("it sends more than the file has")
            self._means.limiter.take(len(chunk), self._means.stop)
            self._lay(source, chunk, at)
            at += len(chunk)
            self.moved += len(chunk)
            self._means.progress(max(at, self._board.received), self.size)
            if self._over() or pace.drips:
                return Failure("it hardly moves")
        return None if at == self.size else Failure("it ended before its length")

    def _lay(self, source: int, chunk: bytes, at: int) -> None:
        while chunk:
            piece = at // self._piece_size
            span = self._board.spans[piece]
            part, chunk = chunk[: span.stop - at], chunk[span.stop - at :]
            if piece not in self._board.done:
                disk.write(self._file, part, at)
            at += len(part)
            if at == span.stop and piece not in self._board.done:
                self._board.done[piece] = source
                self._keep(piece, source)

    def _hashed(self) -> str:
        try:
            return self._follower.finish()
        except OSError as error:
            raise disk.disk_error(error, self._wanted.path, self.size) from error

    def _mend(self) -> None:
        urls, sha256 = self._wanted.urls, self._wanted.sha256
        self._means.note("the bytes do not have the hash that was asked for: looking for the bad piece")
        found = mend(urls, sha256, self._means, self._file, self._board)
        self.moved += found.moved
        if digest_of(self._file, self.size) == sha256:
            self._means.note(found.told(urls))
            return
        self._journal.forget([*self._board.done])
        raise nobody(self._wanted.path.name, sha256)
