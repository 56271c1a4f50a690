"""What to do about a failed request, if another mirror is not the first thing to try."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Final

from envcheck.mirrors.net.urls import host_of, proxy_of

# OpenSSL's X509_V_ERR_* (x509_vfy.h): unknown issuer; not valid now; wrong name.
_UNKNOWN: Final = {2, 18, 19, 20, 21}
_TIME: Final = {9, 10}
_NAME: Final = {62, 64}
OTHER_MIRROR: Final = "name another mirror (--mirror)"
CLOSED: Final = "add the host to the profile, or remove `closed` from the profile"


def tls_advice(error: ssl.SSLError) -> str:
    """Return what to do about a certificate, or "" if TLS itself failed."""
    code = getattr(error, "verify_code", None)
    if code in _UNKNOWN:
        return _authority(os.environ.get("SSL_CERT_FILE"))
    if code in _TIME:
        return "have its certificate renewed, or set this machine's clock"
    return "use the host name that its certificate has" if code in _NAME else ""


def _authority(path: str | None) -> str:
    if path and not Path(path).is_file():
        return f"SSL_CERT_FILE names {path}, which does not exist: correct it, or set `ca:` in the profile"
    return "set its CA certificate as `ca:` in the profile, or in SSL_CERT_FILE"


def status_advice(status: int) -> str:
    """Return what to do about a status that refuses access, or "" for any other."""
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        return "add the proxy's user and password to the URL in http_proxy or https_proxy"
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return "add a login for this host to the profile (`netrc:` or `credentials:`)"
    return ""


def proxy_variable(scheme: str) -> str:
    """Return the name of the environment variable that sets the proxy for URLs of a scheme."""
    lower = f"{scheme}_proxy"
    return lower if os.environ.get(lower) else lower.upper()


def proxy_advice(url: str) -> str:
    """Return what to do about the proxy that the environment sets for a URL."""
    name = proxy_variable(url.partition(":")[0].lower())
    return f"correct {name}, which names {host_of(proxy_of(url) or '')}, or add the host to no_proxy"


def joined_advice(fixes: Iterable[str], more: str = "", *, other: str = OTHER_MIRROR) -> str:
    """Return each remedy once; without any, return `other`, and append `more`."""
    distinct = list(dict.fromkeys(fix for fix in fixes if fix))
    return ", and ".join(distinct) if distinct else other + more
