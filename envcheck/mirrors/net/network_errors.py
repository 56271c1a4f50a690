"""What a request fails of, as text for the user, and what to do about it if not to choose another mirror."""

import email.utils
import http.client
import os
import re
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Final, NoReturn

import urllib3

from envcheck.mirrors.net.urls import proxy_of
from envcheck.mirrors.profiles.model import host_of

OTHER_MIRROR: Final = "name another mirror (--mirror)"
# OpenSSL's X509_V_ERR_* (x509_vfy.h): unknown issuer; not valid now; wrong name.
_TLS_ADVICE: Final = {
    **dict.fromkeys((2, 18, 19, 20, 21), "set its CA certificate as `ca:` in the profile, or in SSL_CERT_FILE"),
    **dict.fromkeys((9, 10), "have its certificate renewed, or set this machine's clock"),
    **dict.fromkeys((62, 64), "use the host name that its certificate has"),
}
_NO_TLS: Final = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"}
_LOGIN: Final = (
    "add a login for this host to the profile: `netrc:`, a file with `machine HOST`, the name without https:// alone;"
    " or `credentials:` (on another port than 443: HOST:PORT)"
)
_GATED: Final = "accept its terms on its page, set `hf: {token: allow}`, and let a fine-grained token read gated ones"
_STATUS_ADVICE: Final[Mapping[int, str]] = {
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED: "add the proxy's user and password to http_proxy or https_proxy",
    HTTPStatus.UNAUTHORIZED: _LOGIN,
    # Public mirrors refuse networks that fetched much (tuna/issues#2154), and object stores what they lack.
    HTTPStatus.FORBIDDEN: f"use another host, or {_LOGIN}",
    HTTPStatus.NETWORK_AUTHENTICATION_REQUIRED: "log in to this network with a browser",
}
# http.client's text for a proxy that refuses; the proxy's own words follow the status.
_TUNNEL: Final = re.compile(r"Tunnel connection failed: ([0-9]{3})\b")
_NOT_HTTP: Final = "its answer is not valid HTTP"
_TEXTS: Final[Mapping[type[Exception], str]] = {
    urllib3.exceptions.ProxySchemeUnknown: "only an http or https proxy can be asked",
    ValueError: "its URL is invalid",
    urllib3.exceptions.InvalidHeader: _NOT_HTTP,
    urllib3.exceptions.DecodeError: "its Content-Encoding cannot be read",
    urllib3.exceptions.NameResolutionError: "the name does not resolve",
    urllib3.exceptions.NewConnectionError: "no connection",
    urllib3.exceptions.ConnectTimeoutError: "no connection in time",
    urllib3.exceptions.ReadTimeoutError: "it stalled",
    TimeoutError: "no answer in time",
    urllib3.exceptions.IncompleteRead: "the response ended too early",
    urllib3.exceptions.ProtocolError: "it was cut off",
}
_BUSY: Final = {408, 425, 429, 500, 502, 503, 504}
_LONGEST: Final = 1e9


class StalledError(TimeoutError):
    """A response that brings too little in its time."""


