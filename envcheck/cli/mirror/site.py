"""`envcheck mirror site`: render the configuration of a mirror of one's own, start it, watch it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from envcheck.cli.mirror.site_options import MirrorSiteRenderOptions
from envcheck.cli.shared.parameter_types import Size
from envcheck.cli.shared.typed_options import takes

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.mirrors.site.control import Status

_DIRECTORY: Final = click.Path(path_type=Path, file_okay=False)
_FILE: Final = click.Path(path_type=Path, exists=True, dir_okay=False)


class MirrorSiteOfflineOptions(NamedTuple):
    """The options of `envcheck mirror site offline`."""

    directory: Path
    undo: bool


class MirrorSiteUpOptions(NamedTuple):
    """The options of `envcheck mirror site up`."""

    directory: Path
    compose: bool


class MirrorSiteDownOptions(NamedTuple):
    """The options of `envcheck mirror site down`."""

    directory: Path
    compose: bool


class MirrorSiteReloadOptions(NamedTuple):
    """The options of `envcheck mirror site reload`."""

    directory: Path
    compose: bool


class MirrorSiteStatusOptions(NamedTuple):
    """The options of `envcheck mirror site status`."""

    directory: Path
    compose: bool
    as_json: bool


@click.group()
def command() -> None:
    """Render the configuration of a mirror of one's own, start it, watch it.

    \b
    envcheck mirror site render /srv/mirror --address 192.0.2.10 --tls cert.pem key.pem
    envcheck mirror site up /srv/mirror
    envcheck mirror show /srv/mirror/client.yaml --format daemon

    client.yaml is the site as its clients' mirror profile. `--compose` takes the images that NGINX_IMAGE,
    REGISTRY_IMAGE, OLAH_IMAGE, RCLONE_IMAGE, PYTHON_IMAGE and PROMETHEUS_IMAGE name. Under systemd a user
    envcheck-mirror owns the directory; copy its systemd/* to /etc/systemd/system, and enable envcheck-mirror.target,
    the timers and the path. Alerts and queries are held against a real Prometheus, the dashboard against Grafana's
    published types; no Grafana has drawn it yet.
    """


@command.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--mirror", default="none", show_default=True, help="Its upstreams: none, host, or a profile's file.")
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
@click.option("--store", type=_DIRECTORY, help="A store; what `store release` made of it is served.")
@click.option("--cache-size", type=Size(), help="Of the files' cache, as 500G; 70 % of what is available unless given.")
@click.option("--min-free", type=Size(zero=True), help="Left of the disk; 15 % of what is available unless given.")
@click.pass_obj
@takes(MirrorSiteRenderOptions)
def render(options: MirrorSiteRenderOptions, settings: Settings) -> int:
    """Write all configuration of a site below DIRECTORY. Nothing is started.

    Upstreams are those of the profile, else the clients' own defaults. What an earlier render wrote and this one does
    not is removed; what you edited is kept as NAME.edited. A copy's SOURCE is what rsync takes: rsync://HOST/MODULE,
    HOST:PATH, /PATH. A cached tree is at /trees/NAME, a copy at /static/NAME; packages of a store are at
    /static/store/simple and whl/VARIANT, its models at the HF port.

    \b
    envcheck mirror site render /srv/mirror --registry docker.io=https://registry.example
    """
    from envcheck.cli.mirror.site_disk_space import say_tight
    from envcheck.cli.mirror.site_options import site
    from envcheck.mirrors.profiles.load import load
    from envcheck.mirrors.site import discover
    from envcheck.mirrors.site.files import write
    from envcheck.mirrors.site.render import render as to_files

    profile = load(options.mirror)
    directory = options.directory
    rendered = site(settings, directory.absolute(), profile, options)
    roots = {"ca.pem": discover.bundle(profile)} if profile.ca else {}
    written = write(directory, {**to_files(rendered), **roots})
    _say_kept(directory, written.kept)
    say_tight(rendered)
    if rendered.store and not Path(rendered.store).is_dir():
        click.echo(f"warning: {rendered.store} is not there: nothing of it is served until it is a store", err=True)
    if not settings.quiet:
        removed = f", {len(written.removed)} of an earlier render removed" if written.removed else ""
        start = f"start it with `envcheck mirror site up {directory}`"
        click.echo(f"{len(written.files)} files below {directory}{removed}; {start}")
    return 0


@command.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--undo", is_flag=True, help="Ask upstreams again.")
@click.pass_obj
@takes(MirrorSiteOfflineOptions)
def offline(options: MirrorSiteOfflineOptions, settings: Settings) -> int:
    """Have a site serve what it has, and ask no registry and no Hugging Face.

    A pull-through registry does not even start while its upstream cannot be reached, and olah answers 504 for what it
    has. nginx needs no such word: what it cached comes anyway. Run `down` and `up` afterwards, or restart the units.

    \b
    envcheck mirror site offline /srv/mirror
    """
    import msgspec

    from envcheck.mirrors.site.files import change
    from envcheck.mirrors.site.model import read
    from envcheck.mirrors.site.render import render as to_files

    site = read(options.directory.absolute())
    now, then = to_files(site), to_files(msgspec.structs.replace(site, offline=not options.undo))
    kept = change(options.directory, {name: text for name, text in then.items() if text != now[name]})
    _say_kept(options.directory, kept)
    if not settings.quiet:
        asked = "upstreams are asked" if options.undo else "no registry and no Hugging Face is asked"
        click.echo(f"{asked} once the site is started anew: `envcheck mirror site down {options.directory}`, then `up`")
    return 0


@command.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--compose", is_flag=True, help="In containers, by docker compose.")
@click.pass_obj
@takes(MirrorSiteUpOptions)
def up(options: MirrorSiteUpOptions, settings: Settings) -> int:
    """Start what is rendered in DIRECTORY.

    Exit 0: all run; 3: one is not installed or does not come up, and nothing that was started is left running.
    Prometheus may be absent.

    \b
    envcheck mirror site up /srv/mirror
    """
    from envcheck.cli.mirror.site_disk_space import say_tight
    from envcheck.mirrors.site import control
    from envcheck.mirrors.site.model import read

    site = read(options.directory.absolute())
    say_tight(site)
    told = control.compose_up(site) if options.compose else control.up(site)
    if not settings.quiet:
        _table(told)
    return 0 if all(one.state == "running" or one.optional for one in told) else 3


@command.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--compose", is_flag=True, help="What docker compose started.")
@click.pass_obj
@takes(MirrorSiteDownOptions)
def down(options: MirrorSiteDownOptions, settings: Settings) -> int:
    """End what `up` started from DIRECTORY, and nothing else.

    \b
    envcheck mirror site down /srv/mirror
    """
    from envcheck.mirrors.site import control
    from envcheck.mirrors.site.model import read

    site = read(options.directory.absolute())
    if options.compose:
        return 3 if control.compose(site, "down") else 0
    ended = control.down(site)
    if not settings.quiet:
        click.echo(f"ended {', '.join(ended)}" if ended else "nothing ran")
    return 0


@command.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--compose", is_flag=True, help="What docker compose started.")
@takes(MirrorSiteReloadOptions)
def reload(options: MirrorSiteReloadOptions) -> int:
    """Have nginx read configuration, certificates and what `store release` made anew; no download breaks off.

    Under systemd a path unit does it whenever a store's version changes.

    \b
    envcheck mirror site reload /srv/mirror
    """
    from envcheck.mirrors.site import control
    from envcheck.mirrors.site.model import read

    site = read(options.directory.absolute())
    if options.compose:
        return 3 if control.compose(site, "kill", "--signal", "HUP", "nginx") else 0
    control.reload(site)
    return 0


@command.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--compose", is_flag=True, help="What docker compose started.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@takes(MirrorSiteStatusOptions)
def status(options: MirrorSiteStatusOptions) -> int:
    """Say what each part of the site in DIRECTORY is doing.

    Exit 0: all run; 1: one does not.

    \b
    envcheck mirror site status /srv/mirror
    """
    import dataclasses
    import json

    from envcheck.cli.mirror.site_disk_space import cache, line
    from envcheck.mirrors.site import control
    from envcheck.mirrors.site.model import read

    site = read(options.directory.absolute())
    told = control.composed(site) if options.compose else control.status(site)
    if options.as_json:
        parts = [dataclasses.asdict(one) for one in told]
        click.echo(json.dumps({"schema": "envcheck/site-status/1", "parts": parts, "cache": cache(site)}, indent=2))
    else:
        _table(told)
        click.echo(line(site))
    return 0 if all(one.state == "running" or one.optional for one in told) else 1


def _say_kept(directory: Path, kept: dict[str, str]) -> None:
    for name, to in kept.items():
        click.echo(f"{directory / name} was edited: it is {directory / to} now", err=True)


def _table(told: list[Status]) -> None:
    for one in told:
        missing = f"  needs {one.needs}" if one.state == "not installed" else f"  port {one.port}"
        click.echo(f"{one.name:<24} {one.state}{missing}")
