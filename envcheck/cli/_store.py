"""What the commands that use the store have in common: where it is, how it is filled, what is seen of that."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.images.pins import Lock
    from envcheck.images.spec import ImageSpec
    from envcheck.mirrors import hf
    from envcheck.mirrors.contents import Contents, Wheel
    from envcheck.mirrors.fetch.wanted import Means
    from envcheck.mirrors.profile import Profile
    from envcheck.mirrors.store import Store

Progress = Callable[[int, int], None]


def open_store(root: Path | None) -> Store:
    """Return the store there, or this user's own."""
    from envcheck.data import state_path
    from envcheck.mirrors.store import Store

    return Store(root or state_path("store"))


@contextlib.contextmanager
def disk_errors(root: Path) -> Iterator[None]:
    """Tell a full disk, or one that may not be written, in a line."""
    from envcheck.errors import UnavailableError

    try:
        yield
    except BrokenPipeError:
        raise  # of whoever read our output, and not of the store
    except OSError as error:
        message = f"{error.filename or root}: {error.strerror or error}"
        raise UnavailableError(message, fix="make room, mend its rights, or name another directory") from error


@contextlib.contextmanager
def bar(settings: Settings, title: str) -> Iterator[tuple[Callable[[str], None], Progress]]:
    """Give what hears which file is under way and what hears of its bytes: a bar on a terminal, else a line a file."""

    def say(name: str) -> None:
        if not settings.quiet:
            click.echo(f"  {name}", err=True)

    if settings.quiet or not sys.stderr.isatty():
        yield say, (lambda _there, _all: None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(None), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(title, total=None)

        def name(text: str) -> None:
            shown.reset(task, description=text[:40], total=None)

        yield name, (lambda there, all_: shown.update(task, completed=there, total=all_))


@contextlib.contextmanager
def fetching(settings: Settings, profile: Profile) -> Iterator[Callable[[str], Means]]:
    """Give what returns the means to fetch a file of that name through the profile."""
    from envcheck.mirrors.fetch.wanted import Means
    from envcheck.mirrors.http import Client

    ca, netrc = (Path(path) if path else None for path in (profile.ca, profile.netrc))
    client = Client(ca=ca, netrc_file=netrc)
    with bar(settings, "") as (say, progress):

        def means(name: str) -> Means:
            say(name)
            return Means(client, progress=progress, note=say)

        yield means


@contextlib.contextmanager
def prefetched(
    settings: Settings, spec: ImageSpec, profile: Profile, root: Path | None, *, engine: str, fetch: bool
) -> Iterator[Profile]:
    """Have all that a build of this engine needs in the store, and give the profile that names nothing else.

    Without `fetch` it must be there.
    """
    from envcheck.images import prefetch
    from envcheck.images.context import tool_lock

    store, python = open_store(root), spec.cell.python
    locks: list[Lock] = [*spec.locks, *([] if engine == "venv" else [tool_lock()])]
    with disk_errors(store.root):
        if fetch:
            with fetching(settings, profile) as means:
                prefetch.bring(store, locks, python, profile, means)
        wheels = prefetch.held(store, locks, python)
    with prefetch.viewed(store, wheels, profile) as only:
        yield only


def gathered(
    settings: Settings, store: Store, cells: tuple[str, ...], models: tuple[Path, ...], mirror: str
) -> Contents:
    """Return these cells and models as they are published, once all of them is in the store."""
    from envcheck.images.spec import load_spec, select
    from envcheck.matrix.load import load
    from envcheck.mirrors import contents, hf
    from envcheck.mirrors.load import load as load_profile

    matrix = load(settings.matrix)
    profile, found = load_profile(mirror), contents.Contents()
    specs = [load_spec(matrix, cell, "runtime") for name in cells for cell in select(matrix, [name])]
    with fetching(settings, profile) as means:
        for spec in specs:
            found = contents.merged(found, contents.Contents(wheels=_wheels(store, spec, profile, means)))
        for path in models:
            lock = hf.parse_lock(_read(path), str(path))
            _model(store, lock, profile, means)
            named = contents.Contents(models=[lock], branches={f"{lock.repo}@main": lock.revision})
            found = contents.merged(found, named)
    return found


def _wheels(store: Store, spec: ImageSpec, profile: Profile, means: Callable[[str], Means]) -> list[Wheel]:
    """Return a cell's wheels, and those of the envcheck that goes into its images."""
    from envcheck.errors import ConfigError
    from envcheck.images import prefetch
    from envcheck.images.context import tool_lock
    from envcheck.mirrors.describe import describe

    if not spec.locks:
        message = f"{spec.cell} has no lock"
        raise ConfigError(message, fix=f"run `envcheck lock {spec.cell}` where its index can be reached")
    locks = [*spec.locks, tool_lock()]
    prefetch.bring(store, locks, spec.cell.python, profile, means)
    held = prefetch.held(store, locks, spec.cell.python)
    return [describe(store, one.sha256, one.name, one.index) for one in held]


def _model(store: Store, lock: hf.Revision, profile: Profile, means: Callable[[str], Means]) -> None:
    from envcheck.errors import UnavailableError
    from envcheck.mirrors import hf
    from envcheck.mirrors.fetch.wanted import Wanted

    ref = hf.Reference(lock.kind, lock.repo, lock.revision)
    for file in lock.files:
        if store.has(str(file.sha256)):
            continue
        if profile.hf.endpoint is None:
            message = f"{lock.repo}: {file.path} is not in the store, and the mirror profile names no hf.endpoint"
            raise UnavailableError(message, fix="give --mirror a profile that names one")
        url = hf.file_url(profile.hf.endpoint, ref, file.path)
        store.put(Wanted((url,), str(file.sha256), file.size, Path(Path(file.path).name)), means(file.path))


def _read(path: Path) -> bytes:
    from envcheck.errors import ConfigError

    try:
        return path.read_bytes()
    except OSError as error:
        message = f"{path}: {error.strerror}"
        raise ConfigError(message, fix="name a lock that `envcheck lock --model` wrote") from error
