"""One file under way: threads that take pieces from the board, and the journal and hash that follow them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Final

from envcheck.errors import PromiseError, UnavailableError
from envcheck.mirrors.fetch import answers, disk, journal
from envcheck.mirrors.fetch.mend import mend
from envcheck.mirrors.fetch.pieces import MIB, Board, Failure, Span, Task, piece_size, spans
from envcheck.mirrors.fetch.verify import Follower, digest_of
from envcheck.mirrors.fetch.wanted import Means, Wanted, label
from envcheck.mirrors.http import NetworkError

# What a power cut may cost: the pieces of this many seconds.
_SYNC_SECONDS: Final = 2.0
_TICK: Final = 0.5


class Job:
    """One file under way."""

    def __init__(self, wanted: Wanted, means: Means, part: Path, file: int, size: int) -> None:
        self._wanted, self._means, self._file, self._size = wanted, means, file, size
        header = journal.Header(wanted.sha256, size, piece_size(size), journal.boot_id())
        known = _known(part, header)
        disk.reserve(file, size, part)
        names = {url: index for index, url in enumerate(wanted.urls)}
        done = {piece: names.get(source, -1) for piece, source in known.items()}
        self._board = Board(size, header.piece, len(wanted.urls), per_source=means.connections, done=done)
        self._journal = journal.Journal(disk.journal_of(part), header, known)
        self._follower = Follower(file, self._board.spans)
        self._follower.arrived([*self._board.done])
        self.found = self._board.received
        self.moved = 0
        self._changed = threading.Condition()
        self._stopped: BaseException | None = None
        self._ended = False

    def run(self) -> None:
        """Have every byte there and of the right hash, or raise PromiseError or UnavailableError."""
        threads = [threading.Thread(target=self._guarded, args=(self._work,), daemon=True) for _ in self._workers()]
        keeper = threading.Thread(target=self._guarded, args=(self._sync,), daemon=True)
        for thread in [*threads, keeper]:
            thread.start()
        try:
            self._watch(threads)
        finally:
            self._end(keeper, threads)
        if self._stopped is not None:
            raise self._stopped
        if not self._board.complete:
            self._stream_or_give_up()
        if self._follower.finish() != self._wanted.sha256:
            self._mend()

    def sources(self) -> dict[str, int]:
        """Return the bytes that each host gave."""
        given: dict[str, int] = {}
        for piece, source in self._board.done.items():
            host = label(self._wanted.urls[source]) if source >= 0 else "an earlier run"
            given[host] = given.get(host, 0) + self._board.spans[piece].size
        return given

    def close(self) -> None:
        """End what runs beside it."""
        self._follower.stop()
        self._journal.close()

    def _workers(self) -> range:
        return range(min(self._means.connections, len(self._board.spans) - len(self._board.done)))

    def _watch(self, threads: list[threading.Thread]) -> None:
        while any(thread.is_alive() for thread in threads):
            with self._changed:
                self._changed.wait(_TICK)
                there = self._board.received
            self._means.progress(there, self._size)

    def _end(self, keeper: threading.Thread, threads: list[threading.Thread]) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in [keeper, *threads]:
            thread.join()

    def _guarded(self, body: Callable[[], None]) -> None:
        """Run a thread's body; what it raises is raised where the job was begun."""
        try:
            body()
        except OSError as error:
            with self._changed:
                self._stopped = disk.disk_error(error, self._wanted.path, self._size)
                self._ended = True
                self._changed.notify_all()

    def _work(self) -> None:
        while (task := self._next()) is not None:
            failure, etag = self._piece(task)
            self._settle(task, failure, etag)

    def _next(self) -> Task | None:
        with self._changed:
            while not self._ended and not self._board.complete:
                task = self._board.take(time.monotonic())
                if task is not None:
                    return task
                wait = self._board.wait(time.monotonic())
                if wait is None and not self._board.under_way:
                    return None
                self._changed.wait(_TICK if wait is None else min(max(wait, 0.01), _TICK))
            return None

    def _piece(self, task: Task) -> tuple[Failure | None, str | None]:
        try:
            with self._means.client.get(self._wanted.urls[task.source], answers.request(task)) as answer:
                failure = answers.judge(task, answer.status, answer.headers, self._size, time.time())
                etag = answers.etag_of(answer.headers)
                if failure is None:
                    self._answered(task, etag)
                    failure = self._receive(task.span, answer.chunks(MIB))
                return failure, etag
        except NetworkError as error:
            return Failure(str(error)), None

    def _answered(self, task: Task, etag: str | None) -> None:
        with self._changed:
            self._board.answered(task, etag)
            self._changed.notify_all()

    def _receive(self, span: Span, chunks: Iterator[bytes]) -> Failure | None:
        at = span.start
        for chunk in chunks:
            if at + len(chunk) > span.stop:
                return Failure("it sends more than was asked for", drop=True)
            self._means.limiter.take(len(chunk))
            disk.write(self._file, chunk, at)
            at += len(chunk)
            self.moved += len(chunk)
            if self._ended:
                return Failure("stopped")
        return None if at == span.stop else Failure("it ended before its length")

    def _settle(self, task: Task, failure: Failure | None, etag: str | None) -> None:
        with self._changed:
            if failure is None and self._board.arrived(task, etag):
                self._journal.piece(task.piece, self._wanted.urls[task.source])
                self._follower.arrived([task.piece])
            elif failure is not None:
                self._forget(self._board.failed(task, failure, time.monotonic()))
                self._say(task.source)
            self._changed.notify_all()

    def _forget(self, pieces: list[int]) -> None:
        if pieces:
            self._journal.forget(pieces)
            self._follower.forgotten(pieces)

    def _say(self, source: int) -> None:
        known = self._board.sources[source]
        if known.dropped or not known.ranges:
            self._means.note(f"{label(self._wanted.urls[source])}: {known.reason}")

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
        """Take the whole file from the first source that knows no ranges, in one stream."""
        whole = [index for index, known in enumerate(self._board.sources) if not known.ranges and not known.dropped]
        for source in whole:
            self._means.note(f"{label(self._wanted.urls[source])}: no ranges, so one stream and no going on with it")
            failure = self._stream(source)
            if failure is None:
                return
            self._board.sources[source].reason = failure.reason
        message = f"{self._wanted.path.name}: no source gives it: {self._reasons()}"
        raise UnavailableError(message, fix="name another mirror (--mirror), or run it again: what has come is kept")

    def _stream(self, source: int) -> Failure | None:
        everything = Span(0, self._size)
        try:
            with self._means.client.get(self._wanted.urls[source]) as answer:
                if answer.status != HTTPStatus.OK:
                    return Failure(f"it answers {answer.status}")
                failure = self._receive_stream(everything, answer.chunks(MIB))
        except NetworkError as error:
            return Failure(str(error))
        if failure is None:
            self._board.done = dict.fromkeys(range(len(self._board.spans)), source)
            self._follower.forgotten([*self._board.done])
            self._follower.arrived([*self._board.done])
        return failure

    def _receive_stream(self, span: Span, chunks: Iterator[bytes]) -> Failure | None:
        self._ended = False
        return self._receive(span, self._counted(chunks))

    def _counted(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        there = 0
        for chunk in chunks:
            yield chunk
            there += len(chunk)
            self._means.progress(there, self._size)

    def _reasons(self) -> str:
        pairs = zip(self._wanted.urls, self._board.sources, strict=True)
        return "; ".join(f"{label(url)}: {known.reason or 'not asked'}" for url, known in pairs)

    def _mend(self) -> None:
        urls, sha256 = self._wanted.urls, self._wanted.sha256
        self._means.note("the bytes do not have the hash that was asked for: looking for the bad piece")
        found = mend(urls, sha256, self._means.client, self._file, self._board)
        self.moved += found.moved
        if digest_of(self._file, self._size) == sha256:
            hosts = sorted({label(urls[source]) if source >= 0 else "an earlier run" for _, source in found.replaced})
            self._means.note(f"{len(found.replaced)} bad piece(s) came from {', '.join(hosts)}; fetched from elsewhere")
            return
        self._journal.forget([*self._board.done])
        message = f"{self._wanted.path.name}: no source has the file with sha256 {sha256[:12]}..."
        fix = "the hash is of another file, or the mirrors serve wrong bytes: compare with the origin"
        raise PromiseError(message, fix=fix)


def _known(part: Path, header: journal.Header) -> dict[int, str]:
    """Return the pieces of an earlier process that hold for this file."""
    try:
        found, pieces = journal.read(disk.journal_of(part).read_bytes(), header.boot)
    except FileNotFoundError:
        return {}
    if found is None or not found.fits(header) or part.stat().st_size != header.size:
        return {}
    last = len(spans(header.size, header.piece))
    return {piece: source for piece, source in pieces.items() if piece < last}
