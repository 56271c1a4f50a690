"""`envcheck mirror audit`: hash again what a mirror serves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from envcheck.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from envcheck.cli import Settings
    from envcheck.mirrors.http import Client
    from envcheck.mirrors.locate import Need
    from envcheck.mirrors.site.audit import Finding
    from envcheck.mirrors.site.audit_site import Known
    from envcheck.mirrors.site.model import Site

_FILE: Final = click.Path(path_type=Path, exists=True, dir_okay=False)
_WEB: Final = ("https://", "http://")
# Of what is not judged, this many are named.
_NAMED: Final = 5


@click.command(
    epilog="Exit 0: what could be judged is right; 1: something was poisoned; 2: wrong usage; 3: nothing could be "
    "judged, or a part could not be read."
)
@click.argument("where", metavar="DIRECTORY|URL")
@click.option(
    "--cell", "cells", multiple=True, metavar="CELL", help="Files of this cell's locks; of every cell's unless given."
)
@click.option("--lock", "locks", multiple=True, type=_FILE, help="Files of this lock, a cell's or a model's.")
@click.option("--ca", type=_FILE, help="Certificates to trust beside this machine's; a site's own --ca.")
@click.option("--netrc", type=_FILE, help="Whose user the mirror knows.")
@click.option("--object-store", "cold", is_flag=True, help="Read all that lies behind the site's trees too (--s3).")
@click.option("--strict", is_flag=True, help="Exit 3 where anything there could not be judged.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_obj
def command(
    settings: Settings,
    /,
    *,
    where: str,
    cells: tuple[str, ...],
    locks: tuple[Path, ...],
    **options: Any,
) -> int:
    """Hash again what a mirror has, and remove from its caches what is wrong.

    A DIRECTORY is a site's on this machine: its caches are read off the disk, and it may be up or down. From a URL, a
    mirror's or an HF endpoint's, the locks' files are fetched; what is wrong there can only be said.

    Packages are held against cells' locks, models against theirs or else the hub's own hashes, images against their
    names, trees against their manifests. What nobody vouches for, or is there in part, is counted and never called
    clean. Locks in DIRECTORY/locks are always taken too.

    \b
    envcheck mirror audit /srv/mirror --cell torch2.13.0-cpu-py311
    envcheck mirror audit /srv/mirror --lock model.lock.json
    """
    from envcheck.mirrors.http import Client
    from envcheck.mirrors.site.audit import exit_code, record
    from envcheck.mirrors.site.audit_site import audit

    remote = where.startswith(_WEB)
    site = None if remote else _site(Path(where))
    ca = options["ca"] or (Path(site.client_ca) if site and site.client_ca else None)
    known, client = _known(settings, cells, locks, site), Client(ca=ca, netrc_file=options["netrc"])
    findings = audit(site, known, client, cold=options["cold"]) if site else _remote(where, known, client)
    found = _watched(findings, settings)
    _tell(found, settings, remote=remote, as_json=options["as_json"])
    code = exit_code(found, strict=options["strict"])
    unwritten = record(site, found) if site else None
    if unwritten:
        click.echo(f"envcheck: {unwritten}; run it as the user whom the site belongs to", err=True)
    return code or (3 if unwritten else 0)


def _watched(findings: Iterable[Finding], settings: Settings) -> list[Finding]:
    """Return the findings; on a terminal, a line says how far it is."""
    import sys

    if settings.quiet or not sys.stderr.isatty():
        return list(findings)
    from rich.console import Console
    from rich.markup import escape

    console, found = Console(stderr=True), []
    with console.status("reading the caches") as status:
        for one in findings:
            found.append(one)
            status.update(escape(_plain(f"{len(found)} read, {one.cache}: {one.name}")[: console.width - 4]))
    return found


def _remote(base: str, known: Known, client: Client) -> Iterator[Finding]:
    from envcheck.mirrors.profile import has_userinfo, redacted
    from envcheck.mirrors.site.audit_remote import listed, models, refuse_silent, served

    if has_userinfo(base):
        message = f"a user or password in {redacted(base)}"
        raise ConfigError(message, fix="leave it out")
    refuse_silent(base.rstrip("/"), client)
    files, absent = listed(base.rstrip("/"), known.needs, client)
    yield from served(files, client, "packages")
    yield from absent
    yield from served(models(base, known.models), client, "models")


def _site(root: Path) -> Site:
    from envcheck.mirrors.site.model import read

    try:
        return read(root.absolute())
    except OSError as error:
        message = f"{root}: no mirror site can be read there: {error.strerror}"
        raise ConfigError(message, fix="name the directory that `envcheck mirror site render` wrote") from error


def _known(settings: Settings, cells: tuple[str, ...], locks: Sequence[Path], site: Site | None) -> Known:
    """Return what the locks hold: those that were named, and those that lie in the site's own directory."""
    from envcheck.mirrors.hf import parse_lock
    from envcheck.mirrors.site.audit_site import Known

    mine = _listed(Path(site.root, "locks")) if site else []
    read = {path: _content(path) for path in dict.fromkeys([*locks, *mine])}
    models = {path: content for path, content in read.items() if content.lstrip().startswith(b"{")}
    packages = {path: content for path, content in read.items() if path not in models}
    every = not cells and not (packages.keys() & set(locks) if site else locks)
    revisions = [parse_lock(content, str(path)) for path, content in models.items()]
    return Known(_needs(settings, cells, packages, every=every), revisions)


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_file())
    except FileNotFoundError:
        return []
    except OSError as error:
        message = f"{folder}: the site's locks cannot be read: {error.strerror}"
        raise ConfigError(message, fix="run it as the user whom the site belongs to") from error


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        message = f"{path}: the lock cannot be read: {error.strerror}"
        raise ConfigError(message, fix="name one that can") from error


