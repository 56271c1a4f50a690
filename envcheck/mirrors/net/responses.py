"""A response, whose body comes in pieces: each read has a deadline, and a page has a limit of bytes and of time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Final

import urllib3

from envcheck.mirrors.net import read_deadlines, stall
from envcheck.mirrors.net.network_errors import NetworkError, SlowError, read_error
from envcheck.mirrors.net.silence import Silence
from envcheck.mirrors.net.urls import host_of
from envcheck.mirrors.net.waits import NETWORK_WAITS

# Seconds that a page may take: enough for 15 MB, the largest known page, at 1 Mbit/s. Bytes read at once.
_PAGE_SECONDS: Final = 120.0
_CHUNK: Final = 1 << 16
# Connections that may share a narrow line: a host of which each brings this share of its least is not silent.
_SHARING: Final = 16


class HttpResponse(contextlib.AbstractContextManager["HttpResponse"]):
    """A response whose body is unread. `hosts` are the hosts of all hops; the last one serves the body.

    `passed` has the headers of each hop, because the first host may describe the file and the last one may not.
    """

    def __init__(
        self,
        response: urllib3.BaseHTTPResponse,
        url: str,
        hosts: tuple[str, ...],
        passed: tuple[Mapping[str, str], ...] = (),
        silence: Silence | None = None,
    ) -> None:
        self._response = response
        self._silence = silence or Silence()
        self.url = url
        self.hosts = hosts
        self.passed = (*passed, response.headers)
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def chunks(self, size: int) -> Iterator[bytes]:
        """Yield the raw body as it arrives, at most `size` bytes at once. Raise NetworkError if it stalls."""
        return self._body(size, decode=False)

    def decoded_chunks(self, size: int) -> Iterator[bytes]:
        """Yield the decoded body as it arrives, without waiting to fill `size`: a caller can end a stalled one."""
        return self._body(size, decode=True)

    def _body(self, size: int, *, decode: bool) -> Iterator[bytes]:
        """Yield the body. Its host counts as silent if it hardly moves, and as heard once it ends or clearly moves."""
        received, began = 0, time.monotonic()
        try:
            while chunk := self._next_chunk(size, decode=decode):
                if received < stall.BYTES <= received + len(chunk):
                    self._silence.heard(self.url)
                received += len(chunk)
                yield chunk
        except (urllib3.exceptions.HTTPError, OSError) as error:
            broken = read_error(error)
            if isinstance(broken, SlowError) and not stall.BYTES // _SHARING <= received < stall.BYTES:
                self._silence.note(self.url, began)
            raise broken from error
        self._silence.heard(self.url)

    def _next_chunk(self, size: int, *, decode: bool) -> bytes:
        with read_deadlines.within(stall.SECONDS):
            return self._response.read1(size, decode_content=decode)

    def text(self, limit: int) -> bytes:
        """Return the whole decoded body. Raise NetworkError if it has more than `limit` bytes."""
        return b"".join(self.page(limit))

    def page(self, limit: int) -> Iterator[bytes]:
        """Yield the decoded body of a page. Raise NetworkError after `limit` bytes or _PAGE_SECONDS."""
        with NETWORK_WAITS.on(host_of(self.url), "page", f"a page is not complete, and it has {_PAGE_SECONDS:.0f} s"):
            yield from self._page(limit)

    def _page(self, limit: int) -> Iterator[bytes]:
        left, until = limit, time.monotonic() + _PAGE_SECONDS
        unreadable = _unreadable_encodings(self.headers)
        if unreadable:
            message = f"its Content-Encoding cannot be read: {unreadable}"
            raise NetworkError(message)
        for chunk in self.decoded_chunks(_CHUNK):
            left -= len(chunk)
            if left < 0:
                message = f"its page has more than {limit} bytes"
                raise NetworkError(message)
            yield chunk
            if time.monotonic() > until:
                message = f"its page took longer than {_PAGE_SECONDS:.0f} s"
                raise SlowError(message)

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


def _unreadable_encodings(headers: Mapping[str, str]) -> str:
    """Return the encodings of a body that cannot be decoded here, as text for the user, or ""."""
    names = [name.strip().lower() for name in headers.get("Content-Encoding", "").split(",")]
    readable = {"", "identity", *urllib3.response.HTTPResponse.CONTENT_DECODERS}
    shown = ", ".join(name[:20] if name.isprintable() else "?" for name in names if name not in readable)
    return shown[:60]
