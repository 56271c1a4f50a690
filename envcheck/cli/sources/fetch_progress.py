"""Show the progress and the result of a fetch."""

from __future__ import annotations

import collections
import datetime as dt
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from envcheck.cli.interrupts import status_of
from envcheck.cli.store.options import format_bytes
from envcheck.counting import counted
from envcheck.errors import EnvcheckError

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.mirrors.fetch.limits import BandwidthLimiter
    from envcheck.mirrors.fetch.request import FetchedFile

# Seconds: the window of a rate and its minimum; the pause before the first line of a log.
_WINDOW: Final = 15.0
_SOON: Final = 0.9
_CALM: Final = 10.0
_GO_ON: Final = "run the same command to resume"


@contextmanager
def report_errors(*, as_json: bool) -> Iterator[list[FetchedFile]]:
    """Yield a list for the fetched files. If the block fails, print the JSON object for --json, and raise the error."""
    fetched: list[FetchedFile] = []
    try:
        yield fetched
    except KeyboardInterrupt:
        _print_json(fetched, {"message": "interrupted", "fix": _GO_ON}, as_json=as_json)
        raise
    except (EnvcheckError, OSError) as error:
        message = error.message if isinstance(error, EnvcheckError) else str(error)
        _print_json(fetched, {"message": message, "fix": getattr(error, "fix", None)}, as_json=as_json)
        raise


def report_interrupt(how: KeyboardInterrupt) -> int:
    """Report an interrupt or SIGTERM, and return the exit code."""
    click.echo(f"envcheck: interrupted; {_GO_ON}", err=True)
    return status_of(how)


def _print_json(fetched: list[FetchedFile], error: dict[str, str | None] | None, *, as_json: bool) -> None:
    if not as_json:
        return
    files = [
        {"path": str(f.path), "size": f.size, "moved": f.moved, "found": f.found, "sources": dict(f.sources)}
        for f in fetched
    ]
    click.echo(json.dumps({"schema": "envcheck/fetch/1", "files": files, "error": error}, indent=2))


class TransferSpeed:
    """The recent transfer speed and the time left at that speed, in seconds. Safe to use from several threads."""

    def __init__(self, moved: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._moved, self._clock = moved, clock
        self._samples = collections.deque([(clock(), moved())])
        self._lock = threading.Lock()

    def text(self, left: int) -> str:
        """Return for example "38.2 MB/s, 0:01:06 left", without the parts that are unknown."""
        with self._lock:
            now, moved = self._clock(), self._moved()
            self._samples.append((now, moved))
            while len(self._samples) > 2 and now - self._samples[1][0] > _WINDOW:  # noqa: PLR2004 (two make a rate)
                self._samples.popleft()
            since, before = self._samples[0]
        if now - since < _SOON:
            return ""
        rate = (moved - before) / (now - since)
        left_for = f", {dt.timedelta(seconds=int(left / rate))} left" if rate >= 1 else ""
        return f"{rate / 1e6:.1f} MB/s{left_for}"


class ProgressLines:
    """Progress lines for a log: the first after ten seconds, the next after a tenth more time."""

    def __init__(
        self, speed: TransferSpeed, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._speed, self._say, self._clock = speed, say, clock
        self._began = clock()
        self._next = self._began + _CALM
        self._lock = threading.Lock()

    def __call__(self, present: int, size: int) -> None:
        """Print a line if it is time."""
        with self._lock:
            now = self._clock()
            fast = self._speed.text(size - present)
            if now < self._next:
                return
            self._next = now + max(_CALM, (now - self._began) / 10)
        self._say(f"{present / 1e6:.1f} of {size / 1e6:.1f} MB" + (f", {fast}" if fast else ""))


class ProgressScreen(NamedTuple):
    """The callbacks of a fetch: progress, notes, and the result of a file."""

    progress: Callable[[int, int], None]
    note: Callable[[str], None]
    say: Callable[[str], None]


def format_total(sizes: Sequence[int | None]) -> str:
    """Return the total size of several files as text, with the number of files of unknown size."""
    known_sizes = [size for size in sizes if size is not None]
    if not known_sizes:
        return f"{counted(len(sizes), 'file')} of unknown size"
    least = "" if len(known_sizes) == len(sizes) else f"{len(sizes) - len(known_sizes)} of unknown size, the others "
    return f"{counted(len(sizes), 'file')}, {least}{format_bytes(sum(known_sizes))}, less what is present"


@contextmanager
def progress_screen(settings: Settings, count: int, limiter: BandwidthLimiter) -> Iterator[ProgressScreen]:
    """Yield the display of a fetch: a bar on a terminal, a few lines elsewhere, nothing with --quiet."""
    if settings.quiet:
        yield ProgressScreen(lambda _there, _all: None, lambda _: None, lambda _: None)
        return
    speed = TransferSpeed(lambda: limiter.taken)
    if not sys.stderr.isatty():
        yield _screen(
            ProgressLines(speed, lambda text: click.echo(f"  {text}", err=True)), lambda t: click.echo(t, err=True)
        )
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(None), DownloadColumn(), TextColumn("{task.fields[speed]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(counted(count, "file"), total=None, speed="")
        yield _screen(
            lambda done, all_: bar.update(task, completed=done, total=all_, speed=speed.text(all_ - done)),
            lambda text: bar.console.print(text, markup=False, highlight=False, soft_wrap=True),
        )


def _screen(progress: Callable[[int, int], None], say: Callable[[str], None]) -> ProgressScreen:
    return ProgressScreen(progress, lambda text: say(f"  {text}"), say)


def report_file(screen: ProgressScreen, fetched: FetchedFile, name: str) -> None:
    """Print the result of one file as soon as it is fetched."""
    size = format_bytes(fetched.size)
    if not fetched.size:
        screen.say(f"{name}  {size}  empty")
        return
    if not fetched.moved:
        where = ", linked or copied" if fetched.sources else ""
        screen.say(f"{name}  {size}  was there{where}")
        return
    went_on = f", {format_bytes(fetched.found)} of it from an earlier run" if fetched.found else ""
    rate = format_bytes(int(fetched.moved / max(fetched.seconds, 1e-9)))
    screen.say(f"{name}  {size}{went_on}  {', '.join(fetched.sources)}  {rate}/s")


def report_total(fetched: list[FetchedFile], *, as_json: bool, then: str = "") -> None:
    """Print the total of all files."""
    if as_json:
        _print_json(fetched, None, as_json=True)
        return
    moved, size = sum(f.moved for f in fetched), sum(f.size for f in fetched)
    click.echo(
        f"{counted(len(fetched), 'file')} there, {format_bytes(size)}, every hash matches; {format_bytes(moved)} moved"
    )
    if then:
        click.echo(then)
