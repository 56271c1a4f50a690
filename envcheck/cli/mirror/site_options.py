"""Make a site from the options of `envcheck mirror site render`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from envcheck.errors import ConfigError

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.mirrors.profiles.model import Profile
    from envcheck.mirrors.site.model import Registry, Site, SiteHub

# Offsets from --port: 0 is for the indexes, 1 for Hugging Face, 2... for registries; internal ports start here.
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


def site_from_options(settings: Settings, root: Path, profile: Profile, options: MirrorSiteRenderOptions) -> Site:
    """Return the site of the options, with a profile's upstreams. Check all options before sending requests."""
    import msgspec

    from envcheck.mirrors.site import certificate, discover
    from envcheck.mirrors.site.files import refuse_foreign_directory
    from envcheck.mirrors.site.model import checked, checked_url

    links = [checked_url(_without_secret(link)) for link in options.links]
    refuse_foreign_directory(root)
    without_links = checked(_site_without_links(root, profile, options))
    if without_links.tls:
        certificate.check_certificate(without_links.tls, without_links.name, options.ca)
    pages, client = _pages(settings), _client(profile)
    indexes = [discover.with_links(index, pages, client, links) for index in without_links.indexes]
    return msgspec.structs.replace(without_links, indexes=indexes)


def _site_without_links(root: Path, profile: Profile, options: MirrorSiteRenderOptions) -> Site:
    """Return the site of the options and this machine, without the links of its indexes."""
    from envcheck.mirrors.site import discover
    from envcheck.mirrors.site.disk_space import disk_space
    from envcheck.mirrors.site.model import Site, Tls

    addresses = list(options.address) or ["127.0.0.1"]
    port, tls = options.port, options.tls
    size, free = disk_space(root).sizes(options.cache_size, options.min_free)
    return Site(
        root=str(root),
        addresses=addresses,
        name=options.name or addresses[0],
        port=port,
        indexes=discover.indexes(profile, ("pypi", "pytorch") if options.pytorch else ("pypi",)),
        ca=str(root / "ca.pem") if profile.ca else discover.machine_roots(),
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
    """Return UID:GID of the directory's owner, or of this user if it does not exist."""
    import os

    if not root.exists():
        return f"{os.geteuid()}:{os.getegid()}"
    stat = root.stat()
    return f"{stat.st_uid}:{stat.st_gid}"


def _hf(profile: Profile, options: MirrorSiteRenderOptions) -> SiteHub | None:
    from envcheck.mirrors.site.model import SiteHub

    tokens, port = options.hf_tokens, options.port
    if not options.hf and not options.store:
        return None
    where = str(tokens.absolute()) if tokens else None
    if options.hf and profile.closed and profile.hf.endpoint is None:
        message = f"{profile.name} is closed and names no `hf: {{endpoint: URL}}`"
        raise ConfigError(message, fix="name one, pass --no-hf, or remove `closed`")
    inner = port + _INSIDE + 2 if options.hf else 0
    return SiteHub(port=port + 1, inner=inner, endpoint=profile.hf.endpoint, tokens=where)


def _registries(texts: tuple[str, ...], port: int) -> list[Registry]:
    from envcheck.mirrors.site.model import Registry

    return [
        Registry(name=name, url=url, port=port + 2 + n, inner=port + _INSIDE + 10 + 2 * n, debug=port + 111 + 2 * n)
        for n, (name, url) in enumerate(_pairs(texts, "URL").items())
    ]


def _pairs(texts: tuple[str, ...], value_name: str) -> dict[str, str]:
    """Return NAME=WHAT as name -> what. Raise ConfigError for a duplicate name."""
    pairs: dict[str, str] = {}
    for name, value in (_pair(text, value_name) for text in texts):
        if name in pairs:
            message = f"{name!r} is given twice: {pairs[name]} and {value}"
            raise ConfigError(message, fix="use a different name for each")
        pairs[name] = value
    return pairs


def _pair(text: str, value_name: str) -> tuple[str, str]:
    from envcheck.mirrors.profiles.model import redacted

    name, separator, value = text.partition("=")
    if not separator or not value or "://" in name:
        message = f"{redacted(text)!r} has no {value_name}"
        raise ConfigError(message, fix=f"write NAME={value_name}")
    return name, _without_secret(value)


def _without_secret(url: str) -> str:
    """Return the URL. Raise ConfigError if it may contain a secret, which would be written to the site's files."""
    from envcheck.mirrors.profiles.model import has_userinfo, redacted, without_query

    if has_userinfo(url) or without_query(url) != url:
        message = f"{redacted(url)!r} has a password, a user or a query"
        raise ConfigError(message, fix="remove it, and set credentials in the environment of the started programs")
    return url


def _client(profile: Profile) -> Any:
    from envcheck.mirrors.hub import api as hub_api

    return hub_api.hub_client(profile)


def _pages(settings: Settings) -> list[str]:
    """Return the index pages of the published cells' packages, for discover.with_links."""
    from envcheck.data import data_path
    from envcheck.images.lockfile import read_locks
    from envcheck.images.spec import select
    from envcheck.matrix.file.load import load

    locks = [lock for cell in select(load(settings.matrix), ()) for lock in read_locks(data_path("images") / str(cell))]
    return sorted({f"{lock.index}/{pin.name}" for lock in locks for pin in lock.pins})