class NetworkError(Exception):
    """A request that failed: refused, timed out, cut off, or not trusted. The text is for the user.

    `fix` is what to do, if it is not to choose another mirror. `retry`: the same request may succeed later, and
    `after` has the seconds that the host asks to wait.
    """

    retry = False
    after: float | None = None

    def __init__(self, message: str = "", fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix


def fail(message: str, fix: str = "", *, kind: type[NetworkError] = NetworkError) -> NoReturn:
    """Raise an error of this kind."""
    raise kind(message, fix)


class BrokenError(NetworkError):
    """A connection that failed, or broke off in the middle of a body (then `retry`)."""


class SlowError(BrokenError):
    """A host that is silent, or sends next to nothing."""


class UntrustedError(NetworkError):
    """A host that failed TLS: its certificate, its name, or its protocol."""


class StatusError(NetworkError):
    """A response with an HTTP status that gives no content; `of` follows the status in its text."""

    def __init__(self, status: int, headers: Mapping[str, str], of: str = "") -> None:
        self.after = _retry_after(headers, time.time()) if status in _BUSY else None
        wait = f" and asks to wait {self.after:.0f} s" if self.after is not None and self.after >= 1 else ""
        gated = headers.get("X-Error-Code") == "GatedRepo"
        super().__init__(f"it answers {status}{of}{wait}", _GATED if gated else _STATUS_ADVICE.get(status, ""))
        self.status = status
        self.retry = status in _BUSY


def is_missing(error: NetworkError | None) -> bool:
    """Tell whether a host says that it does not have what it was asked for."""
    return isinstance(error, StatusError) and error.status in {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}


def network_error(error: Exception, url: str) -> NetworkError:
    """Return what an error of a connection or a read is to the user."""
    if isinstance(error, (urllib3.exceptions.ProxyError, urllib3.exceptions.ProxySchemeUnknown)):
        original = getattr(error, "original_error", error)
        name = proxy_variable(url.partition(":")[0].lower())
        named = host_of(proxy_of(url) or "") or "no host (http://HOST:PORT)"
        fix = f"correct {name}, which names {named}, or add the host to no_proxy"
        return _kind(original)(f"its proxy: {_text(original)}", fix)
    failed = _first(error, ssl.SSLError)
    if failed is not None:
        return UntrustedError(_text(error), _TLS_ADVICE.get(getattr(failed, "verify_code", 0), ""))
    return _kind(error)(_text(error))


def _chain(error: object) -> Iterator[Exception]:
    """Yield an error and those inside it: urllib3 wraps one as an argument, as its reason or as its cause."""
    if isinstance(error, Exception):
        yield error
        for inner in (error.__cause__, getattr(error, "reason", None), *error.args):
            yield from _chain(inner)


def _first(error: Exception, kind: type[Exception]) -> Exception | None:
    return next((one for one in _chain(error) if isinstance(one, kind)), None)


def _kind(error: Exception) -> type[NetworkError]:
    if isinstance(error, ValueError):
        return NetworkError
    slow = (StalledError, urllib3.exceptions.ReadTimeoutError, urllib3.exceptions.ConnectTimeoutError)
    return SlowError if any(isinstance(one, slow) for one in _chain(error)) else BrokenError


def _text(error: Exception) -> str:
    """Return the innermost reason as text, without the objects and (possibly signed) URLs that urllib3 adds."""
    stalled, failed = _first(error, StalledError), _first(error, ssl.SSLError)
    if stalled is not None:
        return str(stalled)
    if failed is not None:
        told = getattr(failed, "verify_message", "") or getattr(failed, "reason", "") or "failed"
        return f"TLS: {told}{' (it speaks plain http there, as it seems)' if told in _NO_TLS else ''}"
    reason = getattr(error, "reason", None)
    if isinstance(reason, Exception):
        return _text(reason)
    refused = _TUNNEL.match(str(error))
    if refused:
        return f"it answers {refused[1]}"
    # http.client could not read a status line, a header or a chunk; a closed connection is none of these.
    unread = [one for one in error.args if isinstance(one, http.client.HTTPException)]
    cut_off = (OSError, http.client.IncompleteRead)
    if isinstance(error, urllib3.exceptions.ProtocolError) and not all(isinstance(one, cut_off) for one in unread):
        return _NOT_HTTP
    text = next((text for kind, text in _TEXTS.items() if isinstance(error, kind)), None)
    return text or getattr(error, "strerror", None) or f"the request failed ({type(error).__name__})"


def _retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the wait in seconds from Retry-After, which is a number or a date, or None."""
    value = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"[0-9]+", value):
        return min(float(value), _LONGEST)  # of any number of digits, unlike int()
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now) if value else None
    except (ValueError, OverflowError):
        return None


def proxy_variable(scheme: str) -> str:
    """Return the name of the environment variable that sets the proxy for URLs of a scheme."""
    names = (f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
    return next((name for name in names if os.environ.get(name)), names[1])


def joined_advice(fixes: Iterable[str], more: str = "", *, other: str = OTHER_MIRROR) -> str:
    """Return each remedy once; without any, return `other`, and append `more`."""
    return ", and ".join(dict.fromkeys(fix for fix in fixes if fix)) or other + more
