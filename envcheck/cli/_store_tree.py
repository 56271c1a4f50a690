"""`envcheck store publish`, `switch` and `rollback`: which version of the tree is served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envcheck.cli._store_options import cells_option, json_option, keep_option, mirror_option, models_option
from envcheck.errors import ConfigError

if TYPE_CHECKING:
    from envcheck.mirrors.store import Store
    from envcheck.mirrors.versions import Published

_hashed = click.option(
    "--hash/--no-hash", "hashed", default=True, help="Hash each of its files first, or look at their sizes alone."
)


@click.command("publish", epilog="Example: envcheck store publish --cell torch2.13.0-cpu-py311 --mirror host")
@cells_option
@models_option
@mirror_option
@keep_option
@click.option("--only", is_flag=True, help="Publish nothing of what is served now beside it.")
@json_option
@click.pass_obj
def publish(
    obj: Any,
    *,
    cells: tuple[str, ...],
    models: tuple[Path, ...],
    mirror: str,
    keep: int,
    only: bool,
    as_json: bool,
) -> None:
    """Make and serve the next version of the tree.

    It holds what is served now and what is named here, and it is served when it is whole. Where that is what is
    served already, no version is made.
    """
    from envcheck.cli._store import bar
    from envcheck.cli._store_gather import gathered
    from envcheck.mirrors import versions

    if not cells and not models:
        message = "nothing to publish"
        raise ConfigError(message, fix="name a --cell or a --model-lock")
    with gathered(obj[0], obj[1], cells, models, mirror) as contents, bar(obj[0], "publish") as (_, progress):
        done = versions.publish(obj[1], contents, keep=keep, merge=not only, progress=progress)
    say_published(obj[1], done, as_json=as_json)


@click.command("switch", epilog="Example: envcheck store switch 3")
@click.argument("number", type=click.IntRange(1))
@_hashed
@json_option
@click.pass_obj
def switch(obj: Any, *, number: int, hashed: bool, as_json: bool) -> None:
    """Serve another version.

    Each of its files is looked at first: what is broken is not served.
    """
    from envcheck.cli._store import bar, there
    from envcheck.mirrors import versions

    with bar(obj[0], "switch") as (_, progress):
        versions.switch(there(obj[1]), number, hashed=hashed, progress=progress)
    _say_served(obj[1], number, as_json=as_json)


@click.command("rollback", epilog="Example: envcheck store rollback")
@_hashed
@json_option
@click.pass_obj
def rollback(obj: Any, *, hashed: bool, as_json: bool) -> None:
    """Serve the version before this one.

    Each of its files is looked at first: what is broken is not served.
    """
    from envcheck.cli._store import bar, there
    from envcheck.mirrors import versions

    with bar(obj[0], "rollback") as (_, progress):
        number = versions.rollback(there(obj[1]), hashed=hashed, progress=progress)
    _say_served(obj[1], number, as_json=as_json)


def say_published(store: Store, done: Published, *, as_json: bool, **more: int) -> None:
    """Print which version is served, and whether it was made now."""
    if as_json:
        told = {"schema": "envcheck/store-published/1", "version": done.number, "new": done.new}
        click.echo(json.dumps({**told, "served": str(store.root / "current"), **more}, indent=2))
    elif done.new:
        click.echo(f"version {done.number} is served: {store.root / 'current'}")
    else:
        click.echo(f"version {done.number} is served, and has all of it: no version was made")


def _say_served(store: Store, number: int, *, as_json: bool) -> None:
    if as_json:
        told = {"schema": "envcheck/store-served/1", "version": number, "served": str(store.root / "current")}
        click.echo(json.dumps(told, indent=2))
    else:
        click.echo(f"version {number} is served")
