"""What a site is rendered from: this machine's disk, roots and resolvers, and where an index's pages link to."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Literal

from envcheck.errors import ConfigError, UnavailableError
from envcheck.mirrors.index import simple_api
from envcheck.mirrors.net.client import Client, NetworkError
from envcheck.mirrors.net.client_defaults import python_index, pytorch_index
from envcheck.mirrors.net.urls import host_of
from envcheck.mirrors.profiles.host_config import certificates
from envcheck.mirrors.profiles.model import CLIENT_DEFAULT, Profile, network_indexes
from envcheck.mirrors.site.model import Index, origin

_AT_ONCE: Final = 8
_VARIANT: Final = "/{variant}"
_BUNDLES: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


Part = Literal["pypi", "pytorch"]


def indexes(profile: Profile, parts: Sequence[Part]) -> list[Index]:
    """Return the indexes a site stands before: the profile's first of each kind, or the clients' own defaults.

    Nothing is asked, and none has links yet. Raise ConfigError where a closed profile names no index.
    """
    return [Index(part=part, url=_url(profile, part)) for part in parts]


def linked(index: Index, pages: Sequence[str], client: Client, links: Sequence[str] = ()) -> Index:
    """Return an index with where its files may be taken from: `links`, else what its pages link to.

    `pages` are "pypi/NAME" or "pytorch/VARIANT/NAME". Raise UnavailableError where not one of them can be read.
    """
    part, url = index.part, index.url
    mine = [f"{url}/{page.removeprefix(f'{part}/')}/" for page in pages if page.startswith(f"{part}/")]
    found = links or _linked(client, mine)
    return Index(part=part, url=url, links=sorted({origin(one) for one in found} - {origin(url)}))


def _url(profile: Profile, part: Part) -> str:
    named, default = (profile.pypi, python_index) if part == "pypi" else (profile.pytorch, pytorch_index)
    sources = network_indexes(named, closed=profile.closed)
    if not sources:
        message = f"{profile.name} is closed and names no index under `{part}:`"
        more = ", leave it out with --no-pytorch" if part == "pytorch" else ""
        raise ConfigError(message, fix=f"name one{more}, or take `closed` out")
    url = default() if sources[0].url == CLIENT_DEFAULT else sources[0].url
    return url.partition(_VARIANT)[0].rstrip("/")


def _linked(client: Client, pages: Iterable[str]) -> list[str]:
    """Return the origins that files of these pages are at; a page that some index lacks is none of its."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(lambda page: _read(client, page), pages))
    read = [answer for answer in answers if not isinstance(answer, str)]
    if not read:
        why = next((answer for answer in answers if isinstance(answer, str)), "no page of it to ask for")
        message = f"where the index's pages link to cannot be read: {why}"
        raise UnavailableError(message, fix="name the hosts with --link URL, or render where the index can be reached")
    return [file.url for files in read for file in files if file.url.startswith(("https://", "http://"))]


def _read(client: Client, page: str) -> list[simple_api.IndexFile] | str:
    try:
        return simple_api.read_page(client, page)
    except NetworkError as error:
        return f"{host_of(page)}: {error}"


def bundle(profile: Profile) -> str:
    """Return this machine's roots, where it has any, and the profile's own beside them, PEM."""
    files = [path for path in (_machine_roots(), profile.ca) if path]
    return certificates(Path(path).read_text() for path in files)


def roots() -> str:
    """Return the PEM bundle of this machine's roots, which upstream certificates are checked against."""
    found = _machine_roots()
    if found is None:
        message = "no certificates of authorities on this machine"
        raise ConfigError(message, fix="install ca-certificates, or name a bundle under `ca:` in a mirror profile")
    return found


def _machine_roots() -> str | None:
    told = ssl.get_default_verify_paths()
    return next((path for path in (told.cafile, *_BUNDLES) if path and Path(path).is_file()), None)


def resolvers(text: str) -> list[str]:
    """Return the addresses of the name servers in resolv.conf's text, as nginx writes them."""
    found = [line.split()[1].partition("%")[0] for line in text.splitlines() if line.startswith("nameserver ")]
    return [f"[{one}]" if ipaddress.ip_address(one).version == 6 else one for one in found]  # noqa: PLR2004
