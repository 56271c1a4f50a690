"""The sources of signals: what a value may be, and how all sources are read side by side.

A source may hang for as long as it likes: a home on a server that is gone, a PATH with such a directory in it, a kernel
whose lock somebody holds. Nothing ends a thread that waits in the kernel, so it is left behind when its time is up, and
its signals say so.
"""

import functools
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from envcheck.node import snapshot
from envcheck.node.snapshot import Gpu, Signal, Why, unreadable

ValueType = Callable[[Any], bool]
_MOST = float(1 << 64)
_VERSION = re.compile(r"\d+(\.\d+)*\S*")
_CAPABILITY = re.compile(r"\d+\.\d+")
TIMEOUT = 10.0


def _kind(kinds: type | tuple[type, ...], holds: Callable[[Any], object]) -> ValueType:
    """Return the type of values of one kind for which something holds; true and false are no numbers."""
    return lambda value: isinstance(value, kinds) and isinstance(value, bool) == (kinds is bool) and bool(holds(value))


flag = _kind(bool, lambda _: True)
string = _kind(str, lambda _: True)
text = _kind(str, bool)
version = _kind(str, _VERSION.fullmatch)
capability = _kind(str, _CAPABILITY.fullmatch)
# What has more than 64 bits counts or measures nothing.
signed = _kind((int, float), lambda value: -_MOST < value < _MOST)
number = _kind((int, float), lambda value: 0 <= value < _MOST)
whole = _kind((int, float), lambda value: 0 <= value < _MOST and int(value) == value)


def index(value: Any) -> bool:
    """Tell whether it is a number of something, or -1 for none."""
    return whole(value) or (signed(value) and value == -1)


def unlimited(value: Any) -> bool:
    """Tell whether it is a limit: a number, or "unlimited"."""
    return value == "unlimited" or number(value)


def one_of(*words: str) -> ValueType:
    """Return the type of one of these words."""
    return _kind(str, words.__contains__)


def maybe(type_: ValueType) -> ValueType:
    """Return the type of what may be none."""
    return lambda value: value is None or type_(value)


def listed(type_: ValueType) -> ValueType:
    """Return the type of a list of such."""
    return lambda value: isinstance(value, list) and all(map(type_, value))


def mapped(type_: ValueType) -> ValueType:
    """Return the type of such, by name."""
    return lambda value: isinstance(value, Mapping) and all(isinstance(k, str) and type_(v) for k, v in value.items())


def fields(**types: ValueType) -> ValueType:
    """Return the type of an object with at least these fields."""
    return lambda value: (
        isinstance(value, Mapping) and all(name in value and type_(value[name]) for name, type_ in types.items())
    )


def word(path: Path) -> str | None:
    """Return what a small file of the kernel says; None where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


class Source(NamedTuple):
    """One signal of the node: what `read` returns, or why it raised, or a Signal of its own; a value has to fit `type`.

    `place` is what is read, a path mostly. `longer` are seconds that it needs besides TIMEOUT.
    """

    type: ValueType
    read: Callable[[], Any]
    place: object
    unit: str | None = None
    longer: float = 0.0

    def signal(self) -> Signal:
        """Read it."""
        place = str(self.place)
        try:
            value = self.read()
        except OSError as error:
            return unreadable(error, error.filename or place, self.unit, place)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            return Signal(reason=f"{place}: {error}", why="failed", unit=self.unit, source=place)
        if isinstance(value, Signal):
            return value
        if value is None:
            return Signal(reason=f"{place} does not say", why="no-data", unit=self.unit, source=place)
        return Signal(value, None, self.unit, place)


def of_file(type_: ValueType, path: Path, parse: Callable[[str], Any], unit: str | None = None) -> Source:
    """Return the source of what a file says."""
    return Source(type_, lambda: parse(path.read_text(errors="replace")), path, unit)


class SourceReading(NamedTuple):
    """What a source said: signals of the node, and GPUs."""

    signals: dict[str, Signal]
    gpus: Sequence[Gpu] = ()


class ReadTask(NamedTuple):
    """What is read in one go: `read` gives the signals named in `types`, and has `timeout` seconds for it."""

    types: Mapping[str, ValueType]
    read: Callable[[], SourceReading]
    timeout: float


def each(sources: Mapping[str, Source]) -> list[ReadTask]:
    """Return a task for each of these signals."""
    return [
        ReadTask({name: one.type}, functools.partial(_alone, name, one), TIMEOUT + one.longer)
        for name, one in sources.items()
    ]


def together(types: Mapping[str, ValueType], read: Callable[[], dict[str, Signal]]) -> ReadTask:
    """Return the task of a source that gives several signals at once."""
    return ReadTask(types, lambda: SourceReading(read()), TIMEOUT)


def read(tasks: Sequence[ReadTask]) -> SourceReading:
    """Read all of them at once and return what they said, in their order, whichever was done first."""
    begun = time.monotonic()
    running = [(task, *_start(task)) for task in tasks]
    readings = [_answer(*reader, begun) for reader in running]
    signals = {name: signal for reading in readings for name, signal in reading.signals.items()}
    return SourceReading(signals, [gpu for reading in readings for gpu in reading.gpus])


def _alone(name: str, source: Source) -> SourceReading:
    return SourceReading({name: source.signal()})


def _start(task: ReadTask) -> tuple[threading.Thread, list[SourceReading]]:
    answer: list[SourceReading] = []
    thread = threading.Thread(target=_run, args=(task, answer), name=f"reads {next(iter(task.types))}", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the number of processes is limited: read one after the other
        _run(task, answer)
    return thread, answer


def _run(task: ReadTask, answer: list[SourceReading]) -> None:
    try:
        answer.append(task.read())
    except Exception as error:  # noqa: BLE001 (a driver's or a file's answer breaks its own signals, and no others)
        why = snapshot.of_os_error(error) if isinstance(error, OSError) else "failed"
        answer.append(_unread(task, why, f"{type(error).__name__}: {error}"))


def _answer(task: ReadTask, thread: threading.Thread, answer: list[SourceReading], begun: float) -> SourceReading:
    if not answer:
        thread.join(max(0.0, begun + task.timeout - time.monotonic()))
    return answer[0] if answer else _unread(task, "timed-out", f"timed out: no answer in {task.timeout:g} s")


def _unread(task: ReadTask, why: Why, reason: str) -> SourceReading:
    return SourceReading(dict.fromkeys(task.types, Signal(reason=reason, why=why)))
