"""`envcheck mirror audit`: fetch what a mirror serves and compare its hashes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from envcheck.cli.shared import completion
from envcheck.cli.shared.typed_options import takes
from envcheck.counting import counted
from envcheck.errors import ConfigError
from envcheck.safe_files import read_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from envcheck.cli import Settings
    from envcheck.mirrors.index.locate import LockedPackage
    from envcheck.mirrors.net.client import Client
    from envcheck.mirrors.site.audit.over_http import AuditScope
    from envcheck.mirrors.site.audit.report import AuditFinding
    from envcheck.mirrors.site.model import Site

_FILE: Final = click.Path(path_type=Path, exists=True, dir_okay=False)
_SCHEMES: Final = ("https://", "http://")
# So many files of each verdict are listed without --verbose.
_LISTED: Final = 5


class MirrorAuditOptions(NamedTuple):
    """The options of `envcheck mirror audit`."""

    where: str
    cells: tuple[str, ...]
    locks: tuple[Path, ...]
    images: tuple[str, ...]
    ca: Path | None
    netrc: Path | None
    strict: bool
    as_json: bool


@click.command(
    epilog="Exit 0: no file is wrong; 1: a file is poisoned; 2: wrong usage; 3: no file could be judged, or one could "
    "not be read."
)
@click.argument("where", metavar="DIRECTORY|URL")
@click.argument("cells", nargs=-1, metavar="[CELL]...", shell_complete=completion.cells)
@click.option("--lock", "locks", multiple=True, type=_FILE, help="Files of this lock of a cell or a model.")
@click.option("--image", "images", multiple=True, metavar="NAME", help="An image with its tag or @sha256 digest.")
@click.option("--ca", type=_FILE, help="Certificates to trust beside this machine's; default the site's own --ca.")
@click.option("--netrc", type=_FILE, help="A netrc file with the mirror's user and password.")
@click.option("--strict", is_flag=True, help="Exit 3 if a file could not be judged.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_obj
@takes(MirrorAuditOptions)
def command(options: MirrorAuditOptions, settings: Settings) -> int:
    """Fetch what a mirror serves and compare its hashes.

    CELL is a published cell, or a glob: the packages of its locks; with a URL, all cells if none is given.
    DIRECTORY is a site of this machine that is up; URL is any package index mirror, Hugging Face endpoint or
    registry. Packages and models are compared with locks, images with their own digests. The mirror fetches what it
    has not cached. For a site, the locks in DIRECTORY/locks are included and the trees on its disk are compared with
    their manifests; wrong files of trees are removed.

    \b
    envcheck mirror audit /srv/mirror torch2.13.0-cpu-py311
    envcheck mirror audit /srv/mirror --lock model.lock.json \\
        --image docker.io/library/debian:bookworm-slim
    envcheck mirror audit https://mirror.example torch2.13.0-cpu-py311
    """
    from envcheck.mirrors.site.audit.over_http import audit_site
    from envcheck.mirrors.site.audit.report import exit_code, record

    where = options.where
    site = None if where.startswith(_SCHEMES) else _site(Path(where))
    scope = _scope(settings, options, site)
    client = _client(site, ca=options.ca, netrc=options.netrc)
    stream = audit_site(site, scope, client) if site else _remote_findings(where, scope, client)
    findings = _collected(stream, settings)
    _print(findings, settings, json_wanted=options.as_json)
    unwritten = record(site, findings) if site else None
    if unwritten:
        click.echo(f"envcheck: {unwritten}; run it as the user who owns the site", err=True)
    return exit_code(findings, strict=options.strict) or (3 if unwritten else 0)


def _client(site: Site | None, *, ca: Path | None, netrc: Path | None) -> Client:
    """Return the client; a site's own Hugging Face port gets the token of the environment if it wants one."""
    import os

    from envcheck.mirrors.net.client import Client
    from envcheck.mirrors.net.credentials import BearerToken

    token = os.environ.get("HF_TOKEN")
    logins = [BearerToken(site.at(site.hf.port), token)] if site and site.hf and site.hf.tokens and token else []
    site_ca = Path(site.client_ca) if site and site.client_ca else None
    return Client(ca=ca or site_ca, netrc_file=netrc, logins=logins)


def _collected(stream: Iterable[AuditFinding], settings: Settings) -> list[AuditFinding]:
    """Return the findings; a line on the terminal shows the progress."""
    import sys

    if settings.quiet or not sys.stderr.isatty():
        return list(stream)
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    findings: list[AuditFinding] = []
    with console.status("auditing") as status:
        for finding in stream:
            findings.append(finding)
            line = f"audited {len(findings)}, {finding.cache}: {finding.name}"
            status.update(escape(_printable(line)[: console.width - 4]))
    return findings


