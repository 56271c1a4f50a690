"""HTTP for whatever is fetched or probed: redirects followed by hand, so that each hop is known and trusted by itself.

A hop's credential is what the netrc file says of its host; a bearer token goes to the host it was given for and to no
other. A redirect from https to plain http is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import netrc
import ssl
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import urllib3
from urllib3.util import Timeout, make_headers

from envcheck import __version__
from envcheck.errors import ConfigError

HOPS: Final = 10
_REDIRECTS: Final = {301, 302, 303, 307, 308}
_SECURE: Final = "https"


class NetworkError(Exception):
    """A request that got no usable answer: refused, timed out, cut off, or not trusted. The text is for a person."""


@dataclasses.dataclass(frozen=True)
class Bearer:
    """A token, and the one host that may see it."""

    host: str
    token: str = dataclasses.field(repr=False)


class Answer(contextlib.AbstractContextManager["Answer"]):
    """A response whose body has not been read yet. `hosts` are those it came through, the last one served it."""

    def __init__(self, response: urllib3.BaseHTTPResponse, url: str, hosts: tuple[str, ...]) -> None:
        self._response = response
        self.url = url
        self.hosts = hosts
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def chunks(self, size: int) -> Iterator[bytes]:
        """Yield the body as sent. Raise NetworkError when it stalls or ends before its Content-Length."""
        try:
            while chunk := self._response.read(size, decode_content=False):
                yield chunk
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise NetworkError(_why(error)) from error

    def text(self, limit: int) -> bytes:
        """Return the whole body, decoded as its Content-Encoding says; more than `limit` bytes are a NetworkError."""
        try:
            body = self._response.read(limit + 1, decode_content=True)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise NetworkError(_why(error)) from error
        if len(body) > limit:
            message = f"more than {limit} bytes where a page was expected"
            raise NetworkError(message)
        return body

    def close(self) -> None:
        """Give the connection back if the body is read, and end it if not: the rest is not worth waiting for."""
        if self._response.length_remaining == 0:
            self._response.release_conn()
        else:
            self._response.close()


class Client:
    """One pool of connections; safe to use from several threads. Seconds."""

    def __init__(
        self,
        *,
        ca: Path | None = None,
        netrc_file: Path | None = None,
        bearer: Bearer | None = None,
        connect: float = 10.0,
        read: float = 20.0,
        connections: int = 8,
    ) -> None:
        self._context = _trust(ca)
        self._netrc = _credentials(netrc_file)
        self._bearer = bearer
        self._options: dict[str, Any] = {
            "num_pools": 16,
            "maxsize": connections,
            "timeout": Timeout(connect=connect, read=read),
            "retries": False,
            "ssl_context": self._context,
        }
        self._pools: dict[str | None, urllib3.PoolManager] = {}

    def get(self, url: str, headers: Mapping[str, str] | None = None, *, method: str = "GET") -> Answer:
        """Return the answer at the end of the redirects, its body unread. Raise NetworkError where there is none."""
        hosts: list[str] = []
        for _ in range(HOPS):
            hosts.append(_host(url))
            response = self._send(method, url, headers or {})
            target = response.headers.get("Location")
            if response.status not in _REDIRECTS or target is None:
                return Answer(response, url, tuple(hosts))
            response.drain_conn()
            response.release_conn()
            url = _followed(url, target)
        message = f"more than {HOPS} redirects, the last to {_host(url)}"
        raise NetworkError(message)

    def _send(self, method: str, url: str, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        sent = {"User-Agent": f"envcheck/{__version__}", "Accept-Encoding": "identity", **headers, **self._auth(url)}
        try:
            return self._pool(url).request(method, url, headers=sent, redirect=False, preload_content=False)
        except (urllib3.exceptions.HTTPError, OSError, UnicodeError) as error:
            raise NetworkError(_why(error)) from error

    def _auth(self, url: str) -> dict[str, str]:
        host = _host(url)
        if self._bearer is not None and self._bearer.host == host:
            return {"Authorization": f"Bearer {self._bearer.token}"}
        known = self._netrc.authenticators(urlsplit(url).hostname or "") if self._netrc else None
        if known is None:
            return {}
        return {"Authorization": make_headers(basic_auth=f"{known[0]}:{known[2]}")["authorization"]}

    def _pool(self, url: str) -> urllib3.PoolManager:
        """Return the pool that reaches the URL: direct, or through the proxy that the environment names for it."""
        parts = urlsplit(url)
        named = urllib.request.getproxies().get(parts.scheme)
        proxy = None if not named or urllib.request.proxy_bypass(parts.hostname or "") else named
        if proxy not in self._pools:
            made = urllib3.ProxyManager(proxy, **self._options) if proxy else urllib3.PoolManager(**self._options)
            self._pools[proxy] = made
        return self._pools[proxy]


def _trust(ca: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca is not None:
        try:
            context.load_verify_locations(ca)
        except (ssl.SSLError, OSError) as error:
            message = f"{ca}: no certificates can be read there: {error}"
            raise ConfigError(message, fix="name a PEM bundle of certificates") from error
    return context


def _credentials(path: Path | None) -> netrc.netrc | None:
    if path is None:
        return None
    try:
        return netrc.netrc(path)
    except (netrc.NetrcParseError, OSError, UnicodeDecodeError) as error:
        message = f"{path}: no netrc file: {getattr(error, 'msg', None) or type(error).__name__}"
        raise ConfigError(message, fix="write `machine HOST login USER password SECRET`, one a line") from error


def _host(url: str) -> str:
    """Return host:port as the URL says, without what may stand before the @."""
    return urlsplit(url).netloc.rpartition("@")[2]


def _followed(url: str, target: str) -> str:
    there = urljoin(url, target)
    scheme = urlsplit(there).scheme
    if scheme not in {"http", "https"} or (urlsplit(url).scheme == _SECURE and scheme != _SECURE):
        message = f"{_host(url)} redirects to {scheme or 'no URL'}, which is not trusted"
        raise NetworkError(message)
    return there


def _why(error: Exception) -> str:
    """Return the innermost reason, without the objects and URLs (which may be signed) that urllib3 tells along."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, Exception):
        return _why(reason)
    known = {
        urllib3.exceptions.NameResolutionError: "the name does not resolve",
        urllib3.exceptions.ConnectTimeoutError: "no connection in time",
        urllib3.exceptions.ReadTimeoutError: "it stalled",
        urllib3.exceptions.NewConnectionError: "no connection",
        urllib3.exceptions.IncompleteRead: "it ended before its length",
        urllib3.exceptions.ProtocolError: "it was cut off",
    }
    if isinstance(error, ssl.SSLError):
        return f"TLS: {getattr(error, 'verify_message', '') or error.reason or 'failed'}"
    said = next((text for kind, text in known.items() if isinstance(error, kind)), None)
    return said or (error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__)
