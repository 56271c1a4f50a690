"""Helpers of the commands that use the store: open it, fetch into it, show progress."""

import contextlib
import errno
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import click

from envcheck.cli import Settings
from envcheck.cli.shared.process import stopping
from envcheck.data import state_path
from envcheck.errors import UnavailableError
from envcheck.images import wheels
from envcheck.images.build_context import tool_lock
from envcheck.images.lockfile import Lock
from envcheck.images.spec import ImageSpec
from envcheck.mirrors.fetch.request import TransferOptions
from envcheck.mirrors.net.client import hub_client
from envcheck.mirrors.profiles.model import Profile
from envcheck.mirrors.store.objects import Store

_UNITS: Final = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3}


def format_bytes(size: int) -> str:
    """Return a size as text, in powers of a thousand."""
    for unit, factor in _UNITS.items():
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


Progress = Callable[[int, int], None]
_MEND: Final = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space (`envcheck store gc`), or choose another directory"),
    errno.EIO: "the disk fails: move the store to another; `envcheck store release CELL` fetches lost files again",
}


def open_store(root: Path | None) -> Store:
    """Return the store at this path, or the user's own store."""
    return Store(root or state_path("store"), lambda text: click.echo(text, err=True))


@contextlib.contextmanager
def disk_errors(root: Path) -> Iterator[None]:
    """Report a full or read-only disk in one line."""
    try:
        yield
    except BrokenPipeError:
        raise  # from the reader of our output, not from the store
    except OSError as error:
        message = f"{error.filename or root}: {error.strerror or error}"
        fix = _MEND.get(error.errno or 0, "fix its permissions, or choose another")
        raise UnavailableError(message, fix=fix) from error


@contextlib.contextmanager
def progress_bar(settings: Settings, title: str) -> Iterator[tuple[Callable[[str], None], Progress]]:
    """Yield what prints a line, and what is told the bytes: a bar on a terminal, else the lines, nothing if quiet."""
    if settings.quiet or not sys.stderr.isatty():
        yield (lambda text: None if settings.quiet else click.echo(text, err=True)), (lambda _there, _all: None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(None), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as display:
        task = display.add_task(title, total=None)
        yield (
            lambda text: display.console.print(text, markup=False, highlight=False, soft_wrap=True),
            lambda done, all_: display.update(task, completed=done, total=all_),
        )


@contextlib.contextmanager
def transfer_options(settings: Settings, profile: Profile) -> Iterator[Callable[[str], TransferOptions]]:
    """Yield a function that returns the transfer options for a file name; an interrupt stops the transfers."""
    client, stop = hub_client(profile), threading.Event()
    with progress_bar(settings, "") as (say, progress), stopping(stop):

        def options_for(name: str) -> TransferOptions:
            say(f"  {name}")
            return TransferOptions(client, progress=progress, note=lambda text: say(f"  {text}"), stop=stop)

        yield options_for


@contextlib.contextmanager
def prefetched_wheels(
    settings: Settings, spec: ImageSpec, profile: Profile, root: Path | None, *, engine: str, fetch: bool
) -> Iterator[Path]:
    """Fetch the wheels that a build with this engine needs, and yield a directory with exactly these wheels.

    Without `fetch`, for a plan, they must be in the store.
    """
    store, python = open_store(root), spec.cell.python
    locks: list[Lock] = [*spec.locks, *([] if engine == "venv" else [tool_lock()])]
    with contextlib.ExitStack() as stack:
        hold = store.held() if fetch else contextlib.nullcontext()
        with disk_errors(store.root), hold:
            if fetch:
                with transfer_options(settings, profile) as options_for:
                    wheels.bring(store, locks, python, profile, options_for)
            stored = wheels.held(store, locks, python)
            folder = stack.enter_context(wheels.viewed(store, stored, None if fetch else str(spec.cell)))
        yield folder
