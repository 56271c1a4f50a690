"""What a request fails of, as text for the user, and what to do about it if not to choose another mirror."""

from __future__ import annotations

import email.utils
import http.client
import os
import re
import ssl
import time
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Final

import urllib3

from envcheck.mirrors.net.urls import host_of, proxy_of

OTHER_MIRROR: Final = "name another mirror (--mirror)"
CLOSED: Final = "add the host to the profile, or remove `closed` from the profile"
# OpenSSL's X509_V_ERR_* (x509_vfy.h): unknown issuer; not valid now; wrong name.
_UNKNOWN: Final = {2, 18, 19, 20, 21}
_TIME: Final = {9, 10}
_NAME: Final = {62, 64}
# http.client's text for a proxy that refuses; the proxy's own words follow the status.
_TUNNEL: Final = re.compile(r"Tunnel connection failed: ([0-9]{3})\b")
_NOT_HTTP: Final = "its answer is not valid HTTP"
_TEXTS: Final[Mapping[type[Exception], str]] = {
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
_DIGITS: Final = re.compile(r"[0-9]+")
_SPELLED: Final = 1e18


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


class BrokenError(NetworkError):
    """A connection that failed, or broke off in the middle of a body (then `retry`)."""


class SlowError(BrokenError):
    """A host that is silent, or sends next to nothing."""


class UntrustedError(NetworkError):
    """A host that failed TLS: its certificate, its name, or its protocol."""


class StatusError(NetworkError):
    """A response with an HTTP status that gives no content. `missing`: the host does not have the file."""

    def __init__(self, status: int, headers: Mapping[str, str], of: str = "") -> None:
        self.after = retry_after(headers, time.time()) if status in _BUSY else None
        super().__init__(f"it answers {status}{of}{wait_phrase(self.after)}", _status_advice(status))
        self.status = status
        self.retry = status in _BUSY
        self.missing = status in {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}


def is_missing(error: NetworkError | None) -> bool:
    """Tell whether a host says that it does not have what it was asked for."""
    return isinstance(error, StatusError) and error.missing


def network_error(error: Exception, url: str) -> NetworkError:
    """Return what an error of a connection or a read is to the user."""
    failed = _tls_error(error)
    if isinstance(error, (urllib3.exceptions.ProxyError, urllib3.exceptions.ProxySchemeUnknown)):
        original = getattr(error, "original_error", error)
        return _kind(original)(f"its proxy: {describe(original)}", _proxy_advice(url))
    if failed is not None:
        return UntrustedError(describe(error), _tls_advice(failed))
    return _kind(error)(describe(error))


def _kind(error: Exception) -> type[NetworkError]:
    if isinstance(error, ValueError):
        return NetworkError
    slow = (StalledError, urllib3.exceptions.ReadTimeoutError, urllib3.exceptions.ConnectTimeoutError)
    chain = (error, error.__cause__, getattr(error, "reason", None), *error.args)
    return SlowError if any(isinstance(one, slow) for one in chain) else BrokenError


def _tls_error(error: Exception) -> ssl.SSLError | None:
    """Return the TLS error in an error, or None: urllib3 wraps it as its only argument or as its reason."""
    for candidate in (error, getattr(error, "reason", None), *error.args):
        if isinstance(candidate, ssl.SSLError):
            return candidate
        if isinstance(candidate, urllib3.exceptions.SSLError) and candidate is not error:
            return _tls_error(candidate)
    return None


def describe(error: Exception) -> str:
    """Return the innermost reason as text, without the objects and (possibly signed) URLs that urllib3 adds."""
    stalled = next((one for one in (error, error.__cause__, *error.args) if isinstance(one, StalledError)), None)
    if stalled is not None:
        return str(stalled)
    failed = _tls_error(error)
    if failed is not None:
        return f"TLS: {getattr(failed, 'verify_message', '') or failed.reason or 'failed'}"
    reason = getattr(error, "reason", None)
    if isinstance(reason, Exception):
        return describe(reason)
    refused = _TUNNEL.match(str(error))
    if refused:
        return f"it answers {refused[1]}"
    if isinstance(error, urllib3.exceptions.ProtocolError) and any(map(_is_not_http, error.args)):
        return _NOT_HTTP
    text = next((text for kind, text in _TEXTS.items() if isinstance(error, kind)), None)
    return text or getattr(error, "strerror", None) or f"the request failed ({type(error).__name__})"


def _is_not_http(reason: object) -> bool:
    """Tell whether http.client could not read a status line, a header or a chunk; a closed connection is none."""
    cut_off = (OSError, http.client.IncompleteRead)
    return isinstance(reason, http.client.HTTPException) and not isinstance(reason, cut_off)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the wait in seconds from Retry-After, which is a number or a date, or None."""
    value = headers.get("Retry-After", "").strip()
    if _DIGITS.fullmatch(value):
        return float(value)  # any number of digits, unlike int(); beyond the largest float it is infinite
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now) if value else None
    except (ValueError, OverflowError):
        return None


def wait_phrase(after: float | None) -> str:
    """Return the end of a sentence about a host that asks to wait this many seconds, or ""."""
    if after is None or after < 1:
        return ""
    return f" and asks to wait {after:.0f} s" if after <= _SPELLED else " and asks to wait more than 10^18 s"


def _tls_advice(error: ssl.SSLError) -> str:
    code, path = getattr(error, "verify_code", None), os.environ.get("SSL_CERT_FILE")
    if code in _UNKNOWN and path and not Path(path).is_file():
        return f"SSL_CERT_FILE names {path}, which does not exist: correct it, or set `ca:` in the profile"
    if code in _UNKNOWN:
        return "set its CA certificate as `ca:` in the profile, or in SSL_CERT_FILE"
    if code in _TIME:
        return "have its certificate renewed, or set this machine's clock"
    return "use the host name that its certificate has" if code in _NAME else ""


def _status_advice(status: int) -> str:
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        return "add the proxy's user and password to the URL in http_proxy or https_proxy"
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return "add a login for this host to the profile (`netrc:` or `credentials:`)"
    return ""


def proxy_variable(scheme: str) -> str:
    """Return the name of the environment variable that sets the proxy for URLs of a scheme."""
    lower = f"{scheme}_proxy"
    return lower if os.environ.get(lower) else lower.upper()


def _proxy_advice(url: str) -> str:
    name = proxy_variable(url.partition(":")[0].lower())
    return f"correct {name}, which names {host_of(proxy_of(url) or '')}, or add the host to no_proxy"


def joined_advice(fixes: Iterable[str], more: str = "", *, other: str = OTHER_MIRROR) -> str:
    """Return each remedy once; without any, return `other`, and append `more`."""
    distinct = list(dict.fromkeys(fix for fix in fixes if fix))
    return ", and ".join(distinct) if distinct else other + more
