"""`envcheck store release`, `switch` and `rollback`: which version of the tree is served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from envcheck.cli.shared.typed_options import takes
from envcheck.cli.store.options import cells_argument, json_option, keep_option, mirror_option, models_option
from envcheck.errors import ConfigError

if TYPE_CHECKING:
    from envcheck.mirrors.store.objects import Store
    from envcheck.mirrors.store.publishing import PublishedVersion

_hashed = click.option("--hash/--no-hash", "hashed", default=True, help="Hash every file first, or only compare sizes.")


class StoreReleaseOptions(NamedTuple):
    """The options of `envcheck store release`."""

    cells: tuple[str, ...]
    models: tuple[Path, ...]
    mirror: str
    keep: int
    replace: bool
    as_json: bool


class StoreSwitchOptions(NamedTuple):
    """The options of `envcheck store switch`."""

    number: int
    hashed: bool
    as_json: bool


class StoreRollbackOptions(NamedTuple):
    """The options of `envcheck store rollback`."""

    hashed: bool
    as_json: bool


@click.command("release", epilog="Example: envcheck store release torch2.13.0-cpu-py311 --mirror host")
@cells_argument
@models_option
@mirror_option
@keep_option
@click.option("--replace", is_flag=True, help="Serve only what is named here, without the files served now.")
@json_option
@click.pass_obj
@takes(StoreReleaseOptions)
def release(options: StoreReleaseOptions, obj: Any) -> None:
    """Create the next version of the tree and serve it.

    It holds what is served now, every wheel of each CELL's locks and every model named here. It is served once it is
    complete. If nothing is new, no version is created.
    """
    from envcheck.cli.store.collect import collect_contents
    from envcheck.cli.store.common import progress_bar
    from envcheck.mirrors.store import publishing

    cells, models = options.cells, options.models
    if not cells and not models:
        message = "nothing to release"
        raise ConfigError(message, fix="name a CELL or a --model-lock")
    with (
        collect_contents(obj[0], obj[1], cells, models, options.mirror) as contents,
        progress_bar(obj[0], "release") as (_, progress),
    ):
        version = publishing.publish(obj[1], contents, keep=options.keep, merge=not options.replace, progress=progress)
    report_published(obj[1], version, as_json=options.as_json)


@click.command("switch", epilog="Example: envcheck store switch 3")
@click.argument("number", type=click.IntRange(1))
@_hashed
@json_option
@click.pass_obj
@takes(StoreSwitchOptions)
def switch(options: StoreSwitchOptions, obj: Any) -> None:
    """Serve another version.

    Every file is checked first; a broken version is not served.
    """
    from envcheck.cli.store.common import existing_store, progress_bar
    from envcheck.mirrors.store import versions

    with progress_bar(obj[0], "switch") as (_, progress):
        versions.switch(existing_store(obj[1]), options.number, hashed=options.hashed, progress=progress)
    _report_served(obj[1], options.number, as_json=options.as_json)


@click.command("rollback", epilog="Example: envcheck store rollback")
@_hashed
@json_option
@click.pass_obj
@takes(StoreRollbackOptions)
def rollback(options: StoreRollbackOptions, obj: Any) -> None:
    """Serve the version before this one.

    Every file is checked first; a broken version is not served.
    """
    from envcheck.cli.store.common import existing_store, progress_bar
    from envcheck.mirrors.store import versions

    with progress_bar(obj[0], "rollback") as (_, progress):
        number = versions.rollback(existing_store(obj[1]), hashed=options.hashed, progress=progress)
    _report_served(obj[1], number, as_json=options.as_json)


def report_published(store: Store, version: PublishedVersion, *, as_json: bool, **more: int) -> None:
    """Print which version is served, and whether it is new."""
    if as_json:
        document = {"schema": "envcheck/store-published/1", "version": version.number, "new": version.new}
        click.echo(json.dumps({**document, "served": str(store.root / "current"), **more}, indent=2))
    elif version.new:
        click.echo(f"version {version.number} is served: {store.root / 'current'}")
    else:
        click.echo(f"version {version.number} is served already and has all of these files: no version was created")


def _report_served(store: Store, number: int, *, as_json: bool) -> None:
    if as_json:
        document = {"schema": "envcheck/store-served/1", "version": number, "served": str(store.root / "current")}
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo(f"version {number} is served")
