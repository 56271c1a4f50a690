"""What is seen of a fetch, and what it came to."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.mirrors.fetch.wanted import Fetched

_UNITS: Final = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9}


class Rate(click.ParamType[float]):
    """Bytes a second: 50M is 50 million."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return bytes a second."""
        found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([KMG]?)B?", str(value).upper())
        if found is None or float(found[1]) * _UNITS[found[2]] < 1:
            self.fail(f"{value!r} is no rate; write 50M for 50 million bytes a second", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


@contextmanager
def shown(settings: Settings, count: int) -> Iterator[tuple[Callable[[int, int], None], Callable[[str], None]]]:
    """Give what a fetch tells its progress and its notes to: a bar on a terminal, lines of notes elsewhere."""

    def note(text: str) -> None:
        if not settings.quiet:
            click.echo(f"  {text}", err=True)

    if settings.quiet or not sys.stderr.isatty():
        yield (lambda _there, _all: None), note
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(None), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{count} file(s)", total=None)
        yield (
            (lambda there, all_: bar.update(task, completed=there, total=all_)),
            (lambda text: bar.console.print(escape(text))),
        )


def tell(settings: Settings, done: Fetched, name: str) -> None:
    """Print what became of one file, as soon as it is there."""
    if settings.quiet:
        return
    size = done.size / 1e6
    if not done.moved:
        where = ", linked or copied" if done.sources else ""
        click.echo(f"{name}  {size:.1f} MB  was there{where}", err=True)
        return
    went_on = f", {done.found / 1e6:.1f} MB of it from an earlier run" if done.found else ""
    rate = done.moved / max(done.seconds, 1e-9) / 1e6
    click.echo(f"{name}  {size:.1f} MB{went_on}  {', '.join(done.sources)}  {rate:.0f} MB/s", err=True)


def end(done: list[Fetched], *, as_json: bool, then: str = "") -> None:
    """Print what all of it came to."""
    if as_json:
        files = [
            {"path": str(f.path), "size": f.size, "moved": f.moved, "found": f.found, "sources": dict(f.sources)}
            for f in done
        ]
        click.echo(json.dumps({"schema": "envcheck/fetch/1", "files": files}, indent=2))
        return
    moved, size = sum(f.moved for f in done), sum(f.size for f in done)
    click.echo(f"{len(done)} file(s) there, {size / 1e6:.1f} MB, each of its hash; {moved / 1e6:.1f} MB moved")
    if then:
        click.echo(then)
