"""What is seen of a fetch, and what it came to."""

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

from envcheck.cli.shared.interruptible import leave, status_of, terminable
from envcheck.cli.store.options import format_bytes
from envcheck.errors import EnvcheckError

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.mirrors.fetch.limits import BandwidthLimiter
    from envcheck.mirrors.fetch.request import FetchedFile

# Seconds: what a rate is taken over, and what it is at least; the pause before the first line of a log.
_WINDOW: Final = 15.0
_SOON: Final = 0.9
_CALM: Final = 10.0
_GO_ON: Final = "the same command goes on where it stopped"


@contextmanager
def report_errors(*, as_json: bool) -> Iterator[list[FetchedFile]]:
    """Give a list for what is there; however the block ends, a program gets its object and a person a line."""
    done: list[FetchedFile] = []
    try:
        with terminable():
            yield done
    except KeyboardInterrupt:
        _print_json(done, {"message": "interrupted", "fix": _GO_ON}, as_json=as_json)
        raise
    except (EnvcheckError, OSError) as error:
        message = error.message if isinstance(error, EnvcheckError) else str(error)
        _print_json(done, {"message": message, "fix": getattr(error, "fix", None)}, as_json=as_json)
        raise


def report_interrupt(how: KeyboardInterrupt) -> int:
    """Say that it was stopped by hand or by SIGTERM, and return the exit code."""
    click.echo(f"envcheck: interrupted; {_GO_ON}", err=True)
    return leave(status_of(how))


def _print_json(done: list[FetchedFile], error: dict[str, str | None] | None, *, as_json: bool) -> None:
    if not as_json:
        return
    files = [
        {"path": str(f.path), "size": f.size, "moved": f.moved, "found": f.found, "sources": dict(f.sources)}
        for f in done
    ]
    click.echo(json.dumps({"schema": "envcheck/fetch/1", "files": files, "error": error}, indent=2))


class TransferSpeed:
    """How fast bytes come of late, and how long the rest takes at that rate. Safe in several threads. Seconds."""

    def __init__(self, moved: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._moved, self._clock = moved, clock
        self._samples = collections.deque([(clock(), moved())])
        self._lock = threading.Lock()

    def told(self, left: int) -> str:
        """Return "38.2 MB/s, 0:01:06 left"; what nothing is known of is not said."""
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
    """A line now and then, for a log: the first after ten seconds, later ones when a tenth more time has gone."""

    def __init__(
        self, speed: TransferSpeed, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._speed, self._say, self._clock = speed, say, clock
        self._began = clock()
        self._next = self._began + _CALM
        self._lock = threading.Lock()

    def __call__(self, there: int, size: int) -> None:
        """Hear how far it is."""
        with self._lock:
            now = self._clock()
            fast = self._speed.told(size - there)
            if now < self._next:
                return
            self._next = now + max(_CALM, (now - self._began) / 10)
        self._say(f"{there / 1e6:.1f} of {size / 1e6:.1f} MB" + (f", {fast}" if fast else ""))


class ProgressScreen(NamedTuple):
    """What a fetch tells how far it is, what a person may want to know, and what became of a file."""

    progress: Callable[[int, int], None]
    note: Callable[[str], None]
    say: Callable[[str], None]


def format_total(sizes: Sequence[int | None]) -> str:
    """Return how much several files come to; a size that nobody told yet is said to be missing."""
    known = [size for size in sizes if size is not None]
    if not known:
        return f"{len(sizes)} files, whose sizes no page tells"
    least = "" if len(known) == len(sizes) else f"{len(sizes) - len(known)} of unknown size, the others "
    return f"{len(sizes)} files, {least}{format_bytes(sum(known))}, less what is there"


@contextmanager
def progress_screen(settings: Settings, count: int, limiter: BandwidthLimiter) -> Iterator[ProgressScreen]:
    """Give what a fetch is shown on: a bar on a terminal, a few lines elsewhere, nothing where it is to be quiet."""
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
        task = bar.add_task(f"{count} file(s)", total=None, speed="")
        yield _screen(
            lambda there, all_: bar.update(task, completed=there, total=all_, speed=speed.told(all_ - there)),
            lambda text: bar.console.print(text, markup=False, highlight=False, soft_wrap=True),
        )


def _screen(progress: Callable[[int, int], None], say: Callable[[str], None]) -> ProgressScreen:
    return ProgressScreen(progress, lambda text: say(f"  {text}"), say)


def report_file(screen: ProgressScreen, done: FetchedFile, name: str) -> None:
    """Print what became of one file, as soon as it is there."""
    size = format_bytes(done.size)
    if not done.moved:
        where = ", linked or copied" if done.sources else ""
        screen.say(f"{name}  {size}  was there{where}")
        return
    went_on = f", {format_bytes(done.found)} of it from an earlier run" if done.found else ""
    rate = format_bytes(int(done.moved / max(done.seconds, 1e-9)))
    screen.say(f"{name}  {size}{went_on}  {', '.join(done.sources)}  {rate}/s")


def report_total(done: list[FetchedFile], *, as_json: bool, then: str = "") -> None:
    """Print what all of it came to."""
    if as_json:
        _print_json(done, None, as_json=True)
        return
    moved, size = sum(f.moved for f in done), sum(f.size for f in done)
    click.echo(f"{len(done)} file(s) there, {format_bytes(size)}, each of its hash; {format_bytes(moved)} moved")
    if then:
        click.echo(then)
