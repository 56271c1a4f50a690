"""Where the files of a command come from: the wheels that locks name, a mirror, the store; and what shows it."""

import contextlib
import errno
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import click
from click.core import ParameterSource

from envcheck.cli import Settings
from envcheck.cli.options import architecture
from envcheck.cli.shared.process import SILENT, beating, stopping, wrapped
from envcheck.data import data_path, state_path
from envcheck.errors import UnavailableError
from envcheck.images import wheels
from envcheck.images.lockfile import Lock, read_locks
from envcheck.images.spec import no_lock, select, select_one
from envcheck.images.targets import groups_of
from envcheck.matrix.file.load import load as load_matrix
from envcheck.mirrors import probe
from envcheck.mirrors.fetch.request import TransferOptions
from envcheck.mirrors.net.client import hub_client
from envcheck.mirrors.profiles import model
from envcheck.mirrors.profiles.load import AUTO
from envcheck.mirrors.profiles.model import Profile
from envcheck.mirrors.store.objects import Store

_UNITS: Final = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3}
_MEND: Final = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space (`envcheck store gc`), or choose another directory"),
    errno.EIO: "the disk fails: move the store to another; `envcheck store release CELL` fetches lost files again",
}
# What prints a line, and what is told the bytes that are there and all of them.
Progress = tuple[Callable[[str], None], Callable[[int, int], None]]


class CellLocks(NamedTuple):
    """Locks whose files are fetched together, and the Python that their wheels are for, where a cell names it."""

    locks: list[Lock]
    python: str | None


def locked_cells(settings: Settings, selector: str, *, one: bool) -> list[CellLocks]:
    """Return the locks for this machine of each cell that the selector matches; `one` refuses several cells."""
    matrix = load_matrix(settings.matrix)
    cells = [select_one(matrix, selector, "probe for")] if one else select(matrix, [selector])
    arch, groups = architecture("auto"), groups_of("runtime")
    locked = [CellLocks(read_locks(data_path("images") / str(cell), groups, arch), cell.python) for cell in cells]
    for cell, (locks, _) in zip(cells, locked, strict=True):
        if not locks:
            raise no_lock(cell, arch)
    return locked


def tell_choice(settings: Settings, mirror: str) -> None:
    """Print where the choice of a mirror is from, if the command line does not name it."""
    context = click.get_current_context(silent=True)
    by_variable = context and mirror != AUTO and context.get_parameter_source("mirror") is ParameterSource.ENVIRONMENT
    chosen = f"{mirror}: the environment names it" if by_variable else None
    if mirror == "user":
        name = model.read_choice()
        chosen = f"{name}: `envcheck mirror use` chose it" if name else "none chosen: each client uses its own default"
    if chosen and not settings.quiet:
        click.echo(f"mirror  {chosen}", err=True)


def probed_profile(settings: Settings, locks: Iterable[Lock]) -> Profile:
    """Return a profile of the mirrors that pass a probe for the locks; print which comes first, and why."""
    with beating("mirrors are probed", quiet=settings.quiet):
        profile, reasons = probe.choose(probe.lock_targets(wheels.locked_packages(locks)), probe.default_mirrors())
    first = {line.partition(": ")[0]: line for line in reversed(reasons)}
    if not settings.quiet:
        click.echo(f"mirror  auto: {'; '.join(first.values())}", err=True)
        for line in (line for line in reasons if line not in first.values()):
            click.echo(wrapped(line, "  ", "    "), err=True)
    return profile


def format_bytes(size: int) -> str:
    """Return a size as text, in powers of a thousand."""
    fitting = [f"{size / factor:.1f} {unit}" for unit, factor in _UNITS.items() if size >= factor]
    return fitting[0] if fitting else f"{size} bytes"


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
def progress_bar(settings: Settings, title: str) -> Iterator[Progress]:
    """Yield a bar on a terminal, else lines with the bytes now and then, and nothing if quiet."""
    if settings.quiet:
        yield (lambda _text: None), (lambda _there, _all: None)
        return
    if not sys.stderr.isatty():
        told = [time.monotonic()]

        def tell(there: int, all_: int) -> None:
            if time.monotonic() - told[0] >= SILENT:
                told[0] = time.monotonic()
                click.echo(f"  ... {format_bytes(there)} of {format_bytes(all_)}", err=True)

        yield (lambda text: click.echo(text, err=True)), tell
        return
    from rich import progress
    from rich.console import Console

    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(None), progress.DownloadColumn())
    rest = (progress.TransferSpeedColumn(), progress.TimeRemainingColumn())
    with progress.Progress(*columns, *rest, console=Console(stderr=True), transient=True) as display:
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
    settings: Settings, locks: Sequence[Lock], python: str, profile: Profile, store: Store, plan: str | None
) -> Iterator[Path]:
    """Fetch the wheels of these locks; yield a directory with exactly these. For a `plan` they must be in the store."""
    with contextlib.ExitStack() as stack:
        hold = store.held() if plan is None else contextlib.nullcontext()
        with disk_errors(store.root), hold:
            if plan is None:
                with transfer_options(settings, profile) as options_for:
                    wheels.bring(store, locks, python, profile, options_for)
            folder = stack.enter_context(wheels.viewed(store, wheels.held(store, locks, python), plan))
        yield folder
