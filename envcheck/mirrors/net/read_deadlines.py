"""HTTP connections that end a stalled response, and plain texts for their errors.

A read timeout does not end a server that sends a byte now and then. Every byte of a response passes through one stream
here, which times the waiting (see `stall.StallDetector`). So a response ends whichever part stalls: the status line,
the headers, the body or a redirect.

What never stalls may still have no end: interim answers, chunk trailers, or compressed data that is empty. So a reader
that waits for one thing, such as the headers or the next chunk, says by when it must be there (see `within`).
"""

from __future__ import annotations

import contextlib
import http.client
import io
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, Protocol

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from envcheck.mirrors.net import connecting, stall

# http.client's text for a proxy that refuses; the proxy's own words follow the status.
_TUNNEL: Final = re.compile(r"Tunnel connection failed: ([0-9]{3})\b")


_NOT_HTTP: Final = "its answer is not valid HTTP"


class StalledError(TimeoutError):
    """A response that stalls."""


class EndlessError(StalledError):
    """A response that keeps sending, and not what is waited for."""


# The deadline of what each thread waits for, on the monotonic clock, and how long it may hear nothing before that.
_deadline = threading.local()


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """End what this thread reads in the block if bytes still come after so many seconds. Blocks do not nest."""
    _deadline.until, _deadline.patience = time.monotonic() + seconds, 0.0
    try:
        yield
    finally:
        _deadline.until, _deadline.patience = None, 0.0


class Upload:
    """A body of `size` bytes that urllib3 reads as it sends it; a server that takes too little of it has stalled.

    The time for the answer, see `within`, begins again with each part. It is `patience` seconds longer than for a
    request without a body: the server works on what it received.
    """

    def __init__(self, file: BinaryIO, size: int, patience: float) -> None:
        self._file, self._left, self._patience = file, size, patience
        self._stall = stall.StallDetector()
        self._part = 0
        self._began = time.monotonic()

    def read(self, size: int) -> bytes:
        """Return the next part. Raise StalledError if the parts before it were taken too slowly."""
        now = time.monotonic()
        if self._stall.record(now - self._began, self._part):
            message = f"it took less than {stall.BYTES >> 10} KiB in {stall.SECONDS:g} s"
            raise StalledError(message)
        part = self._file.read(min(size, self._left))
        self._part, self._began = len(part), now
        if self._left and not part:
            message = "the file became shorter while it was sent"
            raise OSError(0, message)
        self._left -= len(part)
        _deadline.until = now + stall.SECONDS + self._patience
        _deadline.patience = self._patience
        return part


class _Raw(Protocol):
    def readinto(self, buffer: Any, /) -> int | None: ...

    def close(self) -> None: ...


class _TimedReader(io.RawIOBase):
    """A socket's stream that times the waiting."""

    def __init__(self, raw: _Raw) -> None:
        self._raw = raw
        self._stall = stall.StallDetector()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        began = time.monotonic()
        size = self._raw.readinto(buffer)
        waited, patience = time.monotonic() - began, getattr(_deadline, "patience", 0.0)
        _deadline.patience = max(0.0, patience - waited)
        if self._stall.record(max(0.0, waited - patience), size or 0):
            raise StalledError(stall.reason())
        until = getattr(_deadline, "until", None)
        if until is not None and time.monotonic() > until:
            message = "it keeps sending data without a valid response"
            raise EndlessError(message)
        return size

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: Any, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        plain = self.fp
        self.fp = io.BufferedReader(_TimedReader(sock.makefile("rb", buffering=0)))
        plain.close()


class _Connecting(HTTPConnection):
    """A connection whose addresses together have one timeout."""

    response_class = _Response

    def _new_conn(self) -> socket.socket:
        try:
            return connecting.connect(self._dns_host, self.port, float(self.timeout or 0), self.socket_options or ())
        except socket.gaierror as error:
            raise urllib3.exceptions.NameResolutionError(self.host, self, error) from error
        except TimeoutError as error:
            raise urllib3.exceptions.ConnectTimeoutError(self, "no connection in time") from error
        except OSError as error:
            raise urllib3.exceptions.NewConnectionError(self, "no connection") from error


class _Secure(_Connecting, HTTPSConnection):
    pass


class _PlainPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connecting


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _Secure


POOLS = {"http": _PlainPool, "https": _SecurePool}


def is_stalled(error: Exception) -> bool:
    """Tell whether a response was ended because it stalled."""
    return isinstance(error, StalledError) or isinstance(error.__cause__, StalledError)


def is_silent(error: Exception) -> bool:
    """Return whether nothing came for as long as one read, or connecting, may take."""
    reason = getattr(error, "reason", None)
    timed_out = isinstance(error, (urllib3.exceptions.ReadTimeoutError, urllib3.exceptions.ConnectTimeoutError))
    return timed_out or (isinstance(reason, Exception) and is_silent(reason))


def tls_error(error: Exception) -> ssl.SSLError | None:
    """Return the TLS error in an error, or None: urllib3 wraps it as its only argument or as its reason."""
    for candidate in (error, getattr(error, "reason", None), *error.args):
        if isinstance(candidate, ssl.SSLError):
            return candidate
        if isinstance(candidate, urllib3.exceptions.SSLError) and candidate is not error:
            return tls_error(candidate)
    return None


def _is_not_http(reason: object) -> bool:
    """Tell whether http.client could not read a status line, a header or a chunk; a closed connection is none."""
    cut_off = (OSError, http.client.IncompleteRead)
    return isinstance(reason, http.client.HTTPException) and not isinstance(reason, cut_off)


def describe(error: Exception) -> str:
    """Return the innermost reason as text, without the objects and (possibly signed) URLs that urllib3 adds."""
    if is_stalled(error):
        return str(error if isinstance(error, StalledError) else error.__cause__)
    failed = tls_error(error)
    if failed is not None:
        return f"TLS: {getattr(failed, 'verify_message', '') or failed.reason or 'failed'}"
    reason = getattr(error, "reason", None)
    if isinstance(reason, Exception):
        return describe(reason)
    refused = _TUNNEL.match(str(error))
    if refused:
        return f"it answers {refused[1]}"
    texts = {
        ValueError: "its URL is invalid",
        TimeoutError: "no answer in time",
        urllib3.exceptions.InvalidHeader: _NOT_HTTP,
        urllib3.exceptions.DecodeError: "its Content-Encoding cannot be read",
        urllib3.exceptions.NameResolutionError: "the name does not resolve",
        urllib3.exceptions.NewConnectionError: "no connection",
        urllib3.exceptions.ConnectTimeoutError: "no connection in time",
        urllib3.exceptions.ReadTimeoutError: "it stalled",
        urllib3.exceptions.IncompleteRead: "the response ended too early",
        urllib3.exceptions.ProtocolError: "it was cut off",
    }
    if isinstance(error, urllib3.exceptions.ProtocolError) and any(map(_is_not_http, error.args)):
        return _NOT_HTTP
    reason_text = next((text for kind, text in texts.items() if isinstance(error, kind)), None)
    return reason_text or getattr(error, "strerror", None) or f"the request failed ({type(error).__name__})"