def _needs(settings: Settings, cells: tuple[str, ...], locks: dict[Path, bytes], *, every: bool) -> list[Need]:
    from envcheck.data import data_path
    from envcheck.images.lock import parse_lock, read_locks
    from envcheck.images.spec import select
    from envcheck.matrix.load import load
    from envcheck.mirrors.locate import Need

    read = [parse_lock(content.decode("utf-8", "replace"), "base", str(path)) for path, content in locks.items()]
    if cells or every:
        chosen = select(load(settings.matrix), cells)
        read += [lock for cell in chosen for lock in read_locks(data_path("images") / str(cell))]
    needs = (Need(pin.name, tuple(pin.sha256), lock.index, pin.version) for lock in read for pin in lock.pins)
    return list(dict.fromkeys(needs))


def _tell(found: Sequence[Finding], settings: Settings, *, remote: bool, as_json: bool) -> None:
    import json

    from envcheck.mirrors.site.audit import told

    if as_json:
        click.echo(json.dumps(told(found), indent=2))
        return
    advice = "; run this on the mirror itself, with its directory, to remove it" if remote else ""
    for one in found:
        if one.verdict == "poisoned":
            done = f"; removed from the cache, {len(one.purged)} file(s)" if one.purged else advice
            click.echo(_plain(f"{one.name}: poisoned: {one.about}{done}"))
    if not settings.quiet:
        _tell_unjudged(found, settings)
    click.echo("\n".join(_counts(found)) or "nothing to judge")


def _plain(line: str) -> str:
    """Return a line whose signs steer no terminal: files are called what upstreams and clients like."""
    return "".join(sign if sign.isprintable() else "?" for sign in line)


def _tell_unjudged(found: Sequence[Finding], settings: Settings) -> None:
    for verdict in ("unreadable", "in part", "unknown", "not to be had"):
        these = [one for one in found if one.verdict == verdict]
        named = these if settings.verbose else these[:_NAMED]
        for one in named:
            click.echo(_plain(f"{one.name}: {verdict}: {one.about}"))
        if these[len(named) :]:
            click.echo(f"... and {len(these) - len(named)} more {verdict} (--verbose and --json name all)")


def _counts(found: Sequence[Finding]) -> list[str]:
    """Return a line for each kind of cache: how many of its files are what."""
    import collections

    kinds = dict.fromkeys(one.cache for one in found)
    of = {kind: collections.Counter(one.verdict for one in found if one.cache == kind) for kind in kinds}
    return [f"{kind}: {', '.join(f'{count} {verdict}' for verdict, count in of[kind].items())}" for kind in kinds]
