"""`envcheck store release`: create the next version of the tree and serve it, or serve the one before."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from envcheck.cli.options import Argument, Option, command_with
from envcheck.cli.shared.parameter_types import complete_cells
from envcheck.cli.store.collect import collect_contents
from envcheck.cli.store.common import existing_store, progress_bar, this_store
from envcheck.errors import ConfigError
from envcheck.mirrors.store import versions

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.mirrors.store.objects import Store


@dataclass(frozen=True, kw_only=True)
class StoreReleaseOptions:
    """The options of `envcheck store release`."""

    cells: Annotated[tuple[str, ...], Argument(metavar="[CELL]...", shell_complete=complete_cells)] = ()
    models: Annotated[tuple[Path, ...], Option("--model-lock", help="Lock of a model: add all of its files.")] = ()
    mirror: Annotated[str, Option(help="Mirror profile for missing files.")] = "user"
    keep: Annotated[int, Option(type=click.IntRange(1), help="Number of versions to keep.")] = 5
    replace: Annotated[bool, Option(help="Serve only what is named here, without the files served now.")] = False
    rollback: Annotated[bool, Option(help="Serve the version before the one that is served now.")] = False
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False


@command_with(StoreReleaseOptions, epilog="Example: envcheck store release torch2.13.0-cpu-py311 --mirror host")
def release(options: StoreReleaseOptions, settings: Settings) -> None:
    """Create the next version of the tree and serve it.

    It holds what is served now, every wheel of each CELL's locks and every model named here. It is served once it is
    complete. If nothing is new, no version is created. Files of these cells and models that are damaged in the
    store are removed from every version and fetched again.

    --rollback hashes every file of the version before this one, and does not serve a broken version.
    """
    store, cells, models = this_store(), options.cells, options.models
    if options.rollback and (cells or models or options.replace):
        message = "--rollback serves a version that exists"
        raise ConfigError(message, fix="leave the cells, --model-lock and --replace out")
    if options.rollback:
        with progress_bar(settings, "rollback") as (_, progress):
            number = versions.rollback(existing_store(store), progress)
        if options.as_json:
            report_published(store, versions.PublishedVersion(number, new=False), as_json=True)
        else:
            click.echo(f"version {number} is served")
        return
    if not cells and not models:
        message = "nothing to release"
        raise ConfigError(message, fix="name a CELL or a --model-lock")
    with (
        collect_contents(settings, store, cells, models, options.mirror) as contents,
        progress_bar(settings, "release") as (_, progress),
    ):
        version = versions.publish(store, contents, keep=options.keep, merge=not options.replace, progress=progress)
    report_published(store, version, as_json=options.as_json)


def report_published(
    store: Store, version: versions.PublishedVersion, counts: dict[str, int] | None = None, *, as_json: bool
) -> None:
    """Print which version is served, and whether it is new; JSON has the counts of what was imported, too."""
    if as_json:
        document = {"schema": "envcheck/store-published/1", "version": version.number, "new": version.new}
        click.echo(json.dumps({**document, "served": str(store.root / "current"), **(counts or {})}, indent=2))
    elif version.new:
        click.echo(f"version {version.number} is served: {store.root / 'current'}")
    else:
        already = "is served already and has all of these files: no version was created"
        click.echo(f"version {version.number} {already}")
