"""`envcheck store`: the content-addressed store, what is released from it, and bundles of it."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from envcheck.cli.shared import messages
from envcheck.cli.shared.parameter_types import FiniteRange, Size
from envcheck.cli.shared.typed_options import takes
from envcheck.cli.store.bundle import export, import_
from envcheck.cli.store.options import format_bytes, format_version, json_option
from envcheck.cli.store.release import release, rollback, switch
from envcheck.counting import counted
from envcheck.errors import ConfigError, PromiseError, UnavailableError

if TYPE_CHECKING:
    from envcheck.mirrors.store.evict import EvictionLimits
    from envcheck.mirrors.store.usage import VersionSummary
    from envcheck.mirrors.store.verify import Fault


class StoreDfOptions(NamedTuple):
    """The options of `envcheck store df`."""

    as_json: bool


class StoreVersionsOptions(NamedTuple):
    """The options of `envcheck store versions`."""

    as_json: bool


class StoreVerifyOptions(NamedTuple):
    """The options of `envcheck store verify`."""

    mirror: str | None
    as_json: bool


class StoreGcOptions(NamedTuple):
    """The options of `envcheck store gc`."""

    max_size: int | None
    high: float
    low: float
    dry_run: bool
    as_json: bool


@click.group("store", epilog="Example: envcheck store release torch2.13.0-cpu-py311 --mirror host")
@click.option(
    "--store", "root", type=click.Path(path_type=Path), help="Directory of the store. [$XDG_DATA_HOME/envcheck/store]"
)
@click.pass_context
def command(ctx: click.Context, root: Path | None) -> None:
    """Keep files by hash, release them as versions of a tree, and carry them to machines without a network.

    Any file server over STORE/current serves pip, uv and huggingface_hub. STORE/current/nginx has the configuration for
    nginx. `envcheck mirror site render DIR --store STORE` serves the tree from a mirror site; run `site reload DIR`
    after adding a model.

    Exit 0: success; 1: a file has a wrong hash, or the store stays above its limit; 2: wrong usage; 3: something needed
    is missing.
    """
    from envcheck.cli.store.common import disk_errors, open_store

    store = open_store(root)
    ctx.obj = (ctx.obj, store)
    ctx.with_resource(disk_errors(store.root))


@command.command("df")
@json_option
@click.pass_obj
@takes(StoreDfOptions)
def df(options: StoreDfOptions, obj: Any) -> int:
    """Show how much space the store uses.

    The output has the space on the disk and the sums of file sizes: all objects, pinned by a version, unfinished,
    quarantined, and each version. Versions share objects. Exit 1: a version's manifest cannot be read; its files count
    as unpinned here.
    """
    import msgspec

    from envcheck.cli.store.common import existing_store
    from envcheck.mirrors.store import evict

    usage = evict.usage(existing_store(obj[1]))
    if options.as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(usage)))
        return _unreadable(usage.versions)
    click.echo(f"store        {usage.root}")
    click.echo(f"on the disk  {format_bytes(usage.disk)}, as du counts")
    click.echo(f"objects      {usage.objects}, {format_bytes(usage.bytes)}")
    click.echo(f"pinned       {format_bytes(usage.pinned)}")
    click.echo(f"unfinished   {format_bytes(usage.unfinished)}")
    click.echo(f"quarantined  {format_bytes(usage.quarantined)}")
    click.echo(f"file system  {format_bytes(usage.used)} of {format_bytes(usage.room)}, {usage.used / usage.room:.0%}")
    for version in usage.versions:
        click.echo(format_version(version))
    return _unreadable(usage.versions)


@command.command("versions")
@json_option
@click.pass_obj
@takes(StoreVersionsOptions)
def versions_(options: StoreVersionsOptions, obj: Any) -> int:
    """List the released versions.

    Exit 0: listed; 1: a version's manifest cannot be read, and the others are listed.
    """
    import msgspec

    from envcheck.cli.store.common import existing_store
    from envcheck.mirrors.store import usage as store_usage

    summaries = store_usage.list_versions(existing_store(obj[1]))
    if options.as_json:
        click.echo(msgspec.json.format(msgspec.json.encode({"schema": "envcheck/versions/1", "versions": summaries})))
        return _unreadable(summaries)
    for version in summaries:
        click.echo(format_version(version))
    if not summaries:
        click.echo("nothing is released")
    return _unreadable(summaries)


def _unreadable(summaries: list[VersionSummary]) -> int:
    """Name each version whose manifest cannot be read on standard error; return the exit code."""
    errors = [version.error for version in summaries if version.error]
    for error in errors:
        messages.say(error)
    return PromiseError.exit_code if errors else 0


@command.command("verify", epilog="Example: envcheck store verify --mirror host")
@click.option("--mirror", help="Fetch lost files through this profile.")
@json_option
@click.pass_obj
@takes(StoreVerifyOptions)
def verify(options: StoreVerifyOptions, obj: Any) -> int:
    """Hash all files again and repair the damaged ones.

    Each damaged file is listed with the versions that serve it, moved to the quarantine, and restored from another
    copy, the version's contents or a mirror. A file that cannot be restored is removed from the trees. The exit code is
    1 if a file was damaged, repaired or not.
    """
    import msgspec

    from envcheck.cli.store.common import existing_store, progress_bar
    from envcheck.cli.store.repair import refetching
    from envcheck.mirrors.store import verify as store_verify
    from envcheck.mirrors.store import versions

    store = existing_store(obj[1])
    objects = store.objects()
    total, done = sum(stored.size for stored in objects), 0
    if not objects and not versions.numbers(store):
        message = f"{store.root}: the store is empty"
        raise UnavailableError(message, fix="pass the right store with --store DIR")
    with refetching(obj[0], store, options.mirror) as bring, progress_bar(obj[0], "verify") as (_, progress):

        def on_object(_name: str, size: int) -> None:
            nonlocal done
            progress(done, total)
            done += size

        faults = store_verify.verify(store, on_object, bring)
    if options.as_json:
        click.echo(msgspec.json.format(msgspec.json.encode({"schema": "envcheck/store-verify/1", "faults": faults})))
    else:
        _print_faults(faults, f"{counted(len(objects), 'object')}, {format_bytes(total)}", options.mirror)
    return 1 if faults else 0


@command.command("gc")
@click.option("--max-size", type=Size(), help="Limit for the store itself instead of the file system.")
@click.option("--high", default=85.0, show_default=True, type=FiniteRange(0, 100), help="Start above this percentage.")
@click.option("--low", default=75.0, show_default=True, type=FiniteRange(0, 100), help="Stop at this percentage.")
@click.option("--dry-run", is_flag=True, help="Only report what would be evicted.")
@json_option
@click.pass_obj
@takes(StoreGcOptions)
def gc(options: StoreGcOptions, obj: Any) -> int:
    """Evict the least recently used files.

    Eviction starts above --high and stops at --low. Files of a released version are never evicted.
    """
    import json

    from envcheck.cli.store.common import existing_store
    from envcheck.mirrors.store import evict

    dry_run = options.dry_run
    evicted, left = evict.gc(
        existing_store(obj[1]), _eviction_limits(options), dry=dry_run, note=lambda text: click.echo(text, err=True)
    )
    freed = sum(stored.size for stored in evicted)
    if options.as_json:
        document = {
            "schema": "envcheck/store-gc/1",
            "evicted": [stored.sha256 for stored in evicted],
            "bytes": freed,
            "left": left,
        }
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo(
            f"{'would evict' if dry_run else 'evicted'} {counted(len(evicted), 'object')}, {format_bytes(freed)}"
        )
        if left:
            click.echo(f"{format_bytes(left)} above the limit remain: released, or used by a process or another link")
            click.echo("`envcheck store release CELL --replace --keep 1` removes older versions")
    return 1 if left else 0


def _eviction_limits(options: StoreGcOptions) -> EvictionLimits:
    from envcheck.mirrors.store.evict import EvictionLimits

    high, low = options.high, options.low
    if low > high:
        message = f"--low {low:g} is above --high {high:g}"
        raise ConfigError(message, fix="pass a --low that is not above --high")
    return EvictionLimits(high / 100, low / 100, options.max_size)


def _print_faults(faults: list[Fault], counted: str, mirror: str | None) -> None:
    wrap = textwrap.TextWrapper(80, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
    wrap.break_long_words = False
    for fault in faults:
        click.echo(fault.file)
        served = (
            f"in version {', '.join(map(str, fault.versions))}" if fault.versions else "no version serves wrong bytes"
        )
        click.echo(wrap.fill(f"{fault.what}; {served}"))
        click.echo(wrap.fill(f"repaired from {fault.mended}" if fault.mended else f"not repaired: {fault.left}"))
    mended = sum(fault.mended is not None for fault in faults)
    result = f"{len(faults)} damaged, {mended} of them repaired" if faults else "every hash matches"
    click.echo(f"{counted}: {result}")
    if any(fault.mended is None and fault.versions and fault.sha256 for fault in faults) and mirror is None:
        click.echo("`envcheck store verify --mirror PROFILE` fetches the lost files")


for _tree in (release, switch, rollback, export, import_):
    command.add_command(_tree)
