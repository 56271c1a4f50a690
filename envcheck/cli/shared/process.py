"""The process: its three standard streams, whatever the shell did with them, and the signals that end a command.

Ctrl-C, SIGTERM and SIGHUP end a command alike: work that has begun is cleaned up, and the exit code says it.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from envcheck.counting import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _typeshed import ReadableBuffer
    from rich.console import Console


class _Forgiving(io.FileIO):
    """Standard error: what cannot be written there is dropped, as it changes nothing of what a command came to."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data) or len(memoryview(data))
        except OSError:
            return len(memoryview(data))


class _Remembering(io.FileIO):
    """Standard output: a write that fails is remembered for the end, so that it does not replace a verdict."""

    def write(self, data: ReadableBuffer, /) -> int:
        if not _lost:
            try:
                return super().write(data) or 0
            except BrokenPipeError:
                raise
            except OSError as error:
                _lost.append(error)
        return len(memoryview(data))


_lost: list[OSError] = []


def unwritten() -> OSError | None:
    """Return why a part of the output could not be written; None where all of it was."""
    return _lost[0] if _lost else None


def ready() -> None:
    """Open what is closed (no file of ours may get its number), and have no character and no progress be an error."""
    for number in range(3):
        _opened(number)
    if sys.stdout is sys.__stdout__:
        encoding, lines = ("utf-8", False) if sys.stdout is None else (sys.stdout.encoding, sys.stdout.line_buffering)
        output = io.BufferedWriter(_Remembering(1, "w", closefd=False))
        sys.stdout = io.TextIOWrapper(output, encoding, "replace", line_buffering=lines)
    if sys.stderr is sys.__stderr__:
        encoding = "utf-8" if sys.stderr is None else sys.stderr.encoding
        raw = io.BufferedWriter(_Forgiving(2, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(raw, encoding, "replace", line_buffering=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without a sign gets another, not a traceback


def _opened(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003 (C's signature); the lowest number free


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


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_stops: list[threading.Event] = []


class InterruptedBySignalError(KeyboardInterrupt):
    """A signal that ends the process, raised where Ctrl-C would be."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def signals_raised() -> Iterator[None]:
    """Have the signals raise InterruptedBySignalError within the block; those that are ignored, as by nohup, stay so.

    The second signal of a kind ends the process at once.
    """
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
    return 128 + (how.number if isinstance(how, InterruptedBySignalError) else signal.SIGINT)
