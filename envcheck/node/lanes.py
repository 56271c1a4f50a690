"""The node's sources side by side: what one of them takes is not added to what the others take, nor what one breaks.

A source may hang for as long as it likes: a home on a server that is gone, a PATH with such a directory in it, a kernel
whose lock somebody holds. Nothing ends a thread that waits in the kernel, so it is left behind when its time is up, and
its signals say so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from envcheck.node.snapshot import Gpu, Signal

TIMEOUT: Final = 10.0
LATE: Final = "timed out"
Source = Callable[[], Signal]


class Reading(NamedTuple):
    """What a source said: signals of the node, and GPUs."""

    signals: dict[str, Signal]
    gpus: Sequence[Gpu] = ()


class Lane(NamedTuple):
    """One source: `read` gives the signals `names`, and has `timeout` seconds for it."""

    names: tuple[str, ...]
    read: Callable[[], Reading]
    timeout: float


def each(sources: Mapping[str, Source]) -> list[Lane]:
    """Return a lane for each of these signals."""
    return [_alone(name, source) for name, source in sources.items()]


def together(names: Iterable[str], read: Callable[[], dict[str, Signal]]) -> Lane:
    """Return the lane of a source that gives several signals at once."""
    return Lane(tuple(names), lambda: Reading(read()), TIMEOUT)


def read(lanes: Sequence[Lane]) -> Reading:
    """Read all of them at once and return what they said, in their order, whichever was done first."""
    begun = time.monotonic()
    running = [_start(lane) for lane in lanes]
    readings = [_answer(one, begun) for one in running]
    signals = {name: signal for reading in readings for name, signal in reading.signals.items()}
    return Reading(signals, [gpu for reading in readings for gpu in reading.gpus])


class _Running(NamedTuple):
    lane: Lane
    thread: threading.Thread
    answer: list[Reading]


def _alone(name: str, source: Source) -> Lane:
    return Lane((name,), lambda: Reading({name: source()}), TIMEOUT)


def _start(lane: Lane) -> _Running:
    answer: list[Reading] = []
    thread = threading.Thread(target=_run, args=(lane, answer), name=f"reads {lane.names[0]}", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no thread is to be had, where the number of processes is limited: one after the other, then
        _run(lane, answer)
    return _Running(lane, thread, answer)


def _run(lane: Lane, answer: list[Reading]) -> None:
    try:
        answer.append(lane.read())
    except Exception as error:  # noqa: BLE001 (what is wrong with one source is told of its signals, the others stand)
        answer.append(_unread(lane, f"{type(error).__name__}: {error}"))


def _answer(running: _Running, begun: float) -> Reading:
    if not running.answer:
        running.thread.join(max(0.0, begun + running.lane.timeout - time.monotonic()))
    late = f"{LATE}: no answer in {running.lane.timeout:g} s"
    return running.answer[0] if running.answer else _unread(running.lane, late)


def _unread(lane: Lane, reason: str) -> Reading:
    return Reading({name: Signal(reason=reason) for name in lane.names})
