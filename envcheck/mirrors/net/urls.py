"""URLs as a client must read them: which host, which origin, which proxy, and where a redirect may lead. No I/O."""

from __future__ import annotations

import ipaddress
import urllib.request
from typing import Final
from urllib.parse import unquote, urljoin, urlsplit

_SECURE: Final = "https"
_PORTS: Final = {"http": 80, _SECURE: 443}


def host_of(url: str) -> str:
    """Return host:port as the URL says, without what may stand before the @."""
    return urlsplit(url).netloc.rpartition("@")[2]


def origin_of(url: str) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port: who may see what was meant for the URL."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


def redirect_target(url: str, target: str) -> str:
    """Return where a redirect leads. Raise ValueError, saying why, where it must not be followed."""
    try:
        there = urljoin(url, target)
        scheme = urlsplit(there).scheme
        named = urlsplit(there).hostname
    except ValueError as error:
        message = f"{host_of(url)} redirects to what is no URL"
        raise ValueError(message) from error
    if scheme not in _PORTS or not named or (urlsplit(url).scheme == _SECURE and scheme != _SECURE):
        message = f"{host_of(url)} redirects to {scheme or 'no URL'}, which is not trusted"
        raise ValueError(message)
    if is_loopback(named) and not is_loopback(urlsplit(url).hostname or ""):
        message = f"{host_of(url)} redirects to this machine's own {named}, which is not trusted"
        raise ValueError(message)
    return there


def is_loopback(host: str) -> bool:
    """Tell whether a host's name or address is this machine's own, as it is written; no name is looked up."""
    if host.lower().rstrip(".") == "localhost" or host.lower().rstrip(".").endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return bool(mapped.is_loopback or mapped.is_unspecified)


def proxy_of(url: str) -> str | None:
    """Return the proxy that the environment names for a URL, or None where it is asked directly."""
    parts = urlsplit(url)
    named = urllib.request.getproxies().get(parts.scheme)
    if not named or urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return named if "://" in named else f"http://{named}"


def proxy_login(proxy: str) -> str | None:
    """Return USER:PASSWORD of a proxy's URL, or None where it has none."""
    parts = urlsplit(proxy)
    return f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
