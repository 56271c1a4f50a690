"""`envcheck store release`, `export` and `import`: serve the next version, and carry it elsewhere."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click

from envcheck.cli import Settings
from envcheck.cli.options import DIRECTORY, EXISTING_DIRECTORY, Argument, Option, Size, command_with, complete_cells
from envcheck.cli.shared.process import stopping
from envcheck.cli.store.common import (
    disk_errors,
    existing_store,
    format_bytes,
    progress_bar,
    this_store,
    transfer_options,
)
from envcheck.counting import counted
from envcheck.data import data_path
from envcheck.errors import ConfigError, PromiseError, UnavailableError
from envcheck.images import wheels
from envcheck.images.build_context import tool_lock
from envcheck.images.lockfile import read_locks
from envcheck.images.spec import ImageSpec, load_spec, no_lock, select
from envcheck.matrix.file.load import load
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.hub import revision as hub_revision
from envcheck.mirrors.index import LockedPackage, fits
from envcheck.mirrors.profiles.load import load as load_profile
from envcheck.mirrors.profiles.model import Profile
from envcheck.mirrors.store import bundle, manifest, versions
from envcheck.mirrors.store.manifest import Contents, Wheel, describe_wheel, object_sizes
from envcheck.mirrors.store.objects import Store


@dataclass(frozen=True, kw_only=True)
class StoreReleaseOptions:
    cells: Annotated[tuple[str, ...], Argument(metavar="[CELL]...", shell_complete=complete_cells)] = ()
    models: Annotated[tuple[Path, ...], Option("--model-lock", "Lock of a model: add all of its files.")] = ()
    mirror: Annotated[str, Option("Mirror profile for missing files.")] = "user"
    keep: Annotated[int, Option("Number of versions to keep.", type=click.IntRange(1))] = 5
    replace: Annotated[bool, Option("Serve only what is named here, without the files served now.")] = False
    rollback: Annotated[bool, Option("Serve the version before the one that is served now.")] = False
    as_json: Annotated[bool, Option("--json", "Print JSON.")] = False


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


@contextlib.contextmanager
def collect_contents(
    settings: Settings, store: Store, cells: tuple[str, ...], models: tuple[Path, ...], mirror: str
) -> Iterator[Contents]:
    """Fetch these cells and models into the store; yield their contents and keep them from eviction."""
    matrix = load(settings.matrix)
    profile, contents = load_profile(mirror), manifest.Contents()
    specs = [load_spec(matrix, cell, "runtime") for name in cells for cell in select(matrix, [name])]
    revisions = [hub_revision.parse_lock(_read_lock(path), str(path)) for path in models]
    required = _required_digests(specs, revisions)
    with store.held(required):
        with progress_bar(settings, "verify") as (say, progress):
            for name in versions.remove_damaged(store, required, progress):
                say(f"{name}: damaged in the store, removed")
        stop = threading.Event()
        with transfer_options(settings, profile, stop) as options_for, stopping(stop):
            for spec in specs:
                wheels = _collect_wheels(store, spec, profile, options_for)
                contents = manifest.merge(contents, manifest.Contents(wheels=wheels))
            for lock in revisions:
                _fetch_model(store, lock, profile, options_for)
                model_contents = manifest.Contents(models=[lock], branches={f"{lock.repo}@main": lock.revision})
                contents = manifest.merge(contents, model_contents)
        yield contents


def _required_digests(specs: list[ImageSpec], revisions: list[hub_revision.Revision]) -> list[str]:
    locks = [lock for spec in specs for lock in [*spec.locks, tool_lock()]]
    files = [str(file.sha256) for revision in revisions for file in revision.files]
    return [*files, *(digest for lock in locks for pin in lock.pins for digest in pin.sha256)]


def _collect_wheels(
    store: Store, spec: ImageSpec, profile: Profile, options_for: Callable[[str], TransferOptions]
) -> list[Wheel]:
    """Return a cell's wheels, and those of the envcheck that goes into its images."""
    if not spec.locks:
        raise no_lock(spec.cell, spec.arch)
    locks = [*spec.locks, tool_lock()]
    wheels.bring(store, locks, spec.cell.python, profile, options_for)
    present = wheels.held(store, locks, spec.cell.python)
    return [describe_wheel(store, wheel.sha256, wheel.name, wheel.index) for wheel in present]


def _fetch_model(
    store: Store, lock: hub_revision.Revision, profile: Profile, options_for: Callable[[str], TransferOptions]
) -> None:
    ref = hub_revision.Reference(lock.kind, lock.repo, lock.revision)
    for file in lock.files:
        if store.has(str(file.sha256)):
            continue
        if not profile.hf.endpoints:
            message = f"{lock.repo}: {file.path} is not in the store, and the mirror profile has no hf.endpoint"
            raise UnavailableError(message, fix="give --mirror a profile that names one")
        urls = tuple(hub_revision.file_url(endpoint, ref, file.path) for endpoint in profile.hf.endpoints)
        store.put(WantedFile(urls, str(file.sha256), file.size, Path(Path(file.path).name)), options_for(file.path))


def _read_lock(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        message = f"{path}: {error.strerror}"
        raise ConfigError(message, fix="name a lock that `envcheck lock --model` wrote") from error


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
