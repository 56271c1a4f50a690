"""`envcheck store export` and `import`: what is published, carried to where no network goes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envcheck.cli._size import Size
from envcheck.cli._store_options import cells_option, human, json_option, keep_option, mirror_option, models_option
from envcheck.errors import ConfigError

if TYPE_CHECKING:
    from envcheck.mirrors.contents import Contents
    from envcheck.mirrors.store import Store


@click.command(
    "export", epilog="Example: envcheck store export --cell torch2.13.0-cpu-py311 --mirror host -o /media/usb"
)
@cells_option
@models_option
@mirror_option
@click.option("-o", "--output", "to", required=True, type=click.Path(path_type=Path, file_okay=False), help="Where to.")
@click.option("--part-size", default="4G", show_default=True, type=Size(), help="The largest file it may make.")
@json_option
@click.pass_obj
def export(
    obj: Any,
    *,
    cells: tuple[str, ...],
    models: tuple[Path, ...],
    mirror: str,
    to: Path,
    part_size: int,
    as_json: bool,
) -> None:
    """Write a bundle for where no network goes.

    Of cells and models, or of all that is served now. The same contents make the same bytes, whenever and wherever.
    """
    from envcheck.cli._store import bar, there
    from envcheck.cli._store_gather import gathered
    from envcheck.mirrors import bundle

    wanted = gathered(obj[0], obj[1], cells, models, mirror) if cells or models else _served(there(obj[1]))
    with wanted as contents, bar(obj[0], "export") as (_, progress):
        parts = bundle.export(obj[1], contents, to, part_size=part_size, progress=progress)
    sizes = {part.name: part.stat().st_size for part in parts}
    bound = [wheel.name for wheel in contents.wheels if wheel.redistributable is False]
    if as_json:
        told = {"schema": "envcheck/store-export/1", "to": str(to), "parts": sizes, "bytes": sum(sizes.values())}
        click.echo(json.dumps({**told, "not_redistributable": bound}, indent=2))
        return
    click.echo(f"{to}: {len(parts)} part(s), {human(sum(sizes.values()))}, and {bundle.SUMS}")
    if bound:
        click.echo(f"not to be passed on without their owner's leave: {len(bound)} wheel(s),")
        click.echo(f"  {bound[0]} for one")


@contextlib.contextmanager
def _served(store: Store) -> Iterator[Contents]:
    """Give what is served now, held."""
    from envcheck.mirrors import contents, versions

    served = versions.current(store)
    if served is None:
        message = "nothing to export: nothing is published"
        raise ConfigError(message, fix="name a --cell or a --model-lock")
    told = versions.manifest(store, served).contents
    with store.held(contents.objects(told)):
        yield told


@click.command("import", epilog="Example: envcheck store import /media/usb")
@click.argument("source", type=click.Path(path_type=Path, exists=True, file_okay=False))
@keep_option
@click.option("--no-publish", is_flag=True, help="Take the files into the store, and publish nothing.")
@json_option
@click.pass_obj
def import_(obj: Any, *, source: Path, keep: int, no_publish: bool, as_json: bool) -> None:
    """Take a bundle in and publish it.

    Every file is held against its hash before the first one gets its name in the store. A bundle of what is served
    already makes no version.
    """
    from envcheck.cli._store import bar
    from envcheck.cli._store_tree import say_published
    from envcheck.mirrors import bundle, versions
    from envcheck.mirrors.contents import objects

    store = obj[1]
    with bar(obj[0], "import") as (_, progress):
        parts = bundle.verified(source, progress)
        with store.held():
            contents = bundle.take(store, parts, progress)
            counted = {"wheels": len(contents.wheels), "models": len(contents.models)}
            done = None if no_publish else versions.publish(store, contents, keep=keep, checked=objects(contents))
    if not as_json:
        click.echo(f"{counted['wheels']} wheel(s) and {counted['models']} model(s) taken in, each of its hash")
    if done is not None:
        say_published(store, done, as_json=as_json, **counted)
    elif as_json:
        click.echo(json.dumps({"schema": "envcheck/store-import/1", **counted}, indent=2))
