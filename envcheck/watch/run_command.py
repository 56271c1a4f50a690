"""Runs a command and watches it. The command's exit code and signals are its own; a failing watcher is only said."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final, NamedTuple

import msgspec

from envcheck.node import kernel_log
from envcheck.watch.record import GpuSample, TreeSample, WatchRecord

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/PID/stat after the command's name (proc(5) counts from 1, with the name as 2).
_PPID, _UTIME, _STIME, _RSS = 1, 11, 12, 21
_FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_ROOT: Final = Path(__file__).resolve().parents[2]
_CODE: Final = """
import sys
sys.path[:] = [place for place in sys.path if place]
from envcheck.watch.gpu_sampler import main
main(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
"""
# Series longer than this lose every second sample, so that a run of weeks needs no more memory than one of hours.
_MOST: Final = 20_000
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


class ProcessUse(NamedTuple):
    """One process: its parent, CPU seconds, bytes in memory, and bytes read from and written to disks."""

    parent: int
    cpu: float
    rss: int
    read: int
    written: int


class TreeUse:
    """The processes below one. Those that have ended keep their CPU seconds and bytes, as far as they were seen."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._seen: dict[int, ProcessUse] = {}
        self._first_traffic = traffic(root)

    def look(self) -> tuple[int, int, float, int, int, int, int]:
        """Return processes, bytes in memory, CPU seconds, bytes read, written, received and sent."""
        alive = below(self._root)
        self._seen |= alive
        ended = self._seen.values()
        received, sent = (now - then for now, then in zip(traffic(self._root), self._first_traffic, strict=True))
        return (
            len(alive),
            sum(use.rss for use in alive.values()),
            sum(use.cpu for use in ended),
            sum(use.read for use in ended),
            sum(use.written for use in ended),
            max(received, 0),
            max(sent, 0),
        )


def below(root: int) -> dict[int, ProcessUse]:
    """Return a process and its descendants by their ids."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 (thousands of names many times a minute)
        if name.isdigit() and (parent := _parent(name)) is not None:
            parents.setdefault(parent, []).append(int(name))
    descendants, waiting = {}, [root]
    while waiting:
        pid = waiting.pop()
        waiting += parents.get(pid, [])
        with contextlib.suppress(OSError, ValueError, IndexError):
            descendants[pid] = _use(pid)
    return descendants


def _parent(pid: str) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_stat(pid)[_PPID])
    return None


def _stat(pid: int | str) -> list[str]:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:  # noqa: PTH123 (as above)
        return stream.read().rpartition(")")[2].split()


def _use(pid: int) -> ProcessUse:
    fields = _stat(pid)
    io = {"read_bytes": 0, "write_bytes": 0}
    with contextlib.suppress(OSError, ValueError):  # another user's process does not say
        rows = (line.partition(":") for line in Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines())
        io |= {name: int(value) for name, _, value in rows if name in io}
    cpu = (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS
    return ProcessUse(int(fields[_PPID]), cpu, int(fields[_RSS]) * _PAGE, io["read_bytes"], io["write_bytes"])


def traffic(pid: int) -> tuple[int, int]:
    """Return the bytes that the process's network namespace received and sent, without the loopback."""
    received = sent = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/net/dev").read_text(encoding="ascii").splitlines()[2:]:
            name, _, counts = line.partition(":")
            if name.strip() != "lo":
                received += int(counts.split()[0])
                sent += int(counts.split()[8])
    return received, sent


class _GpuLine(msgspec.Struct):
    gpus: list[GpuSample] = []
    problem: str = ""


def watch(command: Sequence[str], interval: float, *, gpus: bool) -> WatchRecord:
    """Run a command to its end, sample it every `interval` seconds, and return what was seen.

    Its exit code is as in a shell: 128+n where signal n ended it, 127 where it is not there, 126 where it cannot run.
    """
    problems: list[str] = []
    started, began = time.time(), time.monotonic()
    with _forwarding() as forwarded:
        try:
            process = subprocess.Popen([*command])
        except OSError as error:
            code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
            line = f"{command[0]}: {error.strerror}; give a program on PATH, or the path of one that may be executed"
            return WatchRecord(tuple(command), started, 0.0, code, 1, [], [], [], [line])
        forwarded.to(process)
        with _Watcher(process.pid, began, interval, problems, gpus=gpus) as watcher:
            status = process.wait()
    seconds = time.monotonic() - began
    xids = _xids(problems, seconds) if gpus else []
    code = status if status >= 0 else 128 - status
    cores = len(os.sched_getaffinity(0))
    return WatchRecord(tuple(command), started, seconds, code, cores, watcher.gpus, watcher.tree, xids, problems)


class _Watcher:
    """The threads that sample; they never raise into the command's way."""

    def __init__(self, pid: int, began: float, interval: float, problems: list[str], *, gpus: bool) -> None:
        self.gpus: list[GpuSample] = []
        self.tree: list[TreeSample] = []
        self._pid, self._began, self._interval, self._problems = pid, began, interval, problems
        self._over = threading.Event()
        self._sampler = self._start_sampler() if gpus else None
        work: list[Callable[[], None]] = [self._watch_tree, *([self._read_gpus] if self._sampler else [])]
        self._threads = [threading.Thread(target=self._safely, args=(one,), daemon=True) for one in work]

    def __enter__(self) -> _Watcher:  # noqa: PYI034 (typing.Self is newer than Python 3.10)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._sampler is not None:
            self._sampler.kill()
        for thread in self._threads:
            thread.join(1.0)
        if self._sampler is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._sampler.wait(1.0)

    def _safely(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 (the command goes on, whatever happens to its watcher)
            self._problems.append(f"watching stopped: {type(error).__name__}: {error}")

    def _start_sampler(self) -> subprocess.Popen[bytes] | None:
        places = [str(_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        arguments = (str(self._interval), str(self._began), str(os.getpid()))
        try:
            return subprocess.Popen(
                [sys.executable, "-c", _CODE, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
                start_new_session=True,
            )
        except OSError as error:
            self._problems.append(f"GPUs are not watched: {error.strerror}")
            return None

    def _read_gpus(self) -> None:
        assert self._sampler is not None  # noqa: S101 (only then is this a thread)
        lines: IO[bytes] | None = self._sampler.stdout
        decoder = msgspec.json.Decoder(_GpuLine)
        for raw in lines or ():
            line = decoder.decode(raw)
            if line.problem:
                self._problems.append(f"GPUs are not watched: {line.problem}")
                return
            self.gpus += line.gpus
            if len(self.gpus) > _MOST:
                moments = sorted({sample.at for sample in self.gpus})[::2]
                kept = set(moments)
                self.gpus[:] = [sample for sample in self.gpus if sample.at in kept]
        if not self._over.is_set():
            self._problems.append("GPUs are not watched any more: their process ended")

    def _watch_tree(self) -> None:
        use = TreeUse(self._pid)
        while True:
            at = time.monotonic() - self._began
            sample = TreeSample(at, *use.look())
            if sample.processes:
                self.tree.append(sample)
            if len(self.tree) > _MOST:
                del self.tree[::2]
            if self._over.wait(self._interval):
                return


class _SignalForwarding:
    """Signals on their way to a command; those that come before it has started wait for it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: list[int] = []

    def to(self, process: subprocess.Popen[bytes]) -> None:
        """Pass on what has come, and from now on what comes."""
        self._process = process
        for number in self._waiting:
            process.send_signal(number)

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        """Take a signal. Ctrl-C on a terminal reaches the command itself: both are in the foreground group."""
        if self._process is None:
            self._waiting.append(number)
        elif not (number in (signal.SIGINT, signal.SIGQUIT) and os.getpgrp() == _foreground()):
            self._process.send_signal(number)


@contextlib.contextmanager
def _forwarding() -> Iterator[_SignalForwarding]:
    """Pass signals on to the command, and end only when it does."""
    forwarded = _SignalForwarding()
    before = {number: signal.signal(number, forwarded) for number in _FORWARDED}
    try:
        yield forwarded
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _foreground() -> int:
    with contextlib.suppress(OSError):
        return os.tcgetpgrp(0)
    return -1


def _xids(problems: list[str], seconds: float) -> list[dict[str, Any]]:
    """Return the GPU errors that came into the kernel's log in the last `seconds`."""
    read = kernel_log.signals(Path("/"))["kernel.xids"]
    if read.value is None:
        problems.append(f"Xids are not watched: {read.reason}")
        return []
    return [event for event in read.value if event["age"] <= seconds]
