"""A response, whose body comes in pieces and in time, and what its head says about a file and a range of it.

A read timeout does not end a server that sends a byte now and then. So every byte passes through one stream here: what
is waited for has a deadline (see `within`), and a body has a least rate.
"""

import contextlib
import http.client
import io
import re
import threading
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final, NoReturn

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from envcheck.mirrors.net.network_errors import (
    BrokenError,
    NetworkError,
    StalledError,
    StatusError,
    fail,
    network_error,
)

# A response must deliver at least BYTES in SECONDS of waiting; its head must be there SECONDS after its first byte.
SECONDS: Final = 25.0
BYTES: Final = 25 << 10
# Seconds that a page may take: enough for 15 MB, the largest known page, at 1 Mbit/s. Bytes read at once.
_PAGE_SECONDS: Final = 120.0
_CHUNK: Final = 1 << 16
# Fifteen digits are a petabyte. No file is larger, and Python refuses to parse thousands of digits.
_RANGE: Final = re.compile(r"bytes ([0-9]{1,15})-([0-9]{1,15})/([0-9]{1,15})")
_LENGTH: Final = re.compile(r"[0-9]{1,15}")

_deadline = threading.local()


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """End what this thread reads in the block if bytes still come after so many seconds. Blocks do not nest."""
    _deadline.until = time.monotonic() + seconds
    try:
        yield
    finally:
        _deadline.until = None


class _TimedReader(io.RawIOBase):
    """A socket's stream that times the waiting, and not what is done with the bytes."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._waited, self._came = 0.0, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        began = time.monotonic()
        size: int | None = self._raw.readinto(buffer)
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


class _TimedResponse(http.client.HTTPResponse):
    def __init__(self, sock: Any, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        plain, self._silence = self.fp, sock.gettimeout() or 0.0
        self.fp = io.BufferedReader(_TimedReader(sock.makefile("rb", buffering=0)))
        plain.close()

    def begin(self) -> None:
        with within(self._silence + SECONDS):
            super().begin()


class _Connection(HTTPConnection):
    response_class = _TimedResponse


class _SecureConnection(HTTPSConnection):
    response_class = _TimedResponse


class _PlainPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


POOLS: Final = {"http": _PlainPool, "https": _SecurePool}


class WholeFileError(NetworkError):
    """A host that answers a request for a range with the whole file."""


class HttpResponse(contextlib.AbstractContextManager["HttpResponse"]):
    """A response whose body is unread. `hosts` are the hosts of all hops; the last one serves the body."""

    def __init__(self, response: urllib3.BaseHTTPResponse, url: str, hosts: list[str]) -> None:
        self._response = response
        self.url, self.hosts = url, tuple(hosts)
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    def __exit__(self, *_: object) -> None:
        self.close()

    def chunks(self, size: int, *, decode: bool = False) -> Iterator[bytes]:
        """Yield the body as it arrives, at most `size` bytes at once. Raise NetworkError if it stalls or breaks off."""
        try:
            while chunk := self._response.read1(size, decode_content=decode):
                yield chunk
        except (urllib3.exceptions.HTTPError, OSError) as error:
            broken = network_error(error, self.url)
            broken.retry = isinstance(broken, BrokenError)
            raise broken from error

    def text(self, limit: int) -> bytes:
        """Return the whole decoded body. Raise NetworkError if it has more than `limit` bytes."""
        return b"".join(self.page(limit))

    def page(self, limit: int) -> Iterator[bytes]:
        """Yield the decoded body of a page. Raise NetworkError after `limit` bytes or _PAGE_SECONDS."""
        left = limit
        with within(_PAGE_SECONDS):
            for chunk in self.chunks(_CHUNK, decode=True):
                left -= len(chunk)
                if left < 0:
                    fail(f"its page has more than {limit} bytes")
                yield chunk

    def demand_ok(self, of: str = "") -> None:
        """Raise StatusError unless the status is 200; `of` ends its text."""
        if self.status != HTTPStatus.OK:
            raise StatusError(self.status, self.headers, of)

    def demand_range(self, start: int, stop: int, size: int) -> None:
        """Raise NetworkError unless this is that range of a file of `size` bytes."""
        # hf-mirror sent parts without saying which (huggingface/hf-hub#132).
        untold = self.status == HTTPStatus.PARTIAL_CONTENT and "Content-Range" not in self.headers
        if self.status == HTTPStatus.OK or untold:
            fail("it sends parts without Content-Range" if untold else "it sends whole files only", kind=WholeFileError)
        if self.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            fail("its file is shorter than expected")
        if self.status != HTTPStatus.PARTIAL_CONTENT:
            raise StatusError(self.status, self.headers)
        match = _RANGE.fullmatch(self.headers.get("Content-Range", ""))
        if match is None or tuple(map(int, match.groups())) != (start, stop - 1, size):
            told = self.headers["Content-Range"][:60]
            fail(f"it sends another part or file than requested: {told!r}, not bytes {start}-{stop - 1}/{size}")

    def fail_as_another(self, message: str, *, kind: type[NetworkError] = NetworkError, head: bytes = b"<") -> NoReturn:
        """Raise the error of a body that is not the expected file: `message`, or that it is a web page by its head."""
        if "text/html" not in self.headers.get("Content-Type", "").lower() or head.lstrip()[:1] != b"<":
            fail(message, kind=kind)
        fail(
            "it sends a web page, not the file", "open its URL in a browser: a login or a firewall may stand before it"
        )

    def abort(self) -> None:
        """End a read that waits in another thread."""
        with contextlib.suppress(ValueError, RuntimeError, OSError):  # it has ended already
            self._response.shutdown()

    def close(self) -> None:
        """Return the connection to the pool if the body is read, else close it."""
        if self._response.length_remaining == 0:
            self._response.drain_conn()  # http.client treats a connection as busy until an empty body has been read too
            self._response.release_conn()
        else:
            self._response.close()


def file_size(status: int, headers: Mapping[str, str]) -> int | None:
    """Return the size of the file from the response to a request for its first byte, or None."""
    if status == HTTPStatus.PARTIAL_CONTENT:
        match = _RANGE.fullmatch(headers.get("Content-Range", ""))
        return int(match[3]) if match else None
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return 0 if headers.get("Content-Range") == "bytes */0" else None
    length = headers.get("Content-Length", "")
    return int(length) if status == HTTPStatus.OK and _LENGTH.fullmatch(length) else None
