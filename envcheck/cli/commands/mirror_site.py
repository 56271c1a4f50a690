"""`envcheck mirror site render`: write the configuration of your own mirror."""

import os
from pathlib import Path
from typing import Annotated, Final

import click
import msgspec

from envcheck.cli import Settings
from envcheck.cli.options import DIRECTORY, EXISTING_FILE, Argument, Option, Options, Size, command_with
from envcheck.cli.shared.process import note
from envcheck.counting import counted
from envcheck.data import data_path, rendered
from envcheck.errors import refuse
from envcheck.images.lockfile import read_locks
from envcheck.images.spec import select
from envcheck.matrix.file.load import load as load_matrix
from envcheck.mirrors import site_sources
from envcheck.mirrors.net.client import hub_client
from envcheck.mirrors.profiles.host_config import ca_bundle
from envcheck.mirrors.profiles.load import load
from envcheck.mirrors.profiles.model import Profile, has_userinfo, redacted
from envcheck.mirrors.site import (
    Registry,
    Site,
    SiteHub,
    Tls,
    checked,
    checked_url,
    read,
    refuse_foreign_directory,
    render,
    write,
)

# Offsets from --port: 0 is for the indexes, 1 for Hugging Face, 2... for registries; internal ports start here.
_INSIDE: Final = 100
_TLS: Final = (EXISTING_FILE, EXISTING_FILE)
_PAIR: Final = "NAME=URL"


class MirrorSiteRenderOptions(Options):
    directory: Annotated[Path, Argument(type=DIRECTORY)]
    mirror: Annotated[str, Option("Take the upstreams from none, host, or a profile's file.")] = "none"
    address: Annotated[tuple[str, ...], Option("Listen on this address. Repeatable.")] = ("127.0.0.1",)
    port: Annotated[int, Option("Listen on this port and the next ones.", type=click.IntRange(1, 65000))] = 8443
    name: Annotated[str | None, Option("Clients use this host name.  [the first address]")] = None
    tls: Annotated[tuple[Path, Path] | None, Option("Serve https with them.", type=_TLS, metavar="CERT KEY")] = None
    ca: Annotated[Path | None, Option("CA of CERT, which clients trust then.", type=EXISTING_FILE)] = None
    users: Annotated[Path | None, Option("htpasswd: pip, uv and docker log in.", type=EXISTING_FILE)] = None
    hf_tokens: Annotated[Path | None, Option('hf takes these: lines `"Bearer TOKEN" 1;`.', type=EXISTING_FILE)] = None
    allow: Annotated[tuple[str, ...], Option("Let these clients in. Repeatable.  [all]", metavar="NETWORK")] = ()
    hf: Annotated[bool, Option("--hf/--no-hf", "Include a Hugging Face mirror (olah).", show_default=True)] = True
    pytorch: Annotated[bool, Option("--pytorch/--no-pytorch", "Include PyTorch's indexes.", show_default=True)] = True
    registries: Annotated[tuple[str, ...], Option("--registry", "Cache this one. Repeatable.", metavar=_PAIR)] = ()
    links: Annotated[tuple[str, ...], Option("--link", "Host of the indexes' files. Repeatable.", metavar="URL")] = ()
    s3: Annotated[str | None, Option("Serve trees from here, by rclone's variables.", metavar="BUCKET")] = None
    syncs: Annotated[tuple[str, ...], Option("--sync", "Copy this tree. Repeatable.", metavar="NAME=SOURCE")] = ()
    trees: Annotated[tuple[str, ...], Option("--tree", "Cache this tree, e.g. apt's. Repeatable.", metavar=_PAIR)] = ()
    store: Annotated[Path | None, Option("Serve the released tree of this store.", type=DIRECTORY)] = None
    cache_size: Annotated[int | None, Option("Limit the cache: 500G.  [70 % of the disk]", type=Size())] = None
    min_free: Annotated[int | None, Option("Keep so much space free.  [15 % of the disk]", type=Size(zero=True))] = None
    offline: Annotated[bool, Option("Serve only what the site has, without requests to upstreams.")] = False


@command_with(MirrorSiteRenderOptions)
def command(options: MirrorSiteRenderOptions, settings: Settings) -> None:
    """Write the configuration of a site below DIRECTORY: nginx, its caches, metrics, alerts, compose and systemd."""
    profile, directory = load(options.mirror), options.directory
    site = site_from_options(settings, directory.absolute(), profile, options)
    roots = ca_bundle(profile)
    written = write(directory, {**render(site), **({"ca.pem": roots} if roots is not None else {})})
    notes = {
        "site": site,
        "directory": directory,
        "kept": written.kept,
        "no_store": bool(site.store) and not Path(site.store or "").is_dir(),
        "no_name": site.tls and (":" in site.name or site.name.replace(".", "").isdigit()),
    }
    click.echo(rendered("printed/site-notes.txt.j2", notes), nl=False, err=True)
    if not settings.quiet:
        removed = f", {len(written.removed)} of an earlier render removed" if written.removed else ""
        start = f"start it with `docker compose -f {directory}/compose.yaml up --detach`, or {directory}/systemd"
        click.echo(f"{counted(len(written.files), 'file')} below {directory}{removed}; {start}")


