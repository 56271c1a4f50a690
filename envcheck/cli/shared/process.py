"""The process: its standard streams, whatever the shell did with them, the lines on them, and what ends a command.

Ctrl-C, SIGTERM and SIGHUP end a command alike: work that has begun is cleaned up, and the exit code says it.
With --redact a line has pseudonyms for names.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from envcheck.counting import printable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from rich.console import Console

    from envcheck.reports.redact import Pseudonyms

# What is quoted of a file may be all of it.
LONGEST_LINE: Final = 2000
# Standard error gets a line after this many seconds without one.
SILENT: Final = 5.0
_LINE_HEAD: Final = 1500
_NUMBER: Final = re.compile(r"[\d.,]*[a-zA-Z]?")
# Commands that know --redact.
_KNOWN: Final = ("run", "report", "redact")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Why parts of standard output could not be written.
lost: list[OSError] = []
_names: list[Pseudonyms] = []
_stops: list[threading.Event] = []


class _Stream(io.FileIO):
    """Standard output or error, where a write that fails changes nothing of what a command came to."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            if self.fileno() == 1:
                if isinstance(error, BrokenPipeError):
                    raise
                lost.append(error)
            return len(memoryview(data))


def ready() -> None:
    """Open what is closed (no file of ours may get its number), and have no character and no progress be an error.

    What the parent ignored or blocked is undone: without SIGCHLD no exit code of a child is known (util-linux#4014,
    baskerville/bspwm#1534), without SIGALRM no budget ends (antirez/hping#61).
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in range(3):
        if not os.path.lexists(f"/proc/self/fd/{number}"):
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003 (C's signature); the lowest number free
    sys.stdin = sys.stdin or open(0, closefd=False, encoding="utf-8")  # noqa: SIM115 (Python leaves None)
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):
            encoding, lines = (stream.encoding, stream.line_buffering) if stream else ("utf-8", False)
            raw = io.BufferedWriter(_Stream(number, "w", closefd=False))
            # A terminal without a sign gets another, not a traceback.
            setattr(sys, name, io.TextIOWrapper(raw, encoding, "replace", line_buffering=lines or number != 1))


def console(**options: Any) -> Console:
    """Return a rich console that raises BrokenPipeError when nobody reads it; rich's own exits 1, a failed check.

    It takes nothing in a text for markup or for the terminal: a path may be called "[/x]", a process may have escapes
    in its name.
    """
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class PipeConsole(Console):
        def on_broken_pipe(self) -> NoReturn:
            raise BrokenPipeError

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for part in super().render(renderable, options):
                yield part if part.control else part._replace(text=printable(part.text))

    return PipeConsole(markup=False, **options)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table without lines; only its last column is folded."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=column != columns[-1])
    for row in rows:
        table.add_row(*row)
    shown = console(highlight=False)
    with shown.capture() as printed:
        shown.print(table)
    click.echo("\n".join(line.rstrip() for line in printed.get().splitlines()))


def print_json(document: Any) -> None:
    """Print a document; bytes and times in it as msgspec writes them, a path that is not UTF-8 with escapes."""
    import msgspec

    try:
        click.echo(msgspec.json.format(msgspec.json.encode(document)))
    except UnicodeEncodeError:
        import json

        click.echo(json.dumps(msgspec.to_builtins(document, str_keys=True), indent=2))


def print_answer(document: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Print the document with --json, else the lines that people read."""
    if as_json:
        print_json(document)
    else:
        click.echo("\n".join(lines))


def styled(text: str, colour: str | None = None) -> str:
    """Return a text in bold, and in a colour; as it is with NO_COLOR."""
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=colour, bold=True)


def wrapped(text: str, first: str = "", then: str = "") -> str:
    """Return lines of 80 columns, behind `first` and then behind `then`; what may be copied is never cut."""
    import textwrap

    whole: dict[str, Any] = {"width": 80, "break_long_words": False, "break_on_hyphens": False}
    return "\n".join(
        textwrap.fill(line, initial_indent=then if at else first, subsequent_indent=then, **whole)
        for at, line in enumerate(text.split("\n"))
    )


