"""Download one file: threads take pieces from the scheduler; a journal and a running hash follow them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from envcheck.mirrors.fetch.connection import FileRequests
from envcheck.mirrors.fetch.disk import journal, partial_file
from envcheck.mirrors.fetch.disk.running_hash import RunningHash, digest_of
from envcheck.mirrors.fetch.limits import LONGEST_WAIT, SLOW_ANSWERS
from envcheck.mirrors.fetch.plan import range_responses
from envcheck.mirrors.fetch.plan.pieces import Failure, RangeTask, piece_size
from envcheck.mirrors.fetch.plan.scheduler import EARLIER, MIXED, SMALLEST_PART, PieceScheduler, backoff_seconds
from envcheck.mirrors.fetch.repair import no_source_error, repair, source_name
from envcheck.mirrors.fetch.request import StoppedError, TransferOptions, WantedFile
from envcheck.mirrors.fetch.retries import no_answer_error
from envcheck.mirrors.fetch.whole_stream import STREAMS, WholeStream
from envcheck.mirrors.net.advice import joined_advice
from envcheck.mirrors.net.network_errors import NetworkError, SilentError, SlowError
from envcheck.mirrors.net.urls import host_of

# A power cut may lose the pieces of this many seconds.
_SYNC_SECONDS: Final = 2.0
_TICK: Final = 0.5


class FileDownload:
    """The download of one file."""

    def __init__(self, target: WantedFile, options: TransferOptions, part: Path, file: int, size: int) -> None:
        self._target, self._options, self._file, self.size = target, options, file, size
        header = journal.Header(target.sha256, size, piece_size(size), journal.boot_id())
        present = partial_file.valid_pieces(part, header)
        partial_file.reserve(file, size, part)
        if present:
            os.fdatasync(file)  # the new journal records that they are on the disk
        names = {"": MIXED} | {journal.source_id(url): index for index, url in enumerate(target.urls)}
        done = {piece: names.get(source, EARLIER) for piece, source in present.items()}
        self._requests = FileRequests(target, options, file)
        self._scheduler = PieceScheduler(
            size, header.piece, len(target.urls), per_source=options.connections, done=done
        )
        for index, url in enumerate(target.urls):
            if options.client.silence.rounds(url):
                self._scheduler.suspect(index)
        self._journal = journal.Journal(partial_file.journal_path(part), header, present)
        self._running_hash = RunningHash(file, self._scheduler.spans)
        self._running_hash.arrived([*self._scheduler.done])
        self.found = self._scheduler.received
        self.moved = 0
        self._changed = threading.Condition()
        self._stopped: BaseException | None = None
        self._working = 0

    def run(self) -> None:
        """Download every byte and verify the hash, or raise PromiseError or UnavailableError."""
        workers = range(min(self._options.connections, -(-(self.size - self._scheduler.received) // SMALLEST_PART)))
        self._working = len(workers)
        threads = [self._new_thread(self._work) for _ in workers]
        keeper = self._new_thread(self._sync)
        for thread in [*threads, keeper]:
            thread.start()
        try:
            self._report_progress()
        finally:
            self._end_threads(keeper, threads)
        if self._stopped is not None:
            raise self._stopped
        self._raise_if_stopped()
        try:
            self._complete()
        except OSError as error:
            raise partial_file.disk_error(error, self._target.path, self.size) from error

    def sources(self) -> dict[str, int]:
        """Return the bytes that came from each host."""
        sizes: dict[str, int] = {}
        for piece, source in self._scheduler.done.items():
            host = source_name(self._target.urls, source)
            sizes[host] = sizes.get(host, 0) + self._scheduler.spans[piece].size
        return sizes

    def close(self) -> None:
        """Stop the running hash and close the journal."""
        self._running_hash.stop()
        self._journal.close()

    def _report_progress(self) -> None:
        working = True
        while working:
            with self._changed:
                self._changed.wait_for(lambda: not self._working or self._stopped is not None, _TICK)
                working, present = self._working > 0 and self._stopped is None, self._bytes_present()
            self._raise_if_stopped()
            self._options.progress(present, self.size)

    def _raise_if_stopped(self) -> None:
        if self._options.stop.is_set():
            raise StoppedError

    def _bytes_present(self) -> int:
        """Return the bytes present, including those of unfinished pieces. The caller holds the lock."""
        return self._scheduler.received + self._scheduler.begun + sum(self._requests.in_flight.copy().values())

    def _end_threads(self, keeper: threading.Thread, threads: list[threading.Thread]) -> None:
        self._requests.end()
        with self._changed:
            self._changed.notify_all()
        for thread in [keeper, *threads]:
            thread.join()

    def _new_thread(self, body: Callable[[], None]) -> threading.Thread:
        return threading.Thread(
            target=self._run_guarded, args=(body,), daemon=True, name=f"fetch {self._target.path.name}"
        )

    def _run_guarded(self, body: Callable[[], None]) -> None:
        """Run a thread's body; `run` raises its error again."""
        try:
            body()
        except Exception as error:  # noqa: BLE001 (raised again in `run`: a thread that dies unheard leaves it waiting)
            shown_error = (
                partial_file.disk_error(error, self._target.path, self.size) if isinstance(error, OSError) else error
            )
            with self._changed:
                self._stopped = shown_error
                self._requests.ended = True
                self._changed.notify_all()

    def _work(self) -> None:
        try:
            while (task := self._next_task()) is not None:
                self._record_result(task, *self._fetch_task(task))
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    def _next_task(self) -> RangeTask | None:
        with self._changed:
            while not self._requests.is_over() and not self._scheduler.complete:
                task = self._scheduler.take(time.monotonic())
                if task is not None:
                    return task
                wait = self._scheduler.wait(time.monotonic())
                if wait is None and not self._scheduler.under_way:
                    return None
                # A resting source is ready after `wait`; a thread that ends a request notifies.
                self._changed.wait(min(wait, _TICK) if wait else _TICK)
            return None

    def _fetch_task(self, task: RangeTask) -> tuple[Failure | None, str | None, float]:
        """Fetch a task; return the failure or None, the ETag, and the seconds that its bytes took."""
        try:
            with self._requests.request(task.source, range_responses.range_headers(task)) as answer:
                failure = range_responses.range_failure(task, answer.status, answer.headers, self.size, time.time())
                etag, began = range_responses.etag_of(answer.headers), time.monotonic()
                if failure is None:
                    with self._changed:
                        self._scheduler.answered(task, etag)
                        self._changed.notify_all()
                    failure = self._requests.receive(task.span, answer)
                return failure, etag, time.monotonic() - began
        except NetworkError as error:
            received = self._requests.in_flight.get(threading.get_ident(), 0)
            slow, silent = isinstance(error, SlowError), isinstance(error, SilentError)
            return Failure(str(error), got=received, fix=error.fix, slow=slow, silent=silent), None, 0.0

    def _record_result(self, task: RangeTask, failure: Failure | None, etag: str | None, seconds: float) -> None:
        with self._changed:
            self.moved += self._requests.in_flight.pop(threading.get_ident(), 0)
            if failure is None and self._scheduler.arrived(task, etag, seconds):
                self._record_piece(task.piece, self._scheduler.done[task.piece])
            elif failure is not None and not self._requests.is_over():
                state, now = self._scheduler.sources[task.source], time.monotonic()
                asked_now = state.resting_until <= now and (failure.after or 0.0) >= 1
                self._forget_pieces(self._scheduler.failed(task, failure, now))
                if state.dropped or not state.ranges or (asked_now and state.resting_until > now):
                    self._options.note(f"{host_of(self._target.urls[task.source])}: {state.reason}")
            self._changed.notify_all()

    def _record_piece(self, piece: int, source: int) -> None:
        self._journal.piece(piece, journal.source_id(self._target.urls[source]) if source >= 0 else "")
        self._running_hash.arrived([piece])

    def _forget_pieces(self, pieces: list[int]) -> None:
        if pieces:
            self._journal.forget(pieces)
            self._running_hash.forgotten(pieces)

    def _sync(self) -> None:
        """Sync the file at intervals and record it in the journal: after a power cut only synced pieces count."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._requests.ended, _SYNC_SECONDS)
                if self._requests.ended:
                    return
                notes = self._journal.notes
            os.fdatasync(self._file)
            with self._changed:
                self._journal.synced(notes)

    def _fetch_rest_in_stream(self) -> None:
        """Fetch the missing bytes in one stream, from the first source without range support that delivers."""
        without_ranges = [
            index for index, state in enumerate(self._scheduler.sources) if not state.ranges and not state.dropped
        ]
        for source in without_ranges:
            self._options.note(f"{host_of(self._target.urls[source])}: fetching the file in one stream")
            if self._fetch_stream(source):
                return
        pairs = zip(self._target.urls, self._scheduler.sources, strict=True)
        reasons = "; ".join(f"{host_of(url)}: {state.reason or 'not asked'}" for url, state in pairs)
        message = f"{self._target.path.name}: no source can provide it: {reasons or 'no source is known'}"
        # The journal lists the complete pieces, and the next run does not fetch them again; the rest is removed.
        advice = ", or run it again" + (": the pieces that are whole are kept" if self._scheduler.done else "")
        states = self._scheduler.sources
        fix = joined_advice((state.fix for state in states), advice, other=self._target.other_fix)
        raise no_answer_error(message, fix, [state.missing for state in states])

    def _fetch_stream(self, source: int) -> bool:
        """Fetch the missing bytes in one stream, with a few retries; tell whether the file is complete."""
        stream = WholeStream(self._requests, self._options, self._scheduler, self._file, self._record_piece)
        waited = 0.0
        for failures in range(1, STREAMS + 1):
            self._requests.ended = False
            failure = stream.fetch(source)
            self.moved, stream.moved = self.moved + stream.moved, 0
            self._raise_if_stopped()
            if failure is None:
                return True
            state = self._scheduler.sources[source]
            state.reason, state.fix, state.missing = failure.reason, failure.fix, failure.missing
            waited += failure.after or 0.0
            if failure.drop or waited > LONGEST_WAIT or (failure.slow and failures >= SLOW_ANSWERS):
                break
            if failures < STREAMS:
                self._options.stop.wait(backoff_seconds(failures, failure))
        return False

    def _complete(self) -> None:
        if not self._scheduler.complete:
            self._fetch_rest_in_stream()
        if self._running_hash.finish() != self._target.sha256:
            self._repair()

    def _repair(self) -> None:
        urls, sha256 = self._target.urls, self._target.sha256
        self._options.note("the file has a wrong hash: comparing its pieces with other sources")
        result = repair(urls, sha256, self._options, self._file, self._scheduler)
        self.moved += result.moved
        if digest_of(self._file, self.size) == sha256:
            self._options.note(result.summary(urls))
            return
        for source in result.whole:
            self._journal.forget([*self._scheduler.done])
            self._scheduler.done.clear()
            if self._fetch_stream(source) and digest_of(self._file, self.size) == sha256:
                self._options.note(
                    f"cannot compare pieces without ranges: fetched the whole file again from {host_of(urls[source])}"
                )
                return
        self._journal.forget([*self._scheduler.done])
        raise no_source_error(self._target.path.name, sha256)