def site_from_options(settings: Settings, root: Path, profile: Profile, options: MirrorSiteRenderOptions) -> Site:
    """Return the site of the options, with a profile's upstreams. Check all options before sending requests."""
    links = [checked_url(_without_secret(link)) for link in options.links]
    refuse_foreign_directory(root)
    site = checked(_site_without_links(root, profile, options))
    if site.tls:
        site_sources.check_certificate(site.tls, site.name, options.ca)
    if site.offline and not links:  # an offline site knows the links of the last render
        known = {(index.part, index.url): index for index in read(root).indexes}
        indexes = [known.get((index.part, index.url), index) for index in site.indexes]
    else:
        cells = [data_path("images") / str(cell) for cell in select(load_matrix(settings.matrix), ())]
        pages = sorted({f"{lock.index}/{pin.name}" for cell in cells for lock in read_locks(cell) for pin in lock.pins})
        if not settings.quiet:
            note(
                f"reading what {counted(len(site.indexes), 'index', 'indexes')} link to: {counted(len(pages), 'page')}"
            )
        indexes = [site_sources.with_links(index, pages, hub_client(profile), links) for index in site.indexes]
    return msgspec.structs.replace(site, indexes=indexes)


def _site_without_links(root: Path, profile: Profile, options: MirrorSiteRenderOptions) -> Site:
    port, tls, inside = options.port, options.tls, options.port + _INSIDE
    size, free = site_sources.cache_sizes(root, options.cache_size, options.min_free)
    owner = root.stat() if root.exists() else None
    return Site(
        root=str(root),
        addresses=list(options.address),
        name=options.name or options.address[0],
        port=port,
        indexes=site_sources.indexes(profile, ("pypi", "pytorch") if options.pytorch else ("pypi",)),
        ca=str(root / "ca.pem") if profile.ca else site_sources.machine_roots(),
        resolvers=site_sources.resolvers(Path("/etc/resolv.conf").read_text(errors="replace")),
        mtail=inside,
        prometheus=inside + 1,
        s3_port=inside + 3,
        node=inside + 4,
        cache_size=size,
        min_free=free,
        hf=_hf(profile, options),
        registries=[
            Registry(name=name, url=url, port=port + 2 + n, inner=inside + 10 + 2 * n, debug=inside + 11 + 2 * n)
            for n, (name, url) in enumerate(_pairs(options.registries, "URL").items())
        ],
        tls=Tls(certificate=str(tls[0].absolute()), key=str(tls[1].absolute())) if tls else None,
        users=_absolute(options.users),
        allow=list(options.allow),
        s3=options.s3,
        sync=_pairs(options.syncs, "SOURCE"),
        trees={name: url.rstrip("/") for name, url in _pairs(options.trees, "URL").items()},
        store=_absolute(options.store),
        owner=f"{owner.st_uid}:{owner.st_gid}" if owner else f"{os.geteuid()}:{os.getegid()}",
        client_ca=_absolute(options.ca),
        offline=options.offline,
    )


def _absolute(path: Path | None) -> str | None:
    return str(path.absolute()) if path else None


def _hf(profile: Profile, options: MirrorSiteRenderOptions) -> SiteHub | None:
    if not options.hf and not options.store:
        return None
    if options.hf and profile.closed and profile.hf.endpoint is None:
        refuse(f"{profile.name} is closed and names no `hf: {{endpoint: URL}}`", "name one, or pass --no-hf")
    inner = options.port + _INSIDE + 2 if options.hf else 0
    return SiteHub(
        port=options.port + 1, inner=inner, endpoint=profile.hf.endpoint, tokens=_absolute(options.hf_tokens)
    )


def _pairs(texts: tuple[str, ...], value_name: str) -> dict[str, str]:
    """Return NAME=WHAT as name -> what. Raise ConfigError for a duplicate name."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not value or "://" in name:
            refuse(f"{redacted(text)!r} has no {value_name}", f"write NAME={value_name}")
        if name in pairs:
            refuse(f"{name!r} is given twice: {pairs[name]} and {redacted(value)}", "use a different name for each")
        pairs[name] = _without_secret(value)
    return pairs


def _without_secret(url: str) -> str:
    """Return the URL. Raise ConfigError if it may contain a secret, which would be written to the site's files."""
    if has_userinfo(url) or "?" in url:
        refuse(f"{redacted(url)!r} has a password, a user or a query", "set it in the environment of the programs")
    return url