def print_section(title: str, items: Iterable[str]) -> None:
    """Print a title and the items below it; nothing where there are none."""
    if lines := [wrapped(item, "  - ", "    ") for item in items]:
        click.echo("\n".join(["", styled(title), *lines]))


def say(text: str) -> None:
    """Print an error's line on standard error; the command goes on."""
    click.echo(f"envcheck: {last_line(text)}", err=True)


def note(text: str) -> None:
    """Print a line on standard error about what goes on, above a progress bar if there is one."""
    click.echo(f"  {last_line(text)}", err=True)


@contextlib.contextmanager
def beating(text: str, *, quiet: bool) -> Iterator[None]:
    """Say what goes on whenever some seconds have passed, until the block ends; nothing if quiet."""
    ended, began = threading.Event(), time.monotonic()

    def beat() -> None:
        while not (quiet or ended.wait(SILENT)):
            note(f"... {text}, {time.monotonic() - began:.0f} s")

    threading.Thread(target=beat, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def last_line(text: str) -> str:
    """Return the line as it is printed: what a server or file calls itself cannot steer the terminal."""
    text = "".join(sign if sign.isprintable() or sign in "\n\t" else "?" for sign in text)
    if _names:
        text = _without_names(text)
    return text if len(text) <= LONGEST_LINE else f"{text[:_LINE_HEAD]}…{text[_LINE_HEAD + 1 - LONGEST_LINE :]}"


def hide_names(_ctx: click.Context, _option: click.Parameter, value: str | bool) -> str | bool:  # noqa: FBT001 (click's signature)
    """Have every later line say pseudonyms for names: the callback of --redact, which is read before other options."""
    if isinstance(value, str) and value:
        forget_names()
        names(value)
    elif value:
        names()
    return value


def names(key: str = "") -> Pseudonyms:
    """Return the pseudonyms of this process: one name has the same one in its report and in every line."""
    from envcheck.reports.redact import Pseudonyms, know_this_machine

    if not _names:
        _names.append(Pseudonyms(key))
        know_this_machine(_names[0])
    return _names[0]


def forget_names() -> None:
    """Have lines say names again, for the next command in this process."""
    _names.clear()


def _without_names(text: str) -> str:
    """Return a line with pseudonyms for names: the machine's, and those of arguments and variables."""
    from envcheck.reports.redact import line

    values = [word.partition("=")[2] if word.startswith("--") else word for word in sys.argv[1:]]
    typed = words([*values, *(value for name, value in os.environ.items() if name.startswith("ENVCHECK_"))])
    return line(text, names(), typed)


def words(values: Iterable[str]) -> set[str]:
    """Return what may name something in values: parts of paths, and files without suffix; no number, no level."""
    from envcheck.checks import LEVELS

    parts = [part for value in values for part in PurePath(value).parts]
    found = {word for part in parts for word in (part, PurePath(part).stem)}
    return {word for word in found if len(word) > 1 and not _NUMBER.fullmatch(word) and word not in (*_KNOWN, *LEVELS)}


class InterruptedBySignalError(KeyboardInterrupt):
    """A signal of this number that ends the process, raised where Ctrl-C would be."""


@contextlib.contextmanager
def signals_raised() -> Iterator[None]:
    """Have the signals, unless ignored (nohup), raise InterruptedBySignalError; a second one ends the process."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    usual = (signal.SIG_DFL, signal.default_int_handler)
    taken = {number: handler for number, handler in before.items() if handler in usual}
    for number in taken:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


def _raise(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    for stop in _stops:
        # Not here: the interrupted step may hold the event's lock.
        threading.Thread(target=stop.set, daemon=True).start()
    raise InterruptedBySignalError(number)


@contextlib.contextmanager
def stopping(stop: threading.Event) -> Iterator[None]:
    """Set `stop` when a signal interrupts the block, before the block ends: its threads look at it and end."""
    _stops.append(stop)
    try:
        yield
    finally:
        _stops.remove(stop)


def status_of(how: BaseException | None) -> int:
    """Return the exit code of an interrupt: 128 and the signal's number."""
    return 128 + (int(how.args[0]) if isinstance(how, InterruptedBySignalError) else signal.SIGINT)
