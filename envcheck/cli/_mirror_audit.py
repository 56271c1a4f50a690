"""`envcheck mirror audit`: hash again what a mirror serves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from envcheck.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envcheck.cli import Settings
    from envcheck.mirrors.http import Client
    from envcheck.mirrors.locate import Need
    from envcheck.mirrors.site.audit import Finding

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command(
    epilog="Exit 0: what is there is right; 1: something is not; 2: wrong usage; 3: nothing could be judged."
)
@click.argument("where", metavar="DIRECTORY|URL")
@click.option(
    "--cell", "cells", multiple=True, metavar="CELL", help="Files of this cell's locks; of every cell's unless given."
)
@click.option("--lock", "locks", multiple=True, type=_FILE, help="Files of this lock.")
@click.option("--ca", type=_FILE, help="Certificates to trust beside this machine's.")
@click.option("--netrc", type=_FILE, help="Whose user the mirror knows.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_obj
def command(
    settings: Settings,
    /,
    *,
    where: str,
    cells: tuple[str, ...],
    locks: tuple[Path, ...],
    ca: Path | None,
    netrc: Path | None,
    as_json: bool,
) -> int:
    """Hash again what a mirror has of the locks' files, and remove from its cache what is wrong.

    A DIRECTORY is a site's on this machine: its cache alone is read. From a URL the files are fetched; what is wrong
    there can only be said. Packages are judged; models and images are not: `envcheck fetch` and docker hold those
    against their hashes themselves.

    \b
    envcheck mirror audit /srv/mirror --cell torch2.13.0-cpu-py311
    """
    from envcheck.mirrors.http import Client

    needs, client = _needs(settings, cells, locks), Client(ca=ca, netrc_file=netrc)
    remote = where.startswith(("https://", "http://"))
    found = _remote(where, needs, client) if remote else _local(Path(where), needs, client)
    _tell(found, settings, remote=remote, as_json=as_json)
    verdicts = {finding.verdict for finding in found}
    return 1 if "poisoned" in verdicts else 0 if "clean" in verdicts else 3


def _remote(base: str, needs: list[Need], client: Client) -> list[Finding]:
    from envcheck.mirrors.profile import has_userinfo, redacted
    from envcheck.mirrors.site.audit import listed, served

    if has_userinfo(base):
        message = f"a user or password in {redacted(base)}"
        raise ConfigError(message, fix="leave it out")
    files, absent = listed(base.rstrip("/"), needs, client)
    return [*served(files, client), *absent]


def _local(root: Path, needs: list[Need], client: Client) -> list[Finding]:
    from envcheck.mirrors.site.audit import cached, listed, record
    from envcheck.mirrors.site.model import read

    site = read(root.absolute())
    address = site.name if site.tls else site.addresses[0]
    address = f"[{address}]" if ":" in address else address
    files, absent = listed(f"{site.scheme}://{address}:{site.port}", needs, client)
    found = [*cached(site, files), *absent]
    record(site, found)
    return found


def _needs(settings: Settings, cells: tuple[str, ...], locks: tuple[Path, ...]) -> list[Need]:
    from envcheck.data import data_path
    from envcheck.images.lock import parse_lock, read_locks
    from envcheck.images.spec import select
    from envcheck.matrix.load import load
    from envcheck.mirrors.locate import Need

    read = [parse_lock(path.read_text(), "base", str(path)) for path in locks]
    if cells or not locks:
        chosen = select(load(settings.matrix), cells)
        read += [lock for cell in chosen for lock in read_locks(data_path("images") / str(cell))]
    return list(dict.fromkeys(Need(pin.name, tuple(pin.sha256), lock.index) for lock in read for pin in lock.pins))


def _tell(found: Sequence[Finding], settings: Settings, *, remote: bool, as_json: bool) -> None:
    import collections
    import dataclasses
    import json

    if as_json:
        told = {"schema": "envcheck/mirror-audit/1", "files": [dataclasses.asdict(one) for one in found]}
        click.echo(json.dumps(told, indent=2))
        return
    for one in found:
        if one.verdict == "poisoned" or (one.about and not settings.quiet):
            done = f"; removed from the cache, {len(one.purged)} piece(s)" if one.purged else ""
            advice = "; run this on the mirror itself, with its directory, to remove it" if remote and not done else ""
            click.echo(f"{one.name}: {one.verdict}: {one.about}{done}{advice if one.verdict == 'poisoned' else ''}")
    counts = collections.Counter(one.verdict for one in found)
    click.echo(", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "nothing to judge")
