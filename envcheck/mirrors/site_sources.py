"""What a site is made from: upstream indexes and links; this machine's roots, resolvers and disk; a certificate."""

import contextlib
import ipaddress
import shutil
import ssl
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Literal

from envcheck.errors import ConfigError, UnavailableError, refuse
from envcheck.mirrors import index as simple_api
from envcheck.mirrors.index import python_index, pytorch_index
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import NetworkError
from envcheck.mirrors.net.waits import map_in_threads
from envcheck.mirrors.profiles.host_config import system_roots
from envcheck.mirrors.profiles.model import CLIENT_DEFAULT, Profile, host_of, network_indexes
from envcheck.mirrors.site import SiteIndex, Tls, origin

_THREADS: Final = 8
_VARIANT: Final = "/{variant}"

# Shares of the disk: nginx evicts above the first, and earlier if less than the second is free.
_CACHE: Final = 0.7
_KEPT_FREE: Final = 0.15

Part = Literal["pypi", "pytorch"]


def indexes(profile: Profile, parts: Sequence[Part]) -> list[SiteIndex]:
    """Return the indexes that a site mirrors, without links: the profile's first of each kind, or clients' defaults.

    Raise ConfigError if a closed profile names no index.
    """
    found = []
    for part in parts:
        default = python_index if part == "pypi" else pytorch_index
        sources = network_indexes(profile.indexes(part), closed=profile.closed)
        if not sources:
            refuse(
                f"{profile.name} is closed and names no index under `{part}:`",
                "name one, remove `closed`, or pass --no-pytorch if that is missing",
            )
        url = default() if sources[0].url == CLIENT_DEFAULT else sources[0].url
        found.append(SiteIndex(part=part, url=url.partition(_VARIANT)[0].rstrip("/")))
    return found


def with_links(index: SiteIndex, pages: Sequence[str], client: Client, links: Sequence[str] = ()) -> SiteIndex:
    """Return an index with the origins of its files: those of `links`, else those that its pages link to.

    `pages` are "pypi/NAME" or "pytorch/VARIANT/NAME". Raise UnavailableError if none of them can be read.
    """
    part, url = index.part, index.url
    own_pages = [f"{url}/{page.removeprefix(f'{part}/')}/" for page in pages if page.startswith(f"{part}/")]
    urls = links or _linked_urls(client, own_pages)
    return SiteIndex(part=part, url=url, links=sorted({origin(link) for link in urls} - {origin(url)}))


def _linked_urls(client: Client, pages: Iterable[str]) -> list[str]:
    def read_page(page: str) -> list[simple_api.IndexFile] | str:
        try:
            return simple_api.read_page(client, page)
        except NetworkError as error:
            return f"{host_of(page)}: {error}"

    answers = map_in_threads(read_page, pages, _THREADS)
    read = [answer for answer in answers if not isinstance(answer, str)]
    if not read:
        why = next((answer for answer in answers if isinstance(answer, str)), "no page is known")
        message = f"cannot read the links on the index's pages: {why}"
        raise UnavailableError(message, fix="name the hosts with --link URL, or render on a machine that has access")
    return [file.url for files in read for file in files if file.url.startswith(("https://", "http://"))]


def machine_roots() -> str:
    """Return the path of this machine's roots in PEM, which verify upstream certificates."""
    path = system_roots({})
    if path is None:
        refuse("no CA certificates on this machine", "install ca-certificates, or name a bundle under `ca:`")
    return str(path)


def resolvers(text: str) -> list[str]:
    """Return the addresses of the name servers in resolv.conf's text, in nginx's format."""
    addresses = [line.split()[1].partition("%")[0] for line in text.splitlines() if line.startswith("nameserver ")]
    return [f"[{address}]" if ipaddress.ip_address(address).version == 6 else address for address in addresses]  # noqa: PLR2004


def cache_sizes(root: Path, cache_size: int | None, min_free: int | None) -> tuple[int, int]:
    """Return the largest size of a site's cache and the space to keep free, in bytes; None takes a share of the disk.

    Raise ConfigError for more than the whole disk.
    """
    disk = shutil.disk_usage(next(path for path in (root, *root.parents) if path.exists()))
    for name, size in (("--cache-size", cache_size), ("--min-free", min_free)):
        if size is not None and size > disk.total:
            refuse(f"{name} {size} is more than the whole disk, {disk.total} bytes", "pass less, or leave it out")
    size = int(disk.total * _CACHE) if cache_size is None else cache_size
    return size, int(disk.total * _KEPT_FREE) if min_free is None else min_free


def check_certificate(tls: Tls, name: str, ca: Path | None) -> None:
    """Raise ConfigError if clients would refuse the certificate for a name: by its key, dates, names, or this CA."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        server.load_cert_chain(tls.certificate, tls.key, password=lambda: "")  # nginx cannot ask for one
        client.load_verify_locations(ca or tls.certificate)
        if ca is None:  # trust the certificate itself, and check only its dates and names
            client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        _handshake(server, client, name)
    except (OSError, ValueError) as error:
        why = getattr(error, "verify_message", "") or getattr(error, "reason", None) or str(error)
        message = f"clients would refuse {tls.certificate} with the key {tls.key} for {name}: {why}"
        fix = "pass --tls CERT KEY in PEM that fit each other, are valid today and have that --name; and its CA as --ca"
        raise ConfigError(message, fix=fix) from error


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(10):  # more turns than a handshake needs
        for side in sides:
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
