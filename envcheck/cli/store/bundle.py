"""`envcheck store export` and `import`: carry the released files to machines without a network."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click

from envcheck.cli import Settings
from envcheck.cli.options import DIRECTORY, EXISTING_DIRECTORY, Argument, Option, command_with
from envcheck.cli.shared.parameter_types import Size, complete_cells
from envcheck.cli.store.common import disk_errors, existing_store, format_bytes, progress_bar, this_store
from envcheck.cli.store.release import collect_contents, report_published
from envcheck.counting import counted
from envcheck.data import data_path
from envcheck.errors import ConfigError, PromiseError
from envcheck.images.lockfile import read_locks
from envcheck.mirrors.index.locate import LockedPackage, fits
from envcheck.mirrors.store import bundle, versions
from envcheck.mirrors.store.manifest import Contents, object_sizes
from envcheck.mirrors.store.objects import Store


@dataclass(frozen=True, kw_only=True)
class StoreExportOptions:
    cells: Annotated[tuple[str, ...], Argument(metavar="[CELL]...", shell_complete=complete_cells)] = ()
    models: Annotated[tuple[Path, ...], Option("--model-lock", "Lock of a model: add all of its files.")] = ()
    mirror: Annotated[str, Option("Mirror profile for missing files.")] = "user"
    output: Annotated[Path, Option("-o", "--output", "Output directory.", type=DIRECTORY)]
    part_size: Annotated[int, Option("Largest size of one file.", type=Size())] = 4 * 1000**3
    key: Annotated[Path | None, Option("ed25519 private key (PEM) to sign the bundle.")] = None
    as_json: Annotated[bool, Option("--json", "Print JSON.")] = False


@dataclass(frozen=True, kw_only=True)
class StoreImportOptions:
    source: Annotated[Path, Argument(type=EXISTING_DIRECTORY)]
    sha256: Annotated[
        str | None, Option("Digest that `store export` printed; refuse any other bundle.", metavar="HASH")
    ] = None
    key: Annotated[Path | None, Option("ed25519 public key (PEM) that must verify the bundle.")] = None
    keep: Annotated[int, Option("Number of versions to keep.", type=click.IntRange(1))] = 5
    no_release: Annotated[bool, Option("Only add the files to the store; release no version.")] = False
    as_json: Annotated[bool, Option("--json", "Print JSON.")] = False


@command_with(
    StoreExportOptions, epilog="Example: envcheck store export torch2.13.0-cpu-py311 --mirror host -o /media/usb"
)
def export(options: StoreExportOptions, settings: Settings) -> None:
    """Write a bundle for machines without a network.

    It holds the named cells and models, or everything that is served now. The same contents give the same bytes. Send
    the printed digest separately from the bundle: `import --sha256` refuses a bundle with another digest, and `import
    --key` one that the public key does not verify.
    """
    cells, models, to, key = options.cells, options.models, options.output, options.key
    source = (
        collect_contents(settings, this_store(), cells, models, options.mirror)
        if cells or models
        else _served_contents(existing_store(this_store()))
    )
    with source as contents, progress_bar(settings, "export") as (_, progress), disk_errors(to):
        parts = bundle.export(this_store(), contents, to, part_size=options.part_size, progress=progress, key=key)
    digest = bundle.bundle_digest(to)
    sizes = {part.name: part.stat().st_size for part in parts}
    if options.as_json:
        document = {"schema": "envcheck/store-export/1", "to": str(to), "parts": sizes, "bytes": sum(sizes.values())}
        document |= {"sha256": digest, "signed": key is not None}
        click.echo(json.dumps(document, indent=2))
        return
    click.echo(f"{to}: {counted(len(parts), 'part')}, {format_bytes(sum(sizes.values()))}, and {bundle.SUMS}")
    click.echo(f"digest {digest}{', signed' if key is not None else ''}")


@contextlib.contextmanager
def _served_contents(store: Store) -> Iterator[Contents]:
    """Yield the contents that are served now, and keep them from eviction."""
    served = versions.current(store)
    if served is None:
        message = "nothing to export: the store has no released version"
        raise ConfigError(message, fix="name a CELL or a --model-lock")
    version = versions.read_manifest(store, served).contents
    with store.held(object_sizes(version)):
        yield version


@command_with(StoreImportOptions, epilog="Example: envcheck store import /media/usb --sha256 0f3e...")
def import_(options: StoreImportOptions, settings: Settings) -> None:
    """Import a bundle and serve it.

    Every file is compared with its hash before the first one enters the store, and each wheel of a published cell with
    that cell's lock. A person who can change the bundle can change its hashes too: use --sha256 or --key to verify it.
    If nothing is new, no version is created.
    """
    store, sha256, key = this_store(), options.sha256, options.key
    with progress_bar(settings, "import") as (_, progress):
        parts = bundle.verified_parts(options.source, progress, sha256=_parse_digest(sha256), key=key)
        with store.held():
            contents = bundle.import_bundle(store, parts, progress, _compare_with_locks)
            counts = {"wheels": len(contents.wheels), "models": len(contents.models)}
            version = None
            if not options.no_release:
                version = versions.publish(store, contents, keep=options.keep, checked=object_sizes(contents))
    if sha256 is None and key is None and not settings.quiet:
        click.echo("not authenticated: pass --sha256 or --key to refuse a bundle of somebody else", err=True)
    if not options.as_json:
        click.echo(
            f"{counted(counts['wheels'], 'wheel')} and {counted(counts['models'], 'model')} "
            "imported, every hash matches"
        )
    if version is not None:
        report_published(store, version, counts, as_json=options.as_json)
    elif options.as_json:
        click.echo(json.dumps({"schema": "envcheck/store-import/1", **counts}, indent=2))


def _parse_digest(text: str | None) -> str | None:
    if text is None:
        return None
    digest = text.removeprefix("sha256:").lower()
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        message = f"--sha256 {text!r} is not a sha256 of 64 hexadecimal digits"
        raise ConfigError(message, fix="give the digest that `envcheck store export` printed")
    return digest


def _compare_with_locks(contents: Contents) -> None:
    """Raise PromiseError if a published cell's lock pins a wheel, for the cell's Python, with other hashes."""
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
