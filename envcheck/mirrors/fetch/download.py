"""One file under way: threads that take pieces from the board, and the journal and hash that follow them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from envcheck.errors import UnavailableError
from envcheck.mirrors.fetch.connection import FileRequests
from envcheck.mirrors.fetch.disk import journal, partial_file
from envcheck.mirrors.fetch.disk.running_hash import RunningHash, digest_of
from envcheck.mirrors.fetch.limits import LONGEST_WAIT, SLOW_ANSWERS
from envcheck.mirrors.fetch.plan import range_responses
from envcheck.mirrors.fetch.plan.pieces import Failure, RangeTask, piece_size
from envcheck.mirrors.fetch.plan.scheduler import EARLIER, MIXED, SMALLEST_PART, PieceScheduler, backoff_seconds
from envcheck.mirrors.fetch.repair import no_source_error, repair, source_name
from envcheck.mirrors.fetch.request import StoppedError, TransferOptions, WantedFile
from envcheck.mirrors.fetch.whole_stream import STREAMS, WholeStream
from envcheck.mirrors.net.advice import joined_advice
from envcheck.mirrors.net.client import NetworkError, SilentError, SlowError
from envcheck.mirrors.net.urls import host_of

# What a power cut may cost: the pieces of this many seconds.
_SYNC_SECONDS: Final = 2.0
_TICK: Final = 0.5


class FileDownload:
    """One file under way."""

    def __init__(self, wanted: WantedFile, means: TransferOptions, part: Path, file: int, size: int) -> None:
        self._wanted, self._means, self._file, self.size = wanted, means, file, size
        header = journal.Header(wanted.sha256, size, piece_size(size), journal.boot_id())
        known = partial_file.valid_pieces(part, header)
        partial_file.reserve(file, size, part)
        if known:
            os.fdatasync(file)  # the new journal says of them that they are on the disk
        names = {"": MIXED} | {journal.source_id(url): index for index, url in enumerate(wanted.urls)}
        done = {piece: names.get(source, EARLIER) for piece, source in known.items()}
        self._line = FileRequests(wanted, means, file)
        self._board = PieceScheduler(size, header.piece, len(wanted.urls), per_source=means.connections, done=done)
        for index, url in enumerate(wanted.urls):
            if means.client.silence.rounds(url):
                self._board.suspect(index)
        self._journal = journal.Journal(partial_file.journal_path(part), header, known)
        self._follower = RunningHash(file, self._board.spans)
        self._follower.arrived([*self._board.done])
        self.found = self._board.received
        self.moved = 0
        self._changed = threading.Condition()
        self._stopped: BaseException | None = None
        self._working = 0

    def run(self) -> None:
        """Have every byte there and of the right hash, or raise PromiseError or UnavailableError."""
        workers = range(min(self._means.connections, -(-(self.size - self._board.received) // SMALLEST_PART)))
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
        try:
            self._make_whole()
        except OSError as error:
            raise partial_file.disk_error(error, self._wanted.path, self.size) from error

    def sources(self) -> dict[str, int]:
        """Return the bytes that each host gave."""
        given: dict[str, int] = {}
        for piece, source in self._board.done.items():
            host = source_name(self._wanted.urls, source)
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
                self._changed.wait_for(lambda: not self._working or self._stopped is not None, _TICK)
                working, there = self._working > 0 and self._stopped is None, self._there()
            self._hold_on()
            self._means.progress(there, self.size)

    def _hold_on(self) -> None:
        if self._means.stop.is_set():
            raise StoppedError

    def _there(self) -> int:
        """Return the bytes that are there, those of unfinished pieces too. The lock is the caller's."""
        return self._board.received + self._board.begun + sum(self._line.coming.copy().values())

    def _end(self, keeper: threading.Thread, threads: list[threading.Thread]) -> None:
        self._line.end()
        with self._changed:
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
            told = partial_file.disk_error(error, self._wanted.path, self.size) if isinstance(error, OSError) else error
            with self._changed:
                self._stopped = told
                self._line.ended = True
                self._changed.notify_all()

    def _work(self) -> None:
        try:
            while (task := self._next()) is not None:
                self._settled(task, *self._piece(task))
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    def _next(self) -> RangeTask | None:
        with self._changed:
            while not self._line.over() and not self._board.complete:
                task = self._board.take(time.monotonic())
                if task is not None:
                    return task
                wait = self._board.wait(time.monotonic())
                if wait is None and not self._board.under_way:
                    return None
                # Who rests can be asked again in `wait`; who is busy says so when it no longer is.
                self._changed.wait(min(wait, _TICK) if wait else _TICK)
            return None

    def _piece(self, task: RangeTask) -> tuple[Failure | None, str | None, float]:
        """Return why it did not come, the ETag, and the seconds that its bytes took."""
        try:
            with self._line.asked(task.source, range_responses.range_headers(task)) as answer:
                failure = range_responses.range_failure(task, answer.status, answer.headers, self.size, time.time())
                etag, began = range_responses.etag_of(answer.headers), time.monotonic()
                if failure is None:
                    with self._changed:
                        self._board.answered(task, etag)
                        self._changed.notify_all()
                    failure = self._line.receive(task.span, answer)
                return failure, etag, time.monotonic() - began
        except NetworkError as error:
            got = self._line.coming.get(threading.get_ident(), 0)
            slow, silent = isinstance(error, SlowError), isinstance(error, SilentError)
            return Failure(str(error), got=got, fix=error.fix, slow=slow, silent=silent), None, 0.0

    def _settled(self, task: RangeTask, failure: Failure | None, etag: str | None, seconds: float) -> None:
        with self._changed:
            self.moved += self._line.coming.pop(threading.get_ident(), 0)
            if failure is None and self._board.arrived(task, etag, seconds):
                self._keep(task.piece, self._board.done[task.piece])
            elif failure is not None and not self._line.over():
                known, now = self._board.sources[task.source], time.monotonic()
                asked_now = known.rests <= now and (failure.after or 0.0) >= 1
                self._forget(self._board.failed(task, failure, now))
                if known.dropped or not known.ranges or (asked_now and known.rests > now):
                    self._means.note(f"{host_of(self._wanted.urls[task.source])}: {known.reason}")
            self._changed.notify_all()

    def _keep(self, piece: int, source: int) -> None:
        self._journal.piece(piece, journal.source_id(self._wanted.urls[source]) if source >= 0 else "")
        self._follower.arrived([piece])

    def _forget(self, pieces: list[int]) -> None:
        if pieces:
            self._journal.forget(pieces)
            self._follower.forgotten(pieces)

    def _sync(self) -> None:
        """Tell the journal from time to time what is on the disk: after a power cut only that is believed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._line.ended, _SYNC_SECONDS)
                if self._line.ended:
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
            if self._streamed(source):
                return
        pairs = zip(self._wanted.urls, self._board.sources, strict=True)
        reasons = "; ".join(f"{host_of(url)}: {known.reason or 'not asked'}" for url, known in pairs)
        message = f"{self._wanted.path.name}: no source gives it: {reasons or 'there is none to ask'}"
        # A piece that is whole is in the journal, and the next run does not fetch it again; anything less is removed.
        again = ", or run it again" + (": the pieces that are whole are kept" if self._board.done else "")
        fix = joined_advice((known.fix for known in self._board.sources), again)
        raise UnavailableError(message, fix=fix)

    def _streamed(self, source: int) -> bool:
        """Take what lacks from a source in one stream, which may break off a few times; tell whether all came."""
        stream = WholeStream(self._line, self._means, self._board, self._file, self._keep)
        asked = 0.0
        for failures in range(1, STREAMS + 1):
            self._line.ended = False
            failure = stream.bring(source)
            self.moved, stream.moved = self.moved + stream.moved, 0
            self._hold_on()
            if failure is None:
                return True
            known = self._board.sources[source]
            known.reason, known.fix = failure.reason, failure.fix
            asked += failure.after or 0.0
            if failure.drop or asked > LONGEST_WAIT or (failure.slow and failures >= SLOW_ANSWERS):
                break
            if failures < STREAMS:
                self._means.stop.wait(backoff_seconds(failures, failure))
        return False

    def _make_whole(self) -> None:
        if not self._board.complete:
            self._stream_or_give_up()
        if self._follower.finish() != self._wanted.sha256:
            self._mend()

    def _mend(self) -> None:
        urls, sha256 = self._wanted.urls, self._wanted.sha256
        self._means.note("the bytes do not have the hash that was asked for: looking for the bad piece")
        found = repair(urls, sha256, self._means, self._file, self._board)
        self.moved += found.moved
        if digest_of(self._file, self.size) == sha256:
            self._means.note(found.told(urls))
            return
        for source in found.whole:
            self._journal.forget([*self._board.done])
            self._board.done.clear()
            if self._streamed(source) and digest_of(self._file, self.size) == sha256:
                self._means.note(f"no bad piece to be told without ranges: all of it anew from {host_of(urls[source])}")
                return
        self._journal.forget([*self._board.done])
        raise no_source_error(self._wanted.path.name, sha256)
