"""The HTTP client of all stages. It follows redirects itself, so that each hop is checked on its own.

The credential of a hop is looked up for its own URL (see `credentials`). A redirect from https to http is refused.
A body may hold a secret too, such as a refresh token, so it follows no redirect to another origin.
"""

import contextlib
import io
import ssl
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import urllib3
from urllib3.util import Timeout, make_headers

from envcheck import __version__
from envcheck.errors import refuse
from envcheck.mirrors.net.credentials import Login, logins, named_hosts
from envcheck.mirrors.net.network_errors import NetworkError, SlowError, fail, network_error, proxy_variable
from envcheck.mirrors.net.responses import POOLS, HttpResponse, within
from envcheck.mirrors.net.urls import origin_of, proxy_login, proxy_of, redirect_target
from envcheck.mirrors.profiles.model import Profile, host_of
from envcheck.struct_types import Secret

HOPS: Final = 10
_REDIRECTS: Final = {301, 302, 303, 307, 308}
# Redirects that repeat the method and the body.
_REPEATING: Final = {307, 308}
_BODILESS: Final = {"GET", "HEAD"}
# Bytes of a sent body for which a server gets one second more to answer: it hashes or copies what it received.
_DIGESTED: Final = 10 << 20
# Bytes that are read of a redirect's body, so that its connection can be reused, and seconds for that.
_DRAINED: Final = 1 << 16
_DRAINING: Final = 5.0
# A host that was silent so often in a row is not asked again for so many seconds: not every file must find that out.
_ROUNDS: Final = 2
_WHILE: Final = 60.0


class _SentRequest(Secret, frozen=True):
    """What is sent at every hop of a request; a body may hold a refresh token."""

    method: str
    headers: Mapping[str, str]
    body: bytes
    login: Login | None


class Client:
    """An HTTP client for several threads; timeouts in seconds. `within`: the hosts that it may ask, None for all."""

    def __init__(
        self,
        *,
        ca: Path | None = None,
        logins: Sequence[Login] = (),
        connect: float = 10.0,
        read: float = 25.0,
        connections: int = 8,
        within: Collection[str] | None = None,
    ) -> None:
        self._within = within
        self._context = None if ca is None else _trust(ca)  # else the system's are read at the first https request
        self._connect, self._read = connect, read
        self._logins = logins
        self._options: dict[str, Any] = {"num_pools": 16, "maxsize": connections, "retries": False}
        self._pools: dict[tuple[str | None, bool], urllib3.PoolManager] = {}
        self._lock = threading.Lock()
        self._silent: dict[str, tuple[int, float, str]] = {}  # host -> rounds, the end of the last one, and the reason

    def get(self, url: str, headers: Mapping[str, str] | None = None, *, login: Login | None = None) -> HttpResponse:
        """Return the response at the end of the redirects, its body unread. Raise NetworkError if there is none."""
        return self.send("GET", url, headers, login=login)

    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        body: bytes = b"",
        login: Login | None = None,
    ) -> HttpResponse:
        """Send a request and return the response at the end of the redirects, its body unread.

        `login` comes before the logins of the client. Raise NetworkError if there is no response, or if what is no GET
        or HEAD is redirected to another origin.
        """
        hosts: list[str] = []
        request = _SentRequest(method, headers or {}, body, login)
        for _ in range(HOPS):
            hosts.append(host_of(url))
            try:
                response = self._send(request, url)
            except NetworkError as error:
                if len(hosts) == 1:
                    raise
                message = f"redirected to {host_of(url)}: {error}"
                raise type(error)(message, error.fix) from error
            target = response.headers.get("Location")
            if response.status not in _REDIRECTS or target is None:
                return HttpResponse(response, url, hosts)
            _drain(response)
            url = _next_hop(request, url, target, response.status)
        message = f"more than {HOPS} redirects, the last to {host_of(url)}"
        raise NetworkError(message)

    def _send(self, request: _SentRequest, url: str) -> urllib3.BaseHTTPResponse:
        if self._within is not None and urlsplit(url).hostname not in self._within:
            message = f"{host_of(url)} is not in the profile, and the profile is closed"
            raise NetworkError(message, "add the host to the profile, or remove `closed` from the profile")
        if "\\" in urlsplit(url).netloc:  # evil\@mirror: a login for mirror, and evil is asked (urllib3#5143)
            fail("its URL names two hosts")
        rounds, last, reason = self._silent.get(host_of(url), (0, 0.0, ""))
        if rounds >= _ROUNDS and time.monotonic() - last < _WHILE:
            fail(f"{reason}, again and again", kind=SlowError)
        began = time.monotonic()
        try:
            sent = {"User-Agent": f"envcheck/{__version__}", "Accept-Encoding": "identity", **request.headers}
            for login in self._logins if request.login is None else [request.login, *self._logins]:
                if (header := login.header(url)) is not None:
                    sent["Authorization"] = header
                    break
            size = len(request.body)
            timeout = Timeout(connect=self._connect, read=self._read + size / _DIGESTED)
            sent |= {} if request.method in _BODILESS else {"Content-Length": str(size)}
            options: dict[str, Any] = {"redirect": False, "preload_content": False, "timeout": timeout}
            # Sent in blocks: bytes would have to leave within one timeout, however many they are.
            options |= {"body": io.BytesIO(request.body)} if size else {}
            response = self._pool(url).request(request.method, url, headers=sent, **options)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            failure = network_error(error, url)
            with self._lock:  # requests that wait at the same time are one round
                rounds, last, _ = self._silent.get(host_of(url), (0, began, ""))
                if isinstance(failure, SlowError) and began >= last:
                    self._silent[host_of(url)] = (rounds + 1, time.monotonic(), str(failure))
            raise failure from error
        self._silent.pop(host_of(url), None)
        return response

    def _pool(self, url: str) -> urllib3.PoolManager:
        proxy, secure = proxy_of(url), urlsplit(url).scheme == "https"
        with self._lock:
            if (proxy, secure) not in self._pools:
                if self._context is None and (secure or proxy is not None):
                    self._context = _trust(None)
                options = {**self._options, "ssl_context": self._context}
                made = urllib3.PoolManager(**options) if proxy is None else _proxied(proxy, options, secure=secure)
                made.pool_classes_by_scheme = POOLS
                self._pools[proxy, secure] = made
            return self._pools[proxy, secure]


