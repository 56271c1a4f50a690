"""`envcheck mirror site`: render the configuration of a mirror of one's own, start it, watch it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from envcheck.cli._size import Size
from envcheck.errors import ConfigError

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.mirrors.profile import Profile
    from envcheck.mirrors.site.control import Status
    from envcheck.mirrors.site.discover import Part
    from envcheck.mirrors.site.model import HuggingFace, Index, Registry, Site

_DIRECTORY: Final = click.Path(path_type=Path, file_okay=False)
_FILE: Final = click.Path(path_type=Path, exists=True, dir_okay=False)
# Ports below the site's own one that is given: 0 the indexes, 1 Hugging Face, 2... registries, then what is inside.
_INSIDE: Final = 100


@click.group()
def command() -> None:
    """Render the configuration of a mirror of one's own, start it, watch it.

    \b
    envcheck mirror site render /srv/mirror --address 192.0.2.10 --tls cert.pem key.pem
    envcheck mirror site up /srv/mirror
    envcheck mirror show /srv/mirror/client.yaml --format daemon

    client.yaml is the site as its clients' mirror profile. Alerts and queries have been held against a real
    Prometheus; no Grafana has drawn the dashboard yet.
    """


@command.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--profile", default="none", show_default=True, help="Its upstreams: none, host, or a profile's file.")
@click.option("--address", multiple=True, help="Where it listens; 127.0.0.1 unless given.")
@click.option("--port", type=click.IntRange(1, 65000), default=8443, show_default=True, help="The first of its ports.")
@click.option("--name", help="The name clients know it by; its first address unless given.")
@click.option("--tls", type=(_FILE, _FILE), metavar="CERT KEY", help="Its certificate and key, PEM.")
@click.option("--ca", type=_FILE, help="The private authority of that certificate, for the clients' profile.")
@click.option("--users", type=_FILE, help="An htpasswd file: who may use pip, uv and docker with it.")
@click.option("--hf-tokens", type=_FILE, help='Lines `"Bearer TOKEN" 1;`: who may use hf with it.')
@click.option("--allow", multiple=True, metavar="NETWORK", help="Who may use it at all; everyone unless given.")
@click.option("--hf/--no-hf", default=True, show_default=True, help="With a Hugging Face mirror (olah) behind it.")
@click.option("--pytorch/--no-pytorch", default=True, show_default=True, help="With PyTorch's indexes.")
@click.option("--registry", "registries", multiple=True, metavar="NAME=URL", help="A registry it pulls through.")
@click.option(
    "--link", "links", multiple=True, metavar="URL", help="Where the indexes' pages link to; asked if absent."
)
@click.option("--s3", metavar="BUCKET", help="A bucket behind the static trees; its credentials by rclone's variables.")
@click.option("--sync", "syncs", multiple=True, metavar="NAME=SOURCE", help="A tree to copy from another own mirror.")
@click.option("--tree", "trees", multiple=True, metavar="NAME=URL", help="A tree to cache, as an apt mirror's.")
@click.option("--store", type=_DIRECTORY, help="A store; what `store publish` made of it is served.")
@click.option("--cache-size", type=Size(), help="Of the files' cache, as 500G; 70 % of the disk unless given.")
@click.option("--min-free", type=Size(zero=True), help="Left of the disk; 15 % unless given.")
@click.pass_obj
def render(settings: Settings, /, *, directory: Path, **options: Any) -> int:
    """Write all configuration of a site below DIRECTORY. Nothing is started.

    Upstreams are those of the profile, else the clients' own defaults. What an earlier render wrote and this one does
    not is removed; what you edited is kept as NAME.edited. A copy's SOURCE is what rsync takes: rsync://HOST/MODULE,
    HOST:PATH, /PATH. A cached tree is at /trees/NAME, a copy at /static/NAME; packages of a store are at
    /static/store/simple and whl/VARIANT, its models at the HF port.

    \b
    envcheck mirror site render /srv/mirror --registry docker.io=https://registry.example
    """
    from envcheck.mirrors.load import load
    from envcheck.mirrors.site import discover
    from envcheck.mirrors.site.files import write
    from envcheck.mirrors.site.render import render as to_files

    profile = load(options["profile"])
    site = _site(settings, directory.absolute(), profile, options)
    roots = {"ca.pem": discover.bundle(profile)} if profile.ca else {}
    written = write(directory, {**to_files(site), **roots})
    for name, kept in written.kept.items():
        click.echo(f"{directory / name} was edited: it is {directory / kept} now", err=True)
    if not settings.quiet:
        removed = f", {len(written.removed)} of an earlier render removed" if written.removed else ""
        start = f"start it with `envcheck mirror site up {directory}`"
        click.echo(f"{len(written.files)} files below {directory}{removed}; {start}")
    return 0


@command.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--compose", is_flag=True, help="In containers, by docker compose.")
@click.pass_obj
def up(settings: Settings, /, *, directory: Path, compose: bool) -> int:
    """Start what is rendered in DIRECTORY.

    Exit 0: all run; 3: one is not installed or does not come up, and nothing that was started is left running.
    Prometheus may be absent.

    \b
    envcheck mirror site up /srv/mirror
    """
    from envcheck.mirrors.site import control
    from envcheck.mirrors.site.model import read

    site = read(directory.absolute())
    told = control.compose_up(site) if compose else control.up(site)
    if not settings.quiet:
        _table(told)
    return 0 if all(one.state == "running" or one.optional for one in told) else 3


@command.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--compose", is_flag=True, help="What docker compose started.")
@click.pass_obj
def down(settings: Settings, /, *, directory: Path, compose: bool) -> int:
    """End what `up` started from DIRECTORY, and nothing else.

    \b
    envcheck mirror site down /srv/mirror
    """
    from envcheck.mirrors.site import control
    from envcheck.mirrors.site.model import read

    site = read(directory.absolute())
    if compose:
        return 3 if control.compose(site, "down") else 0
    ended = control.down(site)
    if not settings.quiet:
        click.echo(f"ended {', '.join(ended)}" if ended else "nothing ran")
    return 0


@command.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--compose", is_flag=True, help="What docker compose started.")
def reload(directory: Path, *, compose: bool) -> int:
    """Have nginx read configuration, certificates and what `store publish` made anew; no download breaks off.

    Under systemd a path unit does it whenever a store's version changes.

    \b
    envcheck mirror site reload /srv/mirror
    """
    from envcheck.mirrors.site import control
    from envcheck.mirrors.site.model import read

    site = read(directory.absolute())
    if compose:
        return 3 if control.compose(site, "kill", "--signal", "HUP", "nginx") else 0
    control.reload(site)
    return 0


@command.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--compose", is_flag=True, help="What docker compose started.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def status(directory: Path, *, compose: bool, as_json: bool) -> int:
    """Say what each part of the site in DIRECTORY is doing.

    Exit 0: all run; 1: one does not.

    \b
    envcheck mirror site status /srv/mirror
    """
    import dataclasses
    import json

    from envcheck.mirrors.site import control
    from envcheck.mirrors.site.model import read

    site = read(directory.absolute())
    told = control.composed(site) if compose else control.status(site)
    if as_json:
        parts = [dataclasses.asdict(one) for one in told]
        click.echo(json.dumps({"schema": "envcheck/site-status/1", "parts": parts}, indent=2))
    else:
        _table(told)
    return 0 if all(one.state == "running" or one.optional for one in told) else 1


def _table(told: list[Status]) -> None:
    for one in told:
        missing = f"  needs {one.needs}" if one.state == "not installed" else f"  port {one.port}"
        click.echo(f"{one.name:<24} {one.state}{missing}")


def _site(settings: Settings, root: Path, profile: Profile, options: dict[str, Any]) -> Site:
    from envcheck.mirrors.site import discover
    from envcheck.mirrors.site.model import Site, Tls

    addresses = list(options["address"]) or ["127.0.0.1"]
    port, tls = options["port"], options["tls"]
    size, free = discover.disk(root)
    return Site(
        root=str(root),
        addresses=addresses,
        name=options["name"] or addresses[0],
        port=port,
        indexes=_indexes(settings, profile, options),
        ca=str(root / "ca.pem") if profile.ca else discover.roots(),
        resolvers=discover.resolvers(Path("/etc/resolv.conf").read_text(errors="replace")),
        exporter=port + _INSIDE,
        prometheus=port + _INSIDE + 1,
        cache_size=options["cache_size"] or size,
        min_free=free if options["min_free"] is None else options["min_free"],
        hf=_hf(profile, options),
        registries=_registries(options["registries"], port),
        tls=Tls(certificate=str(tls[0].absolute()), key=str(tls[1].absolute())) if tls else None,
        users=str(options["users"].absolute()) if options["users"] else None,
        allow=list(options["allow"]),
        s3=options["s3"],
        s3_port=port + _INSIDE + 3,
        sync=dict(_pair(text, "SOURCE") for text in options["syncs"]),
        trees={name: url.rstrip("/") for name, url in (_pair(text, "URL") for text in options["trees"])},
        store=str(options["store"].absolute()) if options["store"] else None,
        owner=_owner(root),
        client_ca=str(options["ca"].absolute()) if options["ca"] else None,
    )


def _owner(root: Path) -> str:
    """Return whom the directory belongs to, or will."""
    import os

    if not root.exists():
        return f"{os.geteuid()}:{os.getegid()}"
    told = root.stat()
    return f"{told.st_uid}:{told.st_gid}"


def _indexes(settings: Settings, profile: Profile, options: dict[str, Any]) -> list[Index]:
    from envcheck.mirrors.site.discover import indexes

    parts: tuple[Part, ...] = ("pypi", "pytorch") if options["pytorch"] else ("pypi",)
    links = [_clean(link) for link in options["links"]]
    return indexes(profile, parts, _pages(settings), _client(profile), links)


def _hf(profile: Profile, options: dict[str, Any]) -> HuggingFace | None:
    from envcheck.mirrors.site.model import HuggingFace

    tokens, port = options["hf_tokens"], options["port"]
    if not options["hf"] and not options["store"]:
        return None
    where = str(tokens.absolute()) if tokens else None
    inner = port + _INSIDE + 2 if options["hf"] else 0
    return HuggingFace(port=port + 1, inner=inner, endpoint=profile.hf.endpoint, tokens=where)


def _registries(given: tuple[str, ...], port: int) -> list[Registry]:
    from envcheck.mirrors.site.model import Registry

    pairs = [_pair(text, "URL") for text in given]
    return [
        Registry(name=name, url=url, port=port + 2 + n, inner=port + _INSIDE + 10 + 2 * n, debug=port + 111 + 2 * n)
        for n, (name, url) in enumerate(pairs)
    ]


def _pair(text: str, what: str) -> tuple[str, str]:
    from envcheck.mirrors.profile import redacted

    name, found, value = text.partition("=")
    if not found or not value or "://" in name:
        message = f"{redacted(text)!r} names no {what}"
        raise ConfigError(message, fix=f"write NAME={what}")
    return name, _clean(value)


def _clean(url: str) -> str:
    """Return a URL. Refuse one that holds what may be a secret: it would be in the site's files."""
    from envcheck.mirrors.profile import has_userinfo, redacted, without_query

    if has_userinfo(url) or without_query(url) != url:
        message = f"{redacted(url)!r} has a password, a user or a query in it"
        raise ConfigError(message, fix="leave it out: credentials come from the environment of what is started")
    return url


def _client(profile: Profile) -> Any:
    from envcheck.mirrors import hub

    return hub.client(profile)


def _pages(settings: Settings) -> list[str]:
    """Return the pages of the published cells' packages, as discover.indexes takes them."""
    from envcheck.data import data_path
    from envcheck.images.lock import read_locks
    from envcheck.images.spec import select
    from envcheck.matrix.load import load

    locks = [lock for cell in select(load(settings.matrix), ()) for lock in read_locks(data_path("images") / str(cell))]
    return sorted({f"{lock.index}/{pin.name}" for lock in locks for pin in lock.pins})
