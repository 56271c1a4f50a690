"""HTTP connections that end when a host drops packets, is silent, or sends a byte now and then.

A read timeout does not end a server that sends a byte now and then. So every byte passes through one stream here: what
is waited for has a deadline (see `within`), and a body has a least rate.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import threading
import time
from collections.abc import Iterator
from typing import Any, Final, Protocol

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from envcheck.mirrors.net.network_errors import StalledError

# A response must deliver at least BYTES in SECONDS of waiting; its head must be there SECONDS after its first byte.
SECONDS: Final = 25.0
BYTES: Final = 25 << 10

_deadline = threading.local()


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """End what this thread reads in the block if bytes still come after so many seconds. Blocks do not nest."""
    _deadline.until = time.monotonic() + seconds
    try:
        yield
    finally:
        _deadline.until = None


class _Raw(Protocol):
    def readinto(self, buffer: Any, /) -> int | None: ...

    def close(self) -> None: ...


class _TimedReader(io.RawIOBase):
    """A socket's stream that times the waiting, and not what is done with the bytes."""

    def __init__(self, raw: _Raw) -> None:
        self._raw = raw
        self._waited, self._came = 0.0, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        began = time.monotonic()
        size = self._raw.readinto(buffer)
        now, until = time.monotonic(), getattr(_deadline, "until", None)
        if until is not None and now > until:
            message = "it keeps sending data without a complete answer"
            raise StalledError(message)
        self._waited, self._came = self._waited + now - began, self._came + (size or 0)
        if until is None and self._waited > SECONDS:
            if self._came < BYTES:
                message = f"it sent less than {BYTES >> 10} KiB in {SECONDS:g} s"
                raise StalledError(message)
            self._waited, self._came = 0.0, 0
        return size

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: Any, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        plain, self._silence = self.fp, sock.gettimeout() or 0.0
        self.fp = io.BufferedReader(_TimedReader(sock.makefile("rb", buffering=0)))
        plain.close()

    def begin(self) -> None:
        with within(self._silence + SECONDS):
            super().begin()


class _Connection(HTTPConnection):
    response_class = _Response


class _Secure(HTTPSConnection):
    response_class = _Response


class _PlainPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _Secure


POOLS: Final = {"http": _PlainPool, "https": _SecurePool}
