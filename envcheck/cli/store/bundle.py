"""`envcheck store export` and `import`: what is published, carried to where no network goes."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from envcheck.cli.shared.parameter_types import Size
from envcheck.cli.shared.typed_options import takes
from envcheck.cli.store.options import (
    cells_argument,
    format_bytes,
    json_option,
    keep_option,
    mirror_option,
    models_option,
)
from envcheck.errors import ConfigError, PromiseError

if TYPE_CHECKING:
    from envcheck.mirrors.store.manifest import Contents
    from envcheck.mirrors.store.objects import Store


class StoreExportOptions(NamedTuple):
    """The options of `envcheck store export`."""

    cells: tuple[str, ...]
    models: tuple[Path, ...]
    mirror: str
    output: Path
    part_size: int
    key: Path | None
    as_json: bool


class StoreImportOptions(NamedTuple):
    """The options of `envcheck store import`."""

    source: Path
    sha256: str | None
    key: Path | None
    keep: int
    no_release: bool
    as_json: bool


@click.command("export", epilog="Example: envcheck store export torch2.13.0-cpu-py311 --mirror host -o /media/usb")
@cells_argument
@models_option
@mirror_option
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path, file_okay=False), help="Where to.")
@click.option("--part-size", default="4G", show_default=True, type=Size(), help="The largest file it may make.")
@click.option("--key", type=click.Path(path_type=Path), help="An ed25519 private key (PEM) that signs it.")
@json_option
@click.pass_obj
@takes(StoreExportOptions)
def export(options: StoreExportOptions, obj: Any) -> None:
    """Write a bundle for where no network goes.

    Of cells and models, or of all that is served now. The same contents make the same bytes, whenever and wherever.
    The digest that is printed goes another way than the bundle: `import --sha256` refuses a bundle of another digest,
    `import --key` one that the key's public half does not verify.
    """
    from envcheck.cli.store.collect import collect_contents
    from envcheck.cli.store.common import existing_store, progress_bar
    from envcheck.mirrors.store.bundle import bundle

    cells, models, to, key = options.cells, options.models, options.output, options.key
    wanted = (
        collect_contents(obj[0], obj[1], cells, models, options.mirror)
        if cells or models
        else _served_contents(existing_store(obj[1]))
    )
    with wanted as contents, progress_bar(obj[0], "export") as (_, progress):
        parts = bundle.export(obj[1], contents, to, part_size=options.part_size, progress=progress, key=key)
    digest = bundle.bundle_digest(to)
    sizes = {part.name: part.stat().st_size for part in parts}
    bound = [wheel.name for wheel in contents.wheels if wheel.redistributable is False]
    if options.as_json:
        told = {"schema": "envcheck/store-export/1", "to": str(to), "parts": sizes, "bytes": sum(sizes.values())}
        told |= {"sha256": digest, "signed": key is not None}
        click.echo(json.dumps({**told, "not_redistributable": bound}, indent=2))
        return
    click.echo(f"{to}: {len(parts)} part(s), {format_bytes(sum(sizes.values()))}, and {bundle.SUMS}")
    click.echo(f"digest {digest}{', signed' if key is not None else ''}")
    if bound:
        click.echo(f"not to be passed on without their owner's leave: {len(bound)} wheel(s),")
        click.echo(f"  {bound[0]} for one")


@contextlib.contextmanager
def _served_contents(store: Store) -> Iterator[Contents]:
    """Give what is served now, held."""
    from envcheck.mirrors.store import manifest as store_manifest
    from envcheck.mirrors.store import versions

    served = versions.current(store)
    if served is None:
        message = "nothing to export: nothing is released"
        raise ConfigError(message, fix="name a CELL or a --model-lock")
    told = versions.read_manifest(store, served).contents
    with store.held(store_manifest.object_sizes(told)):
        yield told


@click.command("import", epilog="Example: envcheck store import /media/usb --sha256 0f3e...")
@click.argument("source", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--sha256", metavar="HASH", help="The digest that `store export` printed: any other bundle is refused.")
@click.option("--key", type=click.Path(path_type=Path), help="The ed25519 public key (PEM) that must have signed it.")
@keep_option
@click.option("--no-release", is_flag=True, help="Take the files into the store, and serve no new version.")
@json_option
@click.pass_obj
@takes(StoreImportOptions)
def import_(options: StoreImportOptions, obj: Any) -> None:
    """Take a bundle in and serve it.

    Every file is held against its hash before the first one gets its name in the store, and each wheel that a
    published cell locks against that lock. Whoever can write to the stick can write hashes too: --sha256 or --key says
    which bundle is meant. A bundle of what is served already makes no version.
    """
    from envcheck.cli.store.common import progress_bar
    from envcheck.cli.store.release import report_published
    from envcheck.mirrors.store import versions
    from envcheck.mirrors.store.bundle import bundle
    from envcheck.mirrors.store.manifest import object_sizes

    store, sha256, key = obj[1], options.sha256, options.key
    with progress_bar(obj[0], "import") as (_, progress):
        parts = bundle.verified_parts(options.source, progress, sha256=_parse_digest(sha256), key=key)
        with store.held():
            contents = bundle.import_parts(store, parts, progress, _compare_with_locks)
            counted = {"wheels": len(contents.wheels), "models": len(contents.models)}
            done = None
            if not options.no_release:
                done = versions.publish(store, contents, keep=options.keep, checked=object_sizes(contents))
    if sha256 is None and key is None and not obj[0].quiet:
        click.echo("not authenticated: give --sha256 or --key to refuse a bundle that another has made", err=True)
    if not options.as_json:
        click.echo(f"{counted['wheels']} wheel(s) and {counted['models']} model(s) taken in, each of its hash")
    if done is not None:
        report_published(store, done, as_json=options.as_json, **counted)
    elif options.as_json:
        click.echo(json.dumps({"schema": "envcheck/store-import/1", **counted}, indent=2))


def _parse_digest(text: str | None) -> str | None:
    if text is None:
        return None
    digest = text.removeprefix("sha256:").lower()
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        message = f"--sha256 {text!r} is no sha256 of 64 hexadecimal digits"
        raise ConfigError(message, fix="give the digest that `envcheck store export` printed")
    return digest


def _compare_with_locks(contents: Contents) -> None:
    """Raise PromiseError for a wheel that a published cell's lock pins, for that cell's Python, under other hashes."""
    from envcheck.data import data_path
    from envcheck.images.locks.lockfile import read_locks
    from envcheck.mirrors.index.locate import LockedPackage, fits

    pinned: dict[tuple[str, str, str], list[LockedPackage]] = {}
    for folder in sorted(path for path in data_path("images").iterdir() if path.is_dir()):
        minor = re.search(r"-py3([0-9]+)$", folder.name)
        for lock in read_locks(folder) if minor else []:
            for pin in lock.pins:
                need = LockedPackage(
                    pin.name, tuple(pin.sha256), lock.index, pin.version, f"3.{minor[1]}" if minor else None
                )
                pinned.setdefault((lock.index, pin.name, pin.version), []).append(need)
    for wheel in contents.wheels:
        needs = [need for need in pinned.get((wheel.index, wheel.project, wheel.version), []) if fits(need, wheel.name)]
        if needs and not any(wheel.sha256 in need.sha256 for need in needs):
            message = f"{wheel.name}: the bundle has another sha256 than the locks of the published cells"
            raise PromiseError(message, fix="do not use this bundle, or lock the cells anew if they are out of date")
