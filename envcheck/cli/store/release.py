"""`envcheck store release`: create the next version of the tree and serve it, or serve the one before."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click

from envcheck.cli import Settings
from envcheck.cli.options import Argument, Option, command_with
from envcheck.cli.shared.parameter_types import complete_cells
from envcheck.cli.shared.process import stopping
from envcheck.cli.store.common import existing_store, progress_bar, this_store, transfer_options
from envcheck.errors import ConfigError, UnavailableError
from envcheck.images import prefetch
from envcheck.images.build_context import tool_lock
from envcheck.images.spec import ImageSpec, load_spec, no_lock, select
from envcheck.matrix.file.load import load
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.hub import revision as hub_revision
from envcheck.mirrors.profiles.load import load as load_profile
from envcheck.mirrors.profiles.model import Profile
from envcheck.mirrors.store import manifest, versions
from envcheck.mirrors.store.manifest import Contents, Wheel, describe_wheel
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
    prefetch.bring(store, locks, spec.cell.python, profile, options_for)
    present = prefetch.held(store, locks, spec.cell.python)
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
