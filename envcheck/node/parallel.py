"""The node's sources side by side: what one of them takes is not added to what the others take, nor what one breaks.

A source may hang for as long as it likes: a home on a server that is gone, a PATH with such a directory in it, a kernel
whose lock somebody holds. Nothing ends a thread that waits in the kernel, so it is left behind when its time is up, and
its signals say so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from envcheck.node import why_unread
from envcheck.node.snapshot import Gpu, Signal
from envcheck.node.value_types import ValueType
from envcheck.node.why_unread import Why

TIMEOUT: Final = 10.0


class Source(NamedTuple):
    """One signal of the node: `read` gives it, and a value has to fit `type`."""

    type: ValueType
    read: Callable[[], Signal]


class SourceReading(NamedTuple):
    """What a source said: signals of the node, and GPUs."""

    signals: dict[str, Signal]
    gpus: Sequence[Gpu] = ()


class ReadTask(NamedTuple):
    """What is read in one go: `read` gives the signals named in `types`, and has `timeout` seconds for it."""

    types: Mapping[str, ValueType]
    read: Callable[[], SourceReading]
    timeout: float

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of its signals, in their order."""
        return tuple(self.types)


def each(sources: Mapping[str, Source]) -> list[ReadTask]:
    """Return a task for each of these signals."""
    return [_alone(name, source) for name, source in sources.items()]


def together(types: Mapping[str, ValueType], read: Callable[[], dict[str, Signal]]) -> ReadTask:
    """Return the task of a source that gives several signals at once."""
    return ReadTask(types, lambda: SourceReading(read()), TIMEOUT)


def read(tasks: Sequence[ReadTask]) -> SourceReading:
    """Read all of them at once and return what they said, in their order, whichever was done first."""
    begun = time.monotonic()
    running = [_start(task) for task in tasks]
    readings = [_answer(task, begun) for task in running]
    signals = {name: signal for reading in readings for name, signal in reading.signals.items()}
    return SourceReading(signals, [gpu for reading in readings for gpu in reading.gpus])


class _RunningReader(NamedTuple):
    task: ReadTask
    thread: threading.Thread
    answer: list[SourceReading]


def _alone(name: str, source: Source) -> ReadTask:
    return ReadTask({name: source.type}, lambda: SourceReading({name: source.read()}), TIMEOUT)


def _start(task: ReadTask) -> _RunningReader:
    answer: list[SourceReading] = []
    thread = threading.Thread(target=_run, args=(task, answer), name=f"reads {task.names[0]}", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the number of processes is limited: read one after the other
        _run(task, answer)
    return _RunningReader(task, thread, answer)


def _run(task: ReadTask, answer: list[SourceReading]) -> None:
    try:
        answer.append(task.read())
    except BaseException as error:  # noqa: BLE001 (what is wrong with one source becomes the reason of its signals)
        why = why_unread.of_os_error(error) if isinstance(error, OSError) else "failed"
        answer.append(_unread(task, why, f"{type(error).__name__}: {error}"))


def _answer(running: _RunningReader, begun: float) -> SourceReading:
    if not running.answer:
        running.thread.join(max(0.0, begun + running.task.timeout - time.monotonic()))
    late = f"timed out: no answer in {running.task.timeout:g} s"
    return running.answer[0] if running.answer else _unread(running.task, "timed-out", late)


def _unread(task: ReadTask, why: Why, reason: str) -> SourceReading:
    return SourceReading(dict.fromkeys(task.names, Signal(reason=reason, why=why)))
