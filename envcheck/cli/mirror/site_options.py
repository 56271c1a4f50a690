"""The options of `envcheck mirror site render` as the site that they describe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from envcheck.errors import ConfigError

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.mirrors.profiles.model import Profile
    from envcheck.mirrors.site.model import HuggingFace, Registry, Site

# Ports below the site's own one that is given: 0 the indexes, 1 Hugging Face, 2... registries, then what is inside.
_INSIDE: Final = 100


class MirrorSiteRenderOptions(NamedTuple):
    """The options of `envcheck mirror site render`."""

    directory: Path
    mirror: str
    address: tuple[str, ...]
    port: int
    name: str | None
    tls: tuple[Path, Path] | None
    ca: Path | None
    users: Path | None
    hf_tokens: Path | None
    allow: tuple[str, ...]
    hf: bool
    pytorch: bool
    registries: tuple[str, ...]
    links: tuple[str, ...]
    s3: str | None
    syncs: tuple[str, ...]
    trees: tuple[str, ...]
    store: Path | None
    cache_size: int | None
    min_free: int | None


def site(settings: Settings, root: Path, profile: Profile, options: MirrorSiteRenderOptions) -> Site:
    """Return the site in a directory, before a profile's upstreams. These are asked once all that is given is right."""
    import msgspec

    from envcheck.mirrors.site import certificate, discover
    from envcheck.mirrors.site.files import refuse_others
    from envcheck.mirrors.site.model import checked, checked_url

    links = [checked_url(_clean(link)) for link in options.links]
    refuse_others(root)
    given = checked(_given(root, profile, options))
    if given.tls:
        certificate.checked(given.tls, given.name, options.ca)
    pages, client = _pages(settings), _client(profile)
    found = [discover.linked(index, pages, client, links) for index in given.indexes]
    return msgspec.structs.replace(given, indexes=found)


def _given(root: Path, profile: Profile, options: MirrorSiteRenderOptions) -> Site:
    """Return the site as the options and this machine say it, before its indexes were asked for their links."""
    from envcheck.mirrors.site import discover
    from envcheck.mirrors.site.disk_space import room
    from envcheck.mirrors.site.model import Site, Tls

    addresses = list(options.address) or ["127.0.0.1"]
    port, tls = options.port, options.tls
    size, free = room(root).sizes(options.cache_size, options.min_free)
    return Site(
        root=str(root),
        addresses=addresses,
        name=options.name or addresses[0],
        port=port,
        indexes=discover.indexes(profile, ("pypi", "pytorch") if options.pytorch else ("pypi",)),
        ca=str(root / "ca.pem") if profile.ca else discover.roots(),
        resolvers=discover.resolvers(Path("/etc/resolv.conf").read_text(errors="replace")),
        exporter=port + _INSIDE,
        prometheus=port + _INSIDE + 1,
        cache_size=size,
        min_free=free,
        hf=_hf(profile, options),
        registries=_registries(options.registries, port),
        tls=Tls(certificate=str(tls[0].absolute()), key=str(tls[1].absolute())) if tls else None,
        users=str(options.users.absolute()) if options.users else None,
        allow=list(options.allow),
        s3=options.s3,
        s3_port=port + _INSIDE + 3,
        sync=_pairs(options.syncs, "SOURCE"),
        trees={name: url.rstrip("/") for name, url in _pairs(options.trees, "URL").items()},
        store=str(options.store.absolute()) if options.store else None,
        owner=_owner(root),
        client_ca=str(options.ca.absolute()) if options.ca else None,
    )


def _owner(root: Path) -> str:
    """Return whom the directory belongs to, or will."""
    import os

    if not root.exists():
        return f"{os.geteuid()}:{os.getegid()}"
    told = root.stat()
    return f"{told.st_uid}:{told.st_gid}"


def _hf(profile: Profile, options: MirrorSiteRenderOptions) -> HuggingFace | None:
    from envcheck.mirrors.site.model import HuggingFace

    tokens, port = options.hf_tokens, options.port
    if not options.hf and not options.store:
        return None
    where = str(tokens.absolute()) if tokens else None
    if options.hf and profile.closed and profile.hf.endpoint is None:
        message = f"{profile.name} is closed and names no `hf: {{endpoint: URL}}`"
        raise ConfigError(message, fix="name one, leave it out with --no-hf, or take `closed` out")
    inner = port + _INSIDE + 2 if options.hf else 0
    return HuggingFace(port=port + 1, inner=inner, endpoint=profile.hf.endpoint, tokens=where)


def _registries(given: tuple[str, ...], port: int) -> list[Registry]:
    from envcheck.mirrors.site.model import Registry

    return [
        Registry(name=name, url=url, port=port + 2 + n, inner=port + _INSIDE + 10 + 2 * n, debug=port + 111 + 2 * n)
        for n, (name, url) in enumerate(_pairs(given, "URL").items())
    ]


def _pairs(given: tuple[str, ...], what: str) -> dict[str, str]:
    """Return NAME=WHAT as name -> what. Refuse a name that is given twice: only one of the two could be had."""
    found: dict[str, str] = {}
    for name, value in (_pair(text, what) for text in given):
        if name in found:
            message = f"{name!r} is given twice: {found[name]} and {value}"
            raise ConfigError(message, fix="give each a name of its own")
        found[name] = value
    return found


def _pair(text: str, what: str) -> tuple[str, str]:
    from envcheck.mirrors.profiles.model import redacted

    name, found, value = text.partition("=")
    if not found or not value or "://" in name:
        message = f"{redacted(text)!r} names no {what}"
        raise ConfigError(message, fix=f"write NAME={what}")
    return name, _clean(value)


def _clean(url: str) -> str:
    """Return a URL. Refuse one that holds what may be a secret: it would be in the site's files."""
    from envcheck.mirrors.profiles.model import has_userinfo, redacted, without_query

    if has_userinfo(url) or without_query(url) != url:
        message = f"{redacted(url)!r} has a password, a user or a query in it"
        raise ConfigError(message, fix="leave it out: credentials come from the environment of what is started")
    return url


def _client(profile: Profile) -> Any:
    from envcheck.mirrors.hub import api as hub_api

    return hub_api.hub_client(profile)


def _pages(settings: Settings) -> list[str]:
    """Return the pages of the published cells' packages, as discover.indexes takes them."""
    from envcheck.data import data_path
    from envcheck.images.locks.lockfile import read_locks
    from envcheck.images.spec import select
    from envcheck.matrix.file.load import load

    locks = [lock for cell in select(load(settings.matrix), ()) for lock in read_locks(data_path("images") / str(cell))]
    return sorted({f"{lock.index}/{pin.name}" for lock in locks for pin in lock.pins})
