"""A command that Ctrl-C and SIGTERM end within a second, whatever it waits for.

A signal is handled between two steps of the main thread. A look-up of a name or a join of threads that read from a
slow server is one step, of many seconds. So the command runs in a thread of its own, and the main thread only waits.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final, TypeVar

import click

_T = TypeVar("_T")
# Seconds between looks at signals, and for which a stopped command may tidy up.
_LOOK: Final = 0.1
_GRACE: Final = 0.5
_SHOW_CURSOR: Final = "\x1b[?25h"


class TerminatedError(KeyboardInterrupt):
    """SIGTERM, raised where Ctrl-C would be."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Have SIGTERM raise TerminatedError within the block, where it is the main thread's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise TerminatedError


def run(body: Callable[[], _T], stop: threading.Event) -> _T:
    """Return what `body` returns or raises.

    An interrupt (or SystemExit, which `store` raises for SIGTERM and SIGHUP) sets `stop`, and is raised half a second
    later at most.
    """
    results: list[_T] = []
    errors: list[BaseException] = []
    context = click.get_current_context(silent=True)

    def work() -> None:
        try:
            if context is None:
                results.append(body())
                return
            with context.scope(cleanup=False):
                results.append(body())
        except BaseException as error:  # noqa: BLE001 (raised again in the main thread)
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True, name="command")
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_LOOK)
    except (KeyboardInterrupt, SystemExit):
        stop.set()
        thread.join(_GRACE)
        raise
    if errors:
        raise errors[0]
    return results[0]


def ended_by_signal(body: Callable[[], _T]) -> _T | int:
    """Return what `body` returns, or the exit code after an interrupt, which is said."""
    try:
        with terminable():
            return run(body, threading.Event())
    except KeyboardInterrupt as how:
        click.echo("envcheck: interrupted", err=True)
        return leave(status_of(how))


def status_of(how: KeyboardInterrupt) -> int:
    """Return the exit code of an interrupt: 128 and the signal's number."""
    return 128 + (signal.SIGTERM if isinstance(how, TerminatedError) else signal.SIGINT)


def leave(status: int) -> int:
    """Return the exit code, or end the process with it where a thread still waits: its end would wait for that one."""
    if not any(thread.name == "command" for thread in threading.enumerate()):
        return status
    if sys.stderr.isatty():
        sys.stderr.write(_SHOW_CURSOR)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def end_process(status: int) -> None:
    """End the process with its exit code now; return where a thread that counts, a debugger or a profiler is at work.

    Python would take all modules and objects apart first, which is a tenth of the time of a short command.
    """
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    if any(not thread.daemon for thread in others) or sys.getprofile() or sys.gettrace():
        return
    atexit._run_exitfuncs()  # noqa: SLF001 (as Python does at its end)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(status)
