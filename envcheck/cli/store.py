"""`envcheck store`: the content-addressed store, what is published from it, and bundles of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from envcheck.cli import _complete
from envcheck.errors import ConfigError

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.mirrors.evict import Limits

_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


class _Size(click.ParamType[int]):
    """Bytes: 50G is 50 thousand million."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMGT]?)B?", str(value).upper())
        size = int(float(found[1]) * _UNITS[found[2]]) if found else 0
        if size == 0:
            self.fail(f"{value!r} is no size; write 50G for 50 000 000 000 bytes", param, ctx)
        return size


_json = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
_cells = click.option(
    "--cell", "cells", multiple=True, shell_complete=_complete.cells, help="Every wheel of its locks."
)
_models = click.option(
    "--model-lock", "models", multiple=True, type=click.Path(path_type=Path), help="Every file of a model's lock."
)
_mirror = click.option("--mirror", default="user", show_default=True, help="Where what is not there is fetched from.")
_keep = click.option("--keep", default=5, show_default=True, type=click.IntRange(1), help="Versions that are kept.")


@click.group("store", epilog="Example: envcheck store publish --cell torch2.13.0-cpu-py311 --mirror host")
@click.option("--store", "root", type=click.Path(path_type=Path), help="Where it is. [$XDG_DATA_HOME/envcheck/store]")
@click.pass_context
def command(ctx: click.Context, root: Path | None) -> None:
    """Keep files by their hash, publish them as versions of a tree, and carry them to where no network goes.

    A file server over STORE/current serves pip, uv and huggingface_hub; STORE/current/nginx says how nginx does.

    Exit 0: done, all is well; 1: something has another hash, or cannot be brought below the mark; 2: wrong usage;
    3: something needed is not there.
    """
    from envcheck.cli._store import disk_errors, open_store

    store = open_store(root)
    ctx.obj = (ctx.obj, store)
    ctx.with_resource(disk_errors(store.root))


@command.command("df")
@_json
@click.pass_obj
def df(obj: Any, *, as_json: bool) -> None:
    """Say what the store takes.

    In all, pinned by a version, unfinished, in quarantine, and in each version.
    """
    import msgspec

    from envcheck.mirrors import evict

    told = evict.usage(obj[1])
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(told)))
        return
    click.echo(f"store        {told.root}")
    click.echo(f"objects      {told.objects}, {_mb(told.bytes)}")
    click.echo(f"pinned       {_mb(told.pinned)}")
    click.echo(f"unfinished   {_mb(told.unfinished)}")
    click.echo(f"quarantined  {_mb(told.quarantined)}")
    click.echo(f"file system  {_mb(told.used)} of {_mb(told.room)}, {told.used / told.room:.0%}")
    for version in told.versions:
        click.echo(_line(version))


@command.command("versions")
@_json
@click.pass_obj
def versions_(obj: Any, *, as_json: bool) -> None:
    """List the published versions."""
    import msgspec

    from envcheck.mirrors import versions

    told = versions.listed(obj[1])
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode({"schema": "envcheck/versions/1", "versions": told})))
        return
    for version in told:
        click.echo(_line(version))
    if not told:
        click.echo("nothing is published")


@command.command("verify")
@_json
@click.pass_obj
def verify(obj: Any, *, as_json: bool) -> int:
    """Hash everything again.

    What is wrong is named and moved to the quarantine, and the exit code is 1.
    """
    import msgspec

    from envcheck.cli._store import bar
    from envcheck.mirrors import evict

    with bar(obj[0], "verify") as (_, progress):
        total, done = sum(one.size for one in obj[1].objects()), 0

        def hear(_name: str, size: int) -> None:
            nonlocal done
            progress(done, total)
            done += size

        faults = evict.verify(obj[1], hear)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode({"schema": "envcheck/store-verify/1", "faults": faults})))
    else:
        for fault in faults:
            click.echo(f"{fault.file}: {fault.what}")
        said = f"{len(faults)} file(s) are wrong: fetch them again, and publish" if faults else "each is of its hash"
        click.echo(f"{len(obj[1].objects())} object(s), {_mb(total)}: {said}")
    return 1 if faults else 0


@command.command("gc")
@click.option("--max-size", type=_Size(), help="What the store may take, where it is not the whole file system.")
@click.option("--high", default=85.0, show_default=True, type=click.FloatRange(0, 100), help="Percent: begin above it.")
@click.option("--low", default=75.0, show_default=True, type=click.FloatRange(0, 100), help="Percent: end at it.")
@click.option("--dry-run", is_flag=True, help="Say what would go.")
@_json
@click.pass_obj
def gc(obj: Any, *, max_size: int | None, high: float, low: float, dry_run: bool, as_json: bool) -> int:
    """Evict what was least recently used.

    It begins above the high mark and ends at the low one. Nothing that a version holds ever goes.
    """
    import json

    from envcheck.mirrors import evict

    gone, left = evict.gc(
        obj[1], _limits(max_size, high, low), dry=dry_run, note=lambda text: click.echo(text, err=True)
    )
    freed = sum(one.size for one in gone)
    if as_json:
        told = {"schema": "envcheck/store-gc/1", "evicted": [one.sha256 for one in gone], "bytes": freed, "left": left}
        click.echo(json.dumps(told, indent=2))
    else:
        click.echo(f"{'would evict' if dry_run else 'evicted'} {len(gone)} object(s), {_mb(freed)}")
        if left:
            click.echo(
                f"{_mb(left)} too many are left: published or in use elsewhere; `publish --only --keep 1` lets go"
            )
    return 1 if left else 0


