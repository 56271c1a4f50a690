"""What a job asks of its sources and writes of what they send; whoever ends the job ends every answer."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from envcheck.mirrors.fetch.disk import partial_file
from envcheck.mirrors.fetch.plan.pieces import Failure, Span
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.net import stall
from envcheck.mirrors.net.client import HttpResponse, NetworkError
from envcheck.mirrors.net.urls import host_of


class FileRequests:
    """The requests of one job. `coming` is what each thread has written of the answer it is at, in bytes."""

    def __init__(self, wanted: WantedFile, means: TransferOptions, file: int) -> None:
        self._wanted, self._means, self._file = wanted, means, file
        self._open: set[HttpResponse] = set()
        self._lock = threading.Lock()
        self.coming: dict[int, int] = {}
        self.ended = False

    def over(self) -> bool:
        """Tell whether nothing more is to be asked."""
        return self.ended or self._means.stop.is_set()

    def end(self) -> None:
        """End every answer; a read that waits gets no more."""
        with self._lock:
            self.ended = True
            for answer in self._open:
                answer.abort()

    @contextlib.contextmanager
    def asked(self, source: int, headers: dict[str, str]) -> Iterator[HttpResponse]:
        """Ask a source, in its turn. Raise NetworkError where there is no answer, or the job is over."""
        url = self._wanted.urls[source]
        with self._means.slots.one(host_of(url), self.over) as mine:
            if not mine:
                message = "stopped"
                raise NetworkError(message)
            with self._means.client.get(url, headers) as answer:
                with self._lock:
                    self._open.add(answer)
                try:
                    yield answer
                finally:
                    with self._lock:
                        self._open.discard(answer)

    def receive(self, span: Span, answer: HttpResponse) -> Failure | None:
        """Write the answer at its place; say why it is not all of it. What has come counts unless it is too much."""
        at, pace, mine = span.start, stall.StallDetector(), threading.get_ident()
        for chunk in pace.timed(answer.chunks(self._means.limiter.chunk)):
            if at + len(chunk) > span.stop:
                return Failure("it sends more than was asked for", drop=True)
            self._means.limiter.take(len(chunk), self._means.stop)
            partial_file.write(self._file, chunk, at)
            at += len(chunk)
            self.coming[mine] = at - span.start
            if self.over():
                return Failure("stopped")
            if pace.drips:
                return Failure(stall.reason(), got=at - span.start, slow=True)
        return None if at == span.stop else Failure("it ended before its length", got=at - span.start)
