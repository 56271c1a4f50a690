"""`envcheck fetch`: files of known hashes, whole or not at all."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import click

from envcheck.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from envcheck.cli import Settings
    from envcheck.mirrors.fetch.wanted import Fetched, Means, Wanted
    from envcheck.mirrors.profile import Profile

_UNITS: Final = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9}


class _Rate(click.ParamType[float]):
    """Bytes a second: 50M is 50 million."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMG]?)B?", str(value).upper())
        if found is None or float(found[1]) == 0:
            self.fail(f"{value!r} is no rate; write 50M for 50 million bytes a second", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


@click.command(
    "fetch", epilog="Exit 0: all are there; 1: no source has the right file; 2: wrong usage; 3: not to be had."
)
@click.argument("url", required=False)
@click.option("--sha256", metavar="HASH", help="What the file at URL must be.")
@click.option("--cell", metavar="CELL", help="Every wheel of a published cell's locks.")
@click.option("--lock", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Every file of one lock.")
@click.option("--mirror", default="none", show_default=True, help="Where from: none, host, or a profile's YAML file.")
@click.option("--to", type=click.Path(path_type=Path, file_okay=False), default=".", help="The directory they go to.")
@click.option("--limit", type=_Rate(), help="Bytes a second for all together: 50M.")
@click.option("--connections", type=click.IntRange(1, 64), default=8, show_default=True, help="At once to one host.")
@click.option("--json", "as_json", is_flag=True, help="Print what it came to as JSON.")
@click.pass_obj
def command(  # noqa: PLR0913 (the options of design.md)
    settings: Settings,
    *,
    url: str | None,
    sha256: str | None,
    cell: str | None,
    lock: Path | None,
    mirror: str,
    to: Path,
    limit: float | None,
    connections: int,
    as_json: bool,
) -> int:
    """Fetch files of known hashes, whole or not at all, and go on where an earlier run stopped.

    Pieces come from the mirror's sources in order; what has another hash never gets its name.

    \b
    envcheck fetch --cell torch2.13.0-cpu-py311 --mirror site.yaml --to wheels
    envcheck fetch https://mirror.example/model.bin --sha256 0f3e... --limit 50M
    """
    from envcheck.mirrors.fetch.transfer import fetch
    from envcheck.mirrors.load import load

    profile = load(mirror)
    client = _client(profile, connections)
    wanted = _wanted(settings, url, sha256, cell, lock, profile, client, to)
    done = []
    for number, want in enumerate(wanted, 1):
        with _shown(settings, f"[{number}/{len(wanted)}] {want.path.name}") as (progress, note):
            done.append(fetch(want, _means(client, connections, limit, progress, note)))
        _tell(settings, done[-1])
    _end(done, as_json=as_json)
    return 0


def _client(profile: Profile, connections: int) -> Any:
    from envcheck.mirrors.http import Client

    ca = Path(profile.ca) if profile.ca else None
    return Client(ca=ca, netrc_file=Path(profile.netrc) if profile.netrc else None, connections=connections)


def _wanted(
    settings: Settings,
    url: str | None,
    sha256: str | None,
    cell: str | None,
    lock: Path | None,
    profile: Profile,
    client: Any,
    to: Path,
) -> list[Wanted]:
    given = [name for name, value in (("URL", url), ("--cell", cell), ("--lock", lock)) if value is not None]
    if len(given) != 1:
        message = f"{' and '.join(given)} at once" if given else "nothing to fetch"
        raise ConfigError(message, fix="give one of URL --sha256 HASH, --cell CELL or --lock FILE")
    if url is not None:
        return [_one(url, sha256, to)]
    if sha256 is not None:
        message = "--sha256 beside a lock, which has its own"
        raise ConfigError(message, fix="leave it out")
    return _locked(settings, cell, lock, profile, client, to)


def _one(url: str, sha256: str | None, to: Path) -> Wanted:
    from envcheck.mirrors.fetch.wanted import Wanted
    from envcheck.mirrors.profile import has_userinfo, redacted

    if has_userinfo(url):
        message = f"a user or password in {redacted(url)}"
        raise ConfigError(message, fix="move it to a netrc file, and name that in a mirror profile")
    name = unquote(urlsplit(url).path.rpartition("/")[2])
    if not url.startswith(("https://", "http://")) or name in {"", ".", ".."} or "/" in name:
        message = f"{redacted(url)!r} is no URL of a file"
        raise ConfigError(message, fix="write https://HOST/PATH/FILE")
    if sha256 is None or not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        message = "no sha256 of 64 hexadecimal digits" if sha256 else f"{name}: nothing says what it must be"
        raise ConfigError(message, fix="give --sha256 HASH, from where the file is from and not from the mirror")
    return Wanted((url,), sha256.lower(), None, to / name)


def _locked(
    settings: Settings, cell: str | None, lock: Path | None, profile: Profile, client: Any, to: Path
) -> list[Wanted]:
    from envcheck.images.lock import parse_lock
    from envcheck.mirrors.fetch.wanted import Wanted
    from envcheck.mirrors.locate import Need, locate
    from envcheck.mirrors.profile import attempts

    locks = [parse_lock(lock.read_text(), "base", str(lock))] if lock else _locks_of(settings, cell or "")
    needs = [Need(pin.name, tuple(pin.sha256), lock.index) for lock in locks for pin in lock.pins]
    found = locate(needs, {"pypi": attempts(profile.pypi), "pytorch": profile.pytorch}, client)
    return [Wanted(file.urls, file.sha256, file.size, to / file.name) for file in found]


def _locks_of(settings: Settings, cell: str) -> list[Any]:
    from envcheck.data import own_images
    from envcheck.images.lock import read_locks
    from envcheck.images.spec import select
    from envcheck.matrix.load import load

    cells = select(load(settings.matrix), (cell,))
    locks = [lock for one in cells for lock in read_locks(own_images() / str(one))]
    if not locks:
        message = f"{cell} has no lock"
        raise ConfigError(message, fix=f"run `envcheck lock {cell}`")
    return locks


def _means(
    client: Any,
    connections: int,
    limit: float | None,
    progress: Callable[[int, int], None],
    note: Callable[[str], None],
) -> Means:
    from envcheck.mirrors.fetch.limiter import Limiter
    from envcheck.mirrors.fetch.wanted import Means

    return Means(client, connections=connections, limiter=Limiter(limit), progress=progress, note=note)


@contextmanager
def _shown(settings: Settings, title: str) -> Iterator[tuple[Callable[[int, int], None], Callable[[str], None]]]:
    """Give what a fetch tells its progress and its notes to: a bar on a terminal, lines of notes elsewhere."""

    def note(text: str) -> None:
        if not settings.quiet:
            click.echo(f"  {text}", err=True)

    if settings.quiet or not sys.stderr.isatty():
        yield (lambda _there, _all: None), note
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(None), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title[:40], total=None)
        yield (lambda there, all_: bar.update(task, completed=there, total=all_)), bar.console.print


def _tell(settings: Settings, done: Fetched) -> None:
    if settings.quiet:
        return
    name, size = done.path.name, done.size / 1e6
    if not done.moved:
        click.echo(f"{name}  {size:.1f} MB  was there")
        return
    went_on = f", {done.found / 1e6:.1f} MB of it from an earlier run" if done.found else ""
    rate = done.moved / max(done.seconds, 1e-9) / 1e6
    click.echo(f"{name}  {size:.1f} MB{went_on}  {', '.join(done.sources)}  {rate:.0f} MB/s")


def _end(done: list[Fetched], *, as_json: bool) -> None:
    if as_json:
        import json

        files = [
            {"path": str(f.path), "size": f.size, "moved": f.moved, "found": f.found, "sources": dict(f.sources)}
            for f in done
        ]
        click.echo(json.dumps({"schema": "envcheck/fetch/1", "files": files}, indent=2))
        return
    moved, size = sum(f.moved for f in done), sum(f.size for f in done)
    click.echo(f"{len(done)} file(s) there, {size / 1e6:.1f} MB, each of its hash; {moved / 1e6:.1f} MB moved")
