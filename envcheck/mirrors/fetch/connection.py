"""The requests of one download, and the bytes that they write. Ending the download ends every response."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from envcheck.mirrors.fetch.disk import partial_file
from envcheck.mirrors.fetch.plan.pieces import Failure, Span
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.net import stall
from envcheck.mirrors.net.network_errors import NetworkError
from envcheck.mirrors.net.responses import HttpResponse
from envcheck.mirrors.net.urls import host_of


class FileRequests:
    """The requests of one download. `in_flight` has the bytes that each thread wrote of its current response."""

    def __init__(self, target: WantedFile, options: TransferOptions, file: int) -> None:
        self._target, self._options, self._file = target, options, file
        self._open: set[HttpResponse] = set()
        self._lock = threading.Lock()
        self.in_flight: dict[int, int] = {}
        self.ended = False

    def is_over(self) -> bool:
        """Tell whether the download has ended or was stopped."""
        return self.ended or self._options.stop.is_set()

    def end(self) -> None:
        """Abort every open response; a waiting read gets no more bytes."""
        with self._lock:
            self.ended = True
            for answer in self._open:
                answer.abort()

    @contextlib.contextmanager
    def request(self, source: int, headers: dict[str, str]) -> Iterator[HttpResponse]:
        """Send a request when the host has a free slot. Raise NetworkError if it fails or the download has ended."""
        url = self._target.urls[source]
        with self._options.slots.acquire(host_of(url), self.is_over) as acquired:
            if not acquired:
                message = "stopped"
                raise NetworkError(message)
            with self._options.client.get(url, headers) as answer:
                with self._lock:
                    self._open.add(answer)
                try:
                    yield answer
                finally:
                    with self._lock:
                        self._open.discard(answer)

    def receive(self, span: Span, answer: HttpResponse) -> Failure | None:
        """Write the response to its place in the file; return why it is incomplete, or None."""
        at, stall_detector, thread = span.start, stall.StallDetector(), threading.get_ident()
        for chunk in stall_detector.watch(answer.chunks(self._options.limiter.chunk)):
            if at + len(chunk) > span.stop:
                return Failure("it sends more than requested", drop=True)
            self._options.limiter.take(len(chunk), self._options.stop)
            partial_file.write(self._file, chunk, at)
            at += len(chunk)
            self.in_flight[thread] = at - span.start
            if self.is_over():
                return Failure("stopped")
            if stall_detector.stalled:
                return Failure(stall.reason(), got=at - span.start, slow=True)
        return None if at == span.stop else Failure("the response ended too early", got=at - span.start)