@command.command("publish")
@_cells
@_models
@_mirror
@_keep
@click.option("--only", is_flag=True, help="Publish nothing of what is served now beside it.")
@click.pass_obj
def publish(obj: Any, *, cells: tuple[str, ...], models: tuple[Path, ...], mirror: str, keep: int, only: bool) -> None:
    """Make and serve the next version of the tree.

    It holds what is served now and what is named here, and it is served when it is whole.
    """
    from envcheck.cli._store import gathered
    from envcheck.mirrors import versions

    _some(cells, models)
    number = versions.publish(obj[1], gathered(obj[0], obj[1], cells, models, mirror), keep=keep, merge=not only)
    _published(obj, number)


@command.command("switch")
@click.argument("number", type=click.IntRange(1))
@click.pass_obj
def switch(obj: Any, *, number: int) -> None:
    """Serve another version."""
    from envcheck.mirrors import versions

    versions.switch(obj[1], number)
    click.echo(f"version {number} is served")


@command.command("rollback")
@click.pass_obj
def rollback(obj: Any) -> None:
    """Serve the version before this one."""
    from envcheck.mirrors import versions

    click.echo(f"version {versions.rollback(obj[1])} is served")


@command.command(
    "export", epilog="Example: envcheck store export --cell torch2.13.0-cpu-py311 --mirror host -o /media/usb"
)
@_cells
@_models
@_mirror
@click.option("-o", "--output", "to", required=True, type=click.Path(path_type=Path, file_okay=False), help="Where to.")
@click.option("--part-size", default="4G", show_default=True, type=_Size(), help="The largest file it may make.")
@click.pass_obj
def export(
    obj: Any, *, cells: tuple[str, ...], models: tuple[Path, ...], mirror: str, to: Path, part_size: int
) -> None:
    """Write a bundle for where no network goes.

    Of cells and models, or of all that is served now.
    """
    from envcheck.cli._store import bar, gathered
    from envcheck.mirrors import bundle, versions

    served = versions.current(obj[1])
    if cells or models:
        contents = gathered(obj[0], obj[1], cells, models, mirror)
    elif served is not None:
        contents = versions.manifest(obj[1], served).contents
    else:
        message = "nothing to export: nothing is published"
        raise ConfigError(message, fix="name a --cell or a --model-lock")
    with bar(obj[0], "export") as (_, progress):
        parts = bundle.export(obj[1], contents, to, part_size=part_size, progress=progress)
    click.echo(f"{to}: {len(parts)} part(s), {_mb(sum(part.stat().st_size for part in parts))}, and {bundle.SUMS}")
    bound = [wheel.name for wheel in contents.wheels if wheel.redistributable is False]
    if bound:
        click.echo(f"not to be passed on without their owner's leave: {len(bound)} wheel(s), {bound[0]} for one")


@command.command("import")
@click.argument("source", type=click.Path(path_type=Path, exists=True, file_okay=False))
@_keep
@click.option("--no-publish", is_flag=True, help="Take the files into the store, and publish nothing.")
@click.pass_obj
def import_(obj: Any, *, source: Path, keep: int, no_publish: bool) -> None:
    """Take a bundle in and publish it.

    Every file is held against its hash before the first one gets its name in the store.
    """
    from envcheck.cli._store import bar
    from envcheck.mirrors import bundle, versions

    with bar(obj[0], "import") as (_, progress):
        contents = bundle.read(obj[1], source, progress)
    click.echo(f"{len(contents.wheels)} wheel(s) and {len(contents.models)} model(s) taken in, each of its hash")
    if not no_publish:
        _published(obj, versions.publish(obj[1], contents, keep=keep))


def _limits(size: int | None, high: float, low: float) -> Limits:
    from envcheck.mirrors.evict import Limits

    if low > high:
        message = f"--low {low:g} is above --high {high:g}"
        raise ConfigError(message, fix="eviction goes from the high mark down to the low one")
    return Limits(high / 100, low / 100, size)


def _some(cells: tuple[str, ...], models: tuple[Path, ...]) -> None:
    if not cells and not models:
        message = "nothing to publish"
        raise ConfigError(message, fix="name a --cell or a --model-lock")


def _published(obj: tuple[Settings, Any], number: int) -> None:
    click.echo(f"version {number} is served: {obj[1].root / 'current'}")


def _line(version: Any) -> str:
    held = f"{version.wheels} wheel(s), {version.models} model(s), {_mb(version.bytes)}"
    return f"version {version.number:<4} {'current' if version.current else '':<8} {held}"


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