def _remote_findings(base: str, scope: AuditScope, client: Client) -> Iterator[AuditFinding]:
    from envcheck.mirrors.net.urls import is_web_url
    from envcheck.mirrors.profiles.model import has_userinfo, redacted
    from envcheck.mirrors.site.audit.over_http import audit_url

    if has_userinfo(base):
        message = f"{redacted(base)} contains a user or password"
        raise ConfigError(message, fix="put them into a netrc file and pass --netrc")
    if not is_web_url(base):
        message = f"{base!r} is not the URL of a mirror"
        raise ConfigError(message, fix="write https://HOST or https://HOST:PORT/PATH")
    return audit_url(base.rstrip("/"), scope, client)


def _site(root: Path) -> Site:
    from envcheck.mirrors.site.model import read

    try:
        return read(root.absolute())
    except OSError as error:
        message = f"{root}: cannot read a mirror site: {error.strerror}"
        raise ConfigError(message, fix="pass the directory that `envcheck mirror site render` wrote") from error


def _scope(settings: Settings, options: MirrorAuditOptions, site: Site | None) -> AuditScope:
    """Return what to audit: what the options name and the locks of the site; of a URL all cells if none is named."""
    from envcheck.mirrors.hub.revision import parse_lock
    from envcheck.mirrors.site.audit.over_http import AuditScope
    from envcheck.mirrors.site.audit.registry_images import image_name

    cells, locks, images = options.cells, options.locks, options.images
    site_locks = _lock_files(Path(site.root, "locks")) if site else []
    content = {path: _content(path) for path in dict.fromkeys([*locks, *site_locks])}
    models = [parse_lock(text, str(path)) for path, text in content.items() if text.lstrip().startswith(b"{")]
    packages = {path: text for path, text in content.items() if not text.lstrip().startswith(b"{")}
    every = site is None and not (cells or locks or images)
    return AuditScope(_needs(settings, cells, packages, every=every), models, [image_name(name) for name in images])


def _lock_files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_file())
    except FileNotFoundError:
        return []
    except OSError as error:
        message = f"{folder}: cannot read the site's locks: {error.strerror}"
        raise ConfigError(message, fix="run it as the user who owns the site") from error


def _content(path: Path) -> bytes:
    try:
        return read_whole(path)
    except OSError as error:
        message = f"{path}: cannot read the lock: {error.strerror}"
        raise ConfigError(message, fix="make it readable or pass another lock") from error


def _needs(settings: Settings, cells: tuple[str, ...], locks: dict[Path, bytes], *, every: bool) -> list[LockedPackage]:
    from envcheck.data import data_path
    from envcheck.images.lockfile import parse_requirements, read_locks
    from envcheck.images.spec import select
    from envcheck.images.targets import groups_of
    from envcheck.matrix.file.load import load
    from envcheck.mirrors.index.locate import LockedPackage

    parsed = [parse_requirements(content, "base", str(path)) for path, content in locks.items()]
    if cells or every:
        selected = select(load(settings.matrix), cells)
        parsed += [
            lock for cell in selected for lock in read_locks(data_path("images") / str(cell), groups_of("runtime"))
        ]
    needs = (
        LockedPackage(pin.name, tuple(pin.sha256), lock.index, pin.version) for lock in parsed for pin in lock.pins
    )
    return list(dict.fromkeys(needs))


def _print(findings: Sequence[AuditFinding], settings: Settings, *, json_wanted: bool) -> None:
    import json

    from envcheck.mirrors.site.audit.report import as_json

    if json_wanted:
        click.echo(json.dumps(as_json(findings), indent=2))
        return
    for finding in findings:
        if finding.verdict == "poisoned":
            removed = f"; removed {counted(len(finding.purged), 'file')}" if finding.purged else ""
            fix = f"; fix: {finding.fix}" if finding.fix else ""
            click.echo(_printable(f"{finding.name}: poisoned: {finding.about}{removed}{fix}"))
    if not settings.quiet:
        _print_unjudged(findings, settings)
    click.echo(
        "\n".join(_counts(findings)) or "nothing to audit: pass a CELL, --lock or --image, or add locks to locks/"
    )


def _printable(line: str) -> str:
    """Return a line without control characters, as upstreams choose the names of files."""
    return "".join(sign if sign.isprintable() else "?" for sign in line)


def _print_unjudged(findings: Sequence[AuditFinding], settings: Settings) -> None:
    for verdict in ("unreadable", "unknown", "unavailable"):
        all_of_it = [finding for finding in findings if finding.verdict == verdict]
        listed = all_of_it if settings.verbose else all_of_it[:_LISTED]
        for finding in listed:
            fix = f"; fix: {finding.fix}" if finding.fix else ""
            click.echo(_printable(f"{finding.name}: {verdict}: {finding.about}{fix}"))
        if all_of_it[len(listed) :]:
            click.echo(f"... and {len(all_of_it) - len(listed)} more {verdict} (--verbose and --json list all)")


def _counts(findings: Sequence[AuditFinding]) -> list[str]:
    """Return a line for each kind of cache with the number of files of each verdict."""
    import collections

    caches = dict.fromkeys(finding.cache for finding in findings)
    counts = {
        cache: collections.Counter(finding.verdict for finding in findings if finding.cache == cache)
        for cache in caches
    }
    return [f"{cache}: {', '.join(f'{n} {verdict}' for verdict, n in counts[cache].items())}" for cache in caches]
