"""A file from a source that knows no ranges: in one stream, of which each piece that is whole is kept."""

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
from envcheck.mirrors.net.client import HttpResponse, NetworkError, SlowError

# How often a source without ranges is asked for the whole file.
STREAMS: Final = 3


class WholeStream:
    """Brings what lacks of a file; `keep` hears of each piece that is whole, `moved` counts the bytes."""

    def __init__(
        self,
        line: FileRequests,
        means: TransferOptions,
        board: PieceScheduler,
        file: int,
        keep: Callable[[int, int], None],
    ) -> None:
        self._line, self._means, self._board, self._file, self._keep = line, means, board, file, keep
        self._size = board.spans[-1].stop if board.spans else 0
        self.moved = 0

    def bring(self, source: int) -> Failure | None:
        """Ask a source for the whole file, once; say why it did not come."""
        try:
            with self._line.asked(source, {}) as answer:
                length = range_responses.file_size(answer.status, answer.headers)
                busy = range_responses.busy_failure(answer.status, answer.headers, time.time())
                if busy is not None:
                    return busy
                if answer.status != HTTPStatus.OK or length not in {None, self._size}:
                    said = f"it answers {answer.status}" + (f" with {length} bytes" if length else "")
                    return Failure(said, drop=True, fix=status_advice(answer.status))
                return self._receive(source, answer)
        except NetworkError as error:
            return Failure(str(error), fix=error.fix, slow=isinstance(error, SlowError))

    def _receive(self, source: int, answer: HttpResponse) -> Failure | None:
        at, pace = 0, stall.StallDetector()
        for chunk in pace.timed(answer.chunks(self._means.limiter.chunk)):
            if at + len(chunk) > self._size:
                return Failure("it sends more than the file has")
            self._means.limiter.take(len(chunk), self._means.stop)
            self._lay(source, chunk, at)
            at += len(chunk)
            self.moved += len(chunk)
            self._means.progress(max(at, self._board.received), self._size)
            if self._line.over():
                return Failure("stopped")
            if pace.drips:
                return Failure(stall.reason(), slow=True)
        return None if at == self._size else Failure("it ended before its length")

    def _lay(self, source: int, chunk: bytes, at: int) -> None:
        while chunk:
            piece = at // self._board.spans[0].size
            span = self._board.spans[piece]
            part, chunk = chunk[: span.stop - at], chunk[span.stop - at :]
            if piece not in self._board.done:
                partial_file.write(self._file, part, at)
            at += len(part)
            if at == span.stop and piece not in self._board.done:
                self._board.done[piece] = source
                self._keep(piece, source)
