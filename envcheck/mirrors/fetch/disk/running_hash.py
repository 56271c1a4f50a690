"""Hash a file while it is being written: read it back from the disk, in order, as pieces arrive."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable

from envcheck.mirrors.fetch.plan.pieces import MIB, Span


def digest_of(file: int, size: int) -> str:
    """Return the sha256 of the first `size` bytes of an open file, as hex, reading it in 1 MiB blocks."""
    hasher = hashlib.sha256()
    _feed(hasher, file, Span(0, size))
    return hasher.hexdigest()


class RunningHash:
    """Hash pieces in order as they arrive, in a separate thread. The bytes are read back from the disk."""

    def __init__(self, file: int, spans: list[Span]) -> None:
        self._file = file
        self._spans = spans
        self._arrived: set[int] = set()
        self._next = 0
        self._hasher = hashlib.sha256()
        self._changed = threading.Condition()
        self._ended = False
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="fetch hash")
        self._thread.start()

    def arrived(self, pieces: list[int]) -> None:
        """Note that pieces are on the disk."""
        with self._changed:
            self._arrived.update(pieces)
            self._changed.notify_all()

    def forgotten(self, pieces: list[int]) -> None:
        """Note that pieces will be written again: the hash starts over if it includes them."""
        with self._changed:
            self._arrived.difference_update(pieces)
            if pieces and min(pieces) <= self._next:
                self._next, self._hasher = 0, hashlib.sha256()

    def finish(self) -> str:
        """Return the sha256 of all pieces as hex. Every piece must have arrived."""
        self.stop(when=lambda: self._next >= len(self._spans))
        if self._error is not None:
            raise self._error
        return self._hasher.hexdigest()

    def stop(self, when: Callable[[], bool] = lambda: True) -> None:
        """End the thread, at once or when the condition is true."""
        with self._changed:
            self._changed.wait_for(lambda: when() or self._error is not None)
            self._ended = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._next in self._arrived)
                if self._ended:
                    return
                piece, hasher = self._next, self._hasher
            try:
                _feed(hasher, self._file, self._spans[piece])
            except OSError as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                if self._hasher is hasher:
                    self._next += 1
                self._changed.notify_all()


def _feed(hasher: hashlib._Hash, file: int, span: Span) -> None:
    for start in range(span.start, span.stop, MIB):
        block = os.pread(file, min(MIB, span.stop - start), start)
        if not block:
            message = "the file became shorter while it was read"
            raise OSError(message)
        hasher.update(block)
