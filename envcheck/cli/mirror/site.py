"""`envcheck mirror site`: render the configuration of your own mirror, start it, watch it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from envcheck.cli.mirror.site_options import MirrorSiteRenderOptions
from envcheck.cli.shared.parameter_types import Size
from envcheck.cli.shared.typed_options import takes
from envcheck.counting import counted

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.mirrors.site.control import PartStatus

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
    """Render the configuration of your own mirror, start it, watch it.

    \b
    envcheck mirror site render /srv/mirror --address 192.0.2.10 \\
        --tls cert.pem key.pem
    envcheck mirror site up /srv/mirror
    envcheck mirror show /srv/mirror/client.yaml --format daemon

    client.yaml is the mirror profile for the site's clients. `--compose` uses the images in NGINX_IMAGE,
    REGISTRY_IMAGE, OLAH_IMAGE, RCLONE_IMAGE, PYTHON_IMAGE and PROMETHEUS_IMAGE. For systemd, give the directory to a
    user envcheck-mirror, copy its systemd/* to /etc/systemd/system, and enable envcheck-mirror.target, the timers and
    the path. Alerts and queries are tested with a real Prometheus; the dashboard is tested with Grafana's published
    types, not with a real Grafana.
    """


@command.command()
@click.argument("directory", type=_DIRECTORY)
@click.option(
    "--mirror", default="none", show_default=True, help="Upstreams of the site: none, host, or a profile's file."
)
@click.option("--address", multiple=True, help="Address to listen on. Repeatable.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(1, 65000), default=8443, show_default=True, help="First port of the site.")
@click.option("--name", help="Host name for clients  [default: the first address]")
@click.option("--tls", type=(_FILE, _FILE), metavar="CERT KEY", help="Certificate and key of the site, PEM.")
@click.option("--ca", type=_FILE, help="Private CA of that certificate, for the clients' profile.")
@click.option("--users", type=_FILE, help="htpasswd file of the users for pip, uv and docker.")
@click.option("--hf-tokens", type=_FILE, help='File of lines `"Bearer TOKEN" 1;`: the tokens for hf.')
@click.option(
    "--allow", multiple=True, metavar="NETWORK", help="Network of allowed clients. Repeatable.  [default: all]"
)
@click.option("--hf/--no-hf", default=True, show_default=True, help="Include a Hugging Face mirror (olah).")
@click.option("--pytorch/--no-pytorch", default=True, show_default=True, help="Include PyTorch's indexes.")
@click.option(
    "--registry", "registries", multiple=True, metavar="NAME=URL", help="Registry to pull through. Repeatable."
)
@click.option(
    "--link",
    "links",
    multiple=True,
    metavar="URL",
    help="Host that the indexes' pages link to. Repeatable.  [default: read the pages]",
)
@click.option(
    "--s3", metavar="BUCKET", help="Bucket behind the static trees; set its credentials in rclone's variables."
)
@click.option(
    "--sync",
    "syncs",
    multiple=True,
    metavar="NAME=SOURCE",
    help="Tree to copy from another of your mirrors. Repeatable.",
)
@click.option(
    "--tree", "trees", multiple=True, metavar="NAME=URL", help="Tree to cache, e.g. of an apt mirror. Repeatable."
)
@click.option("--store", type=_DIRECTORY, help="Store whose released tree (`store release`) is served.")
@click.option("--cache-size", type=Size(), help="Size of the cache, e.g. 500G  [default: 70 % of the available space]")
@click.option(
    "--min-free", type=Size(zero=True), help="Disk space to keep free  [default: 15 % of the available space]"
)
@click.pass_obj
@takes(MirrorSiteRenderOptions)
def render(options: MirrorSiteRenderOptions, settings: Settings) -> int:
    """Write the configuration of a site below DIRECTORY, without starting it.

    Upstreams come from the profile, else they are the clients' defaults. A new render removes files of an earlier one
    that are no longer needed, and keeps files that you edited as NAME.edited. The SOURCE of a copy is a source of
    rsync: rsync://HOST/MODULE, HOST:PATH or /PATH. The site serves a cached tree at /trees/NAME, a copy at
    /static/NAME, packages of a store at /static/store/simple and whl/VARIANT, and its models at the HF port.

    \b
    envcheck mirror site render /srv/mirror \\
        --registry docker.io=https://registry.example
    """
    from envcheck.cli.mirror.site_disk_space import warn_if_tight
    from envcheck.cli.mirror.site_options import site_from_options
    from envcheck.mirrors.profiles.load import load
    from envcheck.mirrors.site import discover
    from envcheck.mirrors.site.files import write
    from envcheck.mirrors.site.render import render as to_files

    profile = load(options.mirror)
    directory = options.directory
    rendered = site_from_options(settings, directory.absolute(), profile, options)
    roots = {"ca.pem": discover.ca_bundle(profile)} if profile.ca else {}
    written = write(directory, {**to_files(rendered), **roots})
    _report_edited_files(directory, written.kept)
    warn_if_tight(rendered)
    if rendered.store and not Path(rendered.store).is_dir():
        click.echo(f"warning: {rendered.store} does not exist; the site serves no store until it does", err=True)
    if not settings.quiet:
        removed = f", {len(written.removed)} of an earlier render removed" if written.removed else ""
        start = f"start it with `envcheck mirror site up {directory}`"
        click.echo(f"{counted(len(written.files), 'file')} below {directory}{removed}; {start}")
    return 0


@command.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--undo", is_flag=True, help="Allow requests to upstreams again.")
@click.pass_obj
@takes(MirrorSiteOfflineOptions)
def offline(options: MirrorSiteOfflineOptions, settings: Settings) -> int:
    """Make a site serve only what it has, without requests to registries and Hugging Face.

    Otherwise a pull-through registry does not start while its upstream is unreachable, and olah answers 504 even for
    cached files. nginx always serves what it has cached. Run `down` and `up` afterwards, or restart the units.

    \b
    envcheck mirror site offline /srv/mirror
    """
    import msgspec

    from envcheck.mirrors.site.files import rewrite
    from envcheck.mirrors.site.model import read
    from envcheck.mirrors.site.render import render as to_files

    site = read(options.directory.absolute())
    now, then = (
        to_files(site),
        to_files(msgspec.structs.replace(site, offline=not options.undo)),
    )
    kept = rewrite(options.directory, {name: text for name, text in then.items() if text != now[name]})
    _report_edited_files(options.directory, kept)
    if not settings.quiet:
        mode = "online" if options.undo else "offline"
        click.echo(f"the site is {mode} after a restart: `envcheck mirror site down {options.directory}`, then `up`")
    return 0


@command.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--compose", is_flag=True, help="Run in containers with docker compose.")
@click.pass_obj
@takes(MirrorSiteUpOptions)
def up(options: MirrorSiteUpOptions, settings: Settings) -> int:
    """Start the site that is rendered in DIRECTORY.

    Exit 0: all parts run; 3: a part is not installed or does not start, and all started parts are stopped again.
    Prometheus is optional.

    \b
    envcheck mirror site up /srv/mirror
    """
    from envcheck.cli.mirror.site_disk_space import warn_if_tight
    from envcheck.mirrors.site import compose, control
    from envcheck.mirrors.site.model import read

    site = read(options.directory.absolute())
    warn_if_tight(site)
    statuses = compose.up(site) if options.compose else control.up(site)
    if not settings.quiet:
        _print_status(statuses)
    return 0 if all(part.state == "running" or part.optional for part in statuses) else 3


@command.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--compose", is_flag=True, help="What docker compose started.")
@click.pass_obj
@takes(MirrorSiteDownOptions)
def down(options: MirrorSiteDownOptions, settings: Settings) -> int:
    """Stop the parts that `up` started from DIRECTORY, and no other process.

    \b
    envcheck mirror site down /srv/mirror
    """
    from envcheck.mirrors.site import compose, control
    from envcheck.mirrors.site.model import read

    site = read(options.directory.absolute())
    if options.compose:
        return 3 if compose.run(site, "down") else 0
    ended = control.down(site)
    if not settings.quiet:
        click.echo(f"stopped {', '.join(ended)}" if ended else "no part was running")
    return 0


@command.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--compose", is_flag=True, help="What docker compose started.")
@takes(MirrorSiteReloadOptions)
def reload(options: MirrorSiteReloadOptions) -> int:
    """Make nginx reload configuration, certificates and released trees, without interrupting downloads.

    Under systemd a path unit does it whenever the version of a store changes.

    \b
    envcheck mirror site reload /srv/mirror
    """
    from envcheck.mirrors.site import compose, control
    from envcheck.mirrors.site.model import read

    site = read(options.directory.absolute())
    if options.compose:
        return 3 if compose.run(site, "kill", "--signal", "HUP", "nginx") else 0
    control.reload(site)
    return 0


@command.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--compose", is_flag=True, help="What docker compose started.")
@click.option("--json", "as_json", is_flag=True, help="Print envcheck/site-status/1.")
@takes(MirrorSiteStatusOptions)
def status(options: MirrorSiteStatusOptions) -> int:
    """Show the status of each part of the site in DIRECTORY.

    Exit 0: all parts run; 1: a part does not run.

    \b
    envcheck mirror site status /srv/mirror
    """
    import dataclasses
    import json

    from envcheck.cli.mirror.site_disk_space import cache_status, status_line
    from envcheck.mirrors.site import compose, control
    from envcheck.mirrors.site.model import read

    site = read(options.directory.absolute())
    statuses = compose.status(site) if options.compose else control.status(site)
    if options.as_json:
        parts = [dataclasses.asdict(part) for part in statuses]
        click.echo(
            json.dumps({"schema": "envcheck/site-status/1", "parts": parts, "cache": cache_status(site)}, indent=2)
        )
    else:
        _print_status(statuses)
        click.echo(status_line(site))
    return 0 if all(part.state == "running" or part.optional for part in statuses) else 1


def _report_edited_files(directory: Path, kept: dict[str, str]) -> None:
    for name, to in kept.items():
        click.echo(f"{directory / name} was edited: renamed to {directory / to}", err=True)


def _print_status(statuses: list[PartStatus]) -> None:
    for part in statuses:
        missing = f"  needs {part.needs}" if part.state == "not installed" else f"  port {part.port}"
        click.echo(f"{part.name:<24} {part.state}{missing}")
