"""`envcheck store`: the content-addressed store, what is released from it, and bundles of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click
import msgspec

from envcheck.cli import Settings
from envcheck.cli.options import FiniteRange, Option, Size, command_with
from envcheck.cli.store.common import (
    STORE,
    disk_errors,
    existing_store,
    format_bytes,
    format_version,
    open_store,
    this_store,
)
from envcheck.cli.store.releases import export, import_, release
from envcheck.counting import counted
from envcheck.errors import ConfigError
from envcheck.mirrors.store import evict, versions


@dataclass(frozen=True, kw_only=True)
class StoreVersionsOptions:
    as_json: Annotated[bool, Option("--json", "Print JSON.")] = False


@dataclass(frozen=True, kw_only=True)
class StoreGcOptions:
    max_size: Annotated[int | None, Option("Limit for the store itself instead of the file system.", type=Size())] = (
        None
    )
    high: Annotated[float, Option("Start above this percentage.", type=FiniteRange(0, 100))] = 85.0
    low: Annotated[float, Option("Stop at this percentage.", type=FiniteRange(0, 100))] = 75.0
    dry_run: Annotated[bool, Option("Only report the space in use, and what would be evicted.")] = False
    as_json: Annotated[bool, Option("--json", "Print JSON.")] = False


@click.group("store", epilog="Example: envcheck store release torch2.13.0-cpu-py311 --mirror host")
@click.option(
    "--store",
    "root",
    envvar="ENVCHECK_STORE_STORE",
    type=click.Path(path_type=Path),
    help="Directory of the store. [$XDG_DATA_HOME/envcheck/store]",
)
@click.pass_context
def command(ctx: click.Context, root: Path | None) -> None:
    """Keep files by hash, release them as versions of a tree, and carry them to machines without a network.

    Any file server over STORE/current serves pip, uv and huggingface_hub. STORE/current/nginx has the configuration for
    nginx. `envcheck mirror site render DIR --store STORE` serves the tree from a mirror site.

    Exit 0: success; 1: a file has a wrong hash, or the store stays above its limit; 2: wrong usage; 3: something needed
    is missing.
    """
    store = open_store(root)
    ctx.meta[STORE] = store
    ctx.with_resource(disk_errors(store.root))


@command_with(StoreVersionsOptions)
def versions_(options: StoreVersionsOptions, _settings: Settings) -> None:
    """List the released versions."""
    summaries = versions.list_versions(existing_store(this_store()))
    if options.as_json:
        click.echo(msgspec.json.format(msgspec.json.encode({"schema": "envcheck/versions/1", "versions": summaries})))
        return
    for version in summaries:
        click.echo(format_version(version))
    if not summaries:
        click.echo("nothing is released")


@command_with(StoreGcOptions)
def gc(options: StoreGcOptions, _settings: Settings) -> int:
    """Evict the least recently used files.

    Eviction starts above --high and stops at --low. Files of a released version are never evicted.
    """
    store, limits = existing_store(this_store()), _eviction_limits(options)
    evicted, left, used, room = evict.gc(
        store, limits, dry=options.dry_run, note=lambda text: click.echo(text, err=True)
    )
    freed = sum(stored.size for stored in evicted)
    if options.as_json:
        document = {"schema": "envcheck/store-gc/1", "evicted": [stored.sha256 for stored in evicted], "bytes": freed}
        click.echo(json.dumps({**document, "left": left, "before": {"used": used, "room": room}}, indent=2))
        return 1 if left else 0
    if options.dry_run:
        click.echo(f"store {store.root}: used {format_bytes(used)} of {format_bytes(room)}, {used / room:.0%}")
    done = "would evict" if options.dry_run else "evicted"
    click.echo(f"{done} {counted(len(evicted), 'object')}, {format_bytes(freed)}")
    if left:
        click.echo(f"{format_bytes(left)} above the limit remain: released, or used by a process or another link")
        click.echo("`envcheck store release CELL --replace --keep 1` removes older versions")
    return 1 if left else 0


def _eviction_limits(options: StoreGcOptions) -> evict.EvictionLimits:
    high, low = options.high, options.low
    if low > high:
        message = f"--low {low:g} is above --high {high:g}"
        raise ConfigError(message, fix="pass a --low that is not above --high")
    return evict.EvictionLimits(high / 100, low / 100, options.max_size)


for _name, _command in {
    "release": release,
    "versions": versions_,
    "gc": gc,
    "export": export,
    "import": import_,
}.items():
    command.add_command(_command, _name)
