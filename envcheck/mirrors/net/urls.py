"""Read URLs: host, origin, proxy, and where a redirect may lead. No I/O."""

import contextlib
import ipaddress
import re
import socket
import urllib.request
from typing import Final
from urllib.parse import unquote, urljoin, urlsplit

from envcheck.errors import refuse
from envcheck.mirrors.profiles.model import host_of, redacted

_SECURE: Final = "https"
_PORTS: Final = {"http": 80, _SECURE: 443}
# Where the clouds of Alibaba and, over IPv6, AWS have it; the others' is link-local.
_METADATA: Final = {"100.100.100.200", "fd00:ec2::254"}
_HASH: Final = re.compile(r"(md5|sha[0-9]+)=(.*)", re.DOTALL)


def is_web_url(url: str) -> bool:
    """Tell whether it is an http or https URL with a host, and a port that exists if it names one."""
    try:
        parts = urlsplit(url)
        return parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:
        return False


def split_sha256(url: str) -> tuple[str, str | None]:
    """Return the URL without its fragment, and the hash of `#sha256=`, or None. Any other fragment has no meaning here.

    Raise ConfigError for a hash that is no sha256: whoever wrote it expects that it is compared.
    """
    bare, _, fragment = url.partition("#")
    named = _HASH.fullmatch(fragment)
    if named is None:
        return bare, None
    if named[1] != "sha256" or not re.fullmatch(r"[0-9a-fA-F]{64}", named[2]):
        refuse(f"{redacted(bare)!r} has no valid hash after its #", "write #sha256= and 64 hexadecimal digits")
    return bare, named[2].lower()


def origin_of(url: str) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port; a secret for one URL goes only to the same origin."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


def redirect_target(url: str, target: str) -> str:
    """Return the URL that a redirect leads to. Raise ValueError with the reason if it must not be followed."""
    try:
        location = urljoin(url, target)
        scheme = urlsplit(location).scheme
        hostname = urlsplit(location).hostname
    except ValueError as error:
        message = f"{host_of(url)} redirects to an invalid URL"
        raise ValueError(message) from error
    if scheme not in _PORTS or not hostname or (urlsplit(url).scheme == _SECURE and scheme != _SECURE):
        message = f"{host_of(url)} redirects to {scheme or 'no URL'}, which is not trusted"
        raise ValueError(message)
    address, here = _address(hostname), urlsplit(url).hostname or ""
    # A cloud's metadata at 169.254.169.254 gives this machine's own tokens, too (oras-go, GHSA-xf85-363p-868w).
    near = address is not None and (address.is_link_local or str(address) in _METADATA) and hostname != here
    if near or (is_loopback(hostname) and not is_loopback(here)):
        what = "the link-local or metadata address" if near else "this machine's own"
        message = f"{host_of(url)} redirects to {what} {hostname}, which is not trusted"
        raise ValueError(message)
    return location


def is_loopback(host: str) -> bool:
    """Tell whether a host name or address is loopback, without a lookup."""
    if host.lower().rstrip(".") == "localhost" or host.lower().rstrip(".").endswith(".localhost"):
        return True
    address = _address(host)
    return address is not None and (address.is_loopback or address.is_unspecified)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a host is written as, of IPv6 the IPv4 in it; None for a name."""
    try:
        # 127.1 and 0x7f000001 are addresses to the resolver, too.
        address = ipaddress.ip_address(host if ":" in host else socket.inet_aton(host))
    except (OSError, ValueError):
        return None
    return getattr(address, "ipv4_mapped", None) or address


def proxy_of(url: str) -> str | None:
    """Return the proxy that the environment sets for a URL, or None, as pip, uv and curl read the variables.

    `all_proxy` counts for other machines unless it is a SOCKS proxy. `no_proxy` may hold networks (10.0.0.0/8), ports.
    """
    parts, proxies = urlsplit(url), urllib.request.getproxies()
    host = parts.hostname or ""
    everything = "" if is_loopback(host) else proxies.get("all", "")
    proxy = proxies.get(parts.scheme) or ("" if everything.lower().startswith("socks") else everything)
    bypassed = urllib.request.proxy_bypass(host) or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2])
    if not proxy or bypassed or _is_in_network(host, proxies.get("no", "")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_in_network(host: str, no_proxy: str) -> bool:
    """Tell whether a host is an address in one of the networks; Python's own reading knows no networks."""
    for entry in no_proxy.split(","):
        with contextlib.suppress(ValueError):
            if "/" in entry and ipaddress.ip_address(host) in ipaddress.ip_network(entry.strip(), strict=False):
                return True
    return False


def proxy_login(proxy: str) -> str | None:
    """Return USER:PASSWORD of a proxy's URL, or None."""
    parts = urlsplit(proxy)
    return f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
