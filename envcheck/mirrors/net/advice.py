"""What to do about a request that got no usable answer, where another mirror is not the first thing to try."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Final

from envcheck.mirrors.net.urls import host_of, proxy_of

# OpenSSL's X509_V_ERR_* (x509_vfy.h): nobody that is trusted signed it; another time than now; another name.
_UNKNOWN: Final = {2, 18, 19, 20, 21}
_TIME: Final = {9, 10}
_NAME: Final = {62, 64}
_OTHER: Final = "name another mirror (--mirror)"
CLOSED: Final = "name that host in the profile, or leave `closed` out of it"


def tls_advice(error: ssl.SSLError) -> str:
    """Return what to do about a certificate, or "" where TLS itself failed."""
    code = getattr(error, "verify_code", None)
    if code in _UNKNOWN:
        return _authority(os.environ.get("SSL_CERT_FILE"))
    if code in _TIME:
        return "have its certificate renewed, or set this machine's clock"
    return "write the host as its certificate names it" if code in _NAME else ""


def _authority(named: str | None) -> str:
    if named and not Path(named).is_file():
        return f"SSL_CERT_FILE names {named}, which is no file: correct it, or name the CA as `ca:` in the profile"
    return "name its authority as `ca:` in the profile, or in SSL_CERT_FILE"


def status_advice(status: int) -> str:
    """Return what to do about a refusal, or "" where a status is none."""
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        return "write the user that the proxy wants into the URL of http_proxy or https_proxy"
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return "name the login it wants in the profile (`netrc:` or `credentials:`)"
    return ""


def proxy_advice(url: str) -> str:
    """Return what to do about the proxy that the environment names for a URL."""
    lower = f"{url.partition(':')[0].lower()}_proxy"
    name = lower if os.environ.get(lower) else lower.upper()
    return f"correct {name}, which names {host_of(proxy_of(url) or '')}, or name the host in no_proxy"


def joined_advice(fixes: Iterable[str], more: str = "") -> str:
    """Return each remedy once; to name another mirror, and `more`, where there is none."""
    known = list(dict.fromkeys(fix for fix in fixes if fix))
    return ", and ".join(known) if known else _OTHER + more
