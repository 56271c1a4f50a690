"""What is seen of a build while it runs, and of one that failed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from envcheck.cli import Settings

_Listener = Callable[[str], None]


@contextmanager
def details() -> Iterator[None]:
    """Print the step and its last lines before the one line that every error gets."""
    from envcheck.images.build_log import FailedError

    try:
        yield
    except FailedError as error:
        for line in error.detail:
            click.echo(f"  {line}", err=True)
        raise


@contextmanager
def listeners(settings: Settings) -> Iterator[tuple[_Listener, _Listener]]:
    """Give the two listeners, for messages and for the build's lines.

    --quiet hears nothing and --verbose all; else it is one live line on a terminal, and the steps elsewhere.
    """
    if settings.quiet:
        yield _nothing, _nothing
    elif settings.verbose:
        yield _message, _show_whole
    elif not sys.stderr.isatty():
        yield _message, _steps()
    else:
        with _live() as update:
            yield update, update


def _nothing(_: str) -> None:
    return


def _show_whole(line: str) -> None:
    click.echo(line, err=True)


def _message(line: str) -> None:
    click.echo(f"  {line}"[:80], err=True)


def _steps() -> _Listener:
    """Return what prints each step once: targets that are built at once share steps."""
    from envcheck.images.build_log import step_of

    shown: set[str] = set()

    def listener(line: str) -> None:
        title = step_of(line)
        if title and title not in shown:
            shown.add(title)
            _message(title)

    return listener


@contextmanager
def _live() -> Iterator[_Listener]:
    from rich.console import Console
    from rich.markup import escape

    from envcheck.images.build_log import said_of, step_of

    console = Console(stderr=True)
    current = ["", ""]
    with console.status("building") as status:

        def update(line: str) -> None:
            title = step_of(line)
            current[:] = [title, ""] if title else [current[0], said_of(line)]
            status.update(escape(" ".join(part for part in current if part)[: console.width - 4]))

        yield update
