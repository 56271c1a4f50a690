"""Fetch a file from a source without range support, in one stream; complete pieces are kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from envcheck.mirrors.fetch.connection import FileRequests
from envcheck.mirrors.fetch.disk import partial_file
from envcheck.mirrors.fetch.plan import range_responses
from envcheck.mirrors.fetch.plan.pieces import Failure
from envcheck.mirrors.fetch.plan.scheduler import PieceScheduler
from envcheck.mirrors.fetch.request import TransferOptions
from envcheck.mirrors.net import stall
from envcheck.mirrors.net.advice import status_advice
from envcheck.mirrors.net.network_errors import NetworkError, SlowError
from envcheck.mirrors.net.responses import HttpResponse

# How often a source without range support is tried.
STREAMS: Final = 3


class WholeStream:
    """Fetches the missing bytes of a file; calls `record_piece` for each complete piece; `moved` counts the bytes."""

    def __init__(
        self,
        requests: FileRequests,
        options: TransferOptions,
        scheduler: PieceScheduler,
        file: int,
        record_piece: Callable[[int, int], None],
    ) -> None:
        self._requests, self._options, self._scheduler, self._file, self._record_piece = (
            requests,
            options,
            scheduler,
            file,
            record_piece,
        )
        self._size = scheduler.spans[-1].stop if scheduler.spans else 0
        self.moved = 0

    def fetch(self, source: int) -> Failure | None:
        """Request the whole file from a source once; return the failure, or None."""
        try:
            with self._requests.request(source, {}) as answer:
                length = range_responses.file_size(answer.status, answer.headers)
                busy = range_responses.busy_failure(answer.status, answer.headers, time.time())
                if busy is not None:
                    return busy
                if answer.status != HTTPStatus.OK or length not in {None, self._size}:
                    reason = f"it answers {answer.status}" + (f" with {length} bytes" if length else "")
                    return Failure(reason, drop=True, fix=status_advice(answer.status))
                return self._receive(source, answer)
        except NetworkError as error:
            return Failure(str(error), fix=error.fix, slow=isinstance(error, SlowError))

    def _receive(self, source: int, answer: HttpResponse) -> Failure | None:
        at, stall_detector = 0, stall.StallDetector()
        for chunk in stall_detector.watch(answer.chunks(self._options.limiter.chunk)):
            if at + len(chunk) > self._size:
                return Failure("it sends more than the file has")
            self._options.limiter.take(len(chunk), self._options.stop)
            self._write_pieces(source, chunk, at)
            at += len(chunk)
            self.moved += len(chunk)
            self._options.progress(max(at, self._scheduler.received), self._size)
            if self._requests.is_over():
                return Failure("stopped")
            if stall_detector.stalled:
                return Failure(stall.reason(), slow=True)
        return None if at == self._size else Failure("the response ended too early")

    def _write_pieces(self, source: int, chunk: bytes, at: int) -> None:
        while chunk:
            piece = at // self._scheduler.spans[0].size
            span = self._scheduler.spans[piece]
            part, chunk = chunk[: span.stop - at], chunk[span.stop - at :]
            if piece not in self._scheduler.done:
                partial_file.write(self._file, part, at)
            at += len(part)
            if at == span.stop and piece not in self._scheduler.done:
                self._scheduler.done[piece] = source
                self._record_piece(piece, source)