def hub_client(profile: Profile, *more_endpoints: str, probes: bool = False, **options: Any) -> Client:
    """Return a client with the profile's CA and credentials; `more_endpoints` also get the token.

    With a closed profile it connects only to hosts that the profile names. With `probes` it connects to others too,
    so that a probe can find redirects to them.
    """
    ca = Path(profile.ca) if profile.ca else None
    within = named_hosts(profile) if profile.closed and not probes else None
    return Client(ca=ca, logins=logins(profile, *more_endpoints), within=within, **options)


def _next_hop(request: _SentRequest, url: str, target: str, status: int) -> str:
    try:
        location = redirect_target(url, target)
    except ValueError as error:
        raise NetworkError(str(error)) from error
    if request.method not in _BODILESS and (status not in _REPEATING or origin_of(location) != origin_of(url)):
        fail(f"{host_of(url)} redirects a {request.method} to {host_of(location)}, which is not followed")
    return location


def _proxied(proxy: str, options: dict[str, Any], *, secure: bool) -> urllib3.ProxyManager:
    try:
        return urllib3.ProxyManager(proxy, proxy_headers=make_headers(proxy_basic_auth=proxy_login(proxy)), **options)
    except urllib3.exceptions.ProxySchemeUnknown:
        raise
    except (ValueError, urllib3.exceptions.HTTPError):
        name = proxy_variable("https" if secure else "http")
        fail(f"the proxy's URL in {name} is invalid", f"write {name}=http://HOST:PORT, or add the host to no_proxy")


def _trust(ca: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    # Python 3.13 refuses the CAs of many firewalls, which curl and uv take (github.com/python/cpython/issues/138193).
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if ca is not None:
        try:
            context.load_verify_locations(ca)
        except (ssl.SSLError, OSError) as error:
            refuse(f"{ca}: cannot read certificates: {error}", "use a PEM bundle of certificates")
    return context


def _drain(response: urllib3.BaseHTTPResponse) -> None:
    """Read the short body of a redirect; close the connection if the body is longer."""
    with contextlib.suppress(urllib3.exceptions.HTTPError, OSError), within(_DRAINING):
        response.read(_DRAINED, decode_content=False)
    if response.length_remaining == 0:
        response.release_conn()
    else:
        response.close()
