"""Runs a command and watches it. The command's exit code and signals are its own; a failing watcher is only said."""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import msgspec

from envcheck.node import kernel_log, nvml, nvml_queries, subprocesses
from envcheck.watch.record import GpuSample, TreeSample, WatchRecord

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/PID/stat after the command's name (proc(5) counts from 1, with the name as 2).
_PPID, _UTIME, _STIME, _RSS = 1, 11, 12, 21
_FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
# Series longer than this lose every second moment, so that a run of weeks needs no more memory than one of hours.
_MOST: Final = 20_000
# Our field by NVML's signal, where they are not called alike.
_FIELDS: Final = {"clock_reasons": "reasons", "ecc_volatile_uncorrected": "ecc"}
_QUERIES: Final = {
    field: query
    for query in nvml_queries.QUERIES
    if (field := _FIELDS.get(query.name, query.name)) in GpuSample.__struct_fields__
}


def watch(command: Sequence[str], interval: float, *, gpus: bool) -> WatchRecord:
    """Run a command to its end, sample it every `interval` seconds; return what was seen. Exit codes are a shell's."""
    started, began = time.time(), time.monotonic()
    with _forwarding() as running:
        try:
            process = subprocess.Popen([*command])
        except OSError as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126
            line = f"{command[0]}: {error.strerror}; give a program on PATH, or the path of one that may be executed"
            return WatchRecord(tuple(command), started, 0.0, code, 1, [], [], [], [line])
        running(process)
        watcher = _Watcher(process.pid, began, interval, gpus=gpus)
        status = process.wait()
        watcher.end()
    seconds, problems = time.monotonic() - began, watcher.problems
    xids = _xids(problems, seconds) if gpus else []
    code = status if status >= 0 else 128 - status
    samples = [sample for moment in watcher.gpus for sample in moment]
    cores = len(os.sched_getaffinity(0))
    return WatchRecord(tuple(command), started, seconds, code, cores, samples, watcher.tree, xids, problems)


@contextlib.contextmanager
def _forwarding() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Pass signals on to the command that is given, those too that came before; end only when it does."""
    commands, early = list[subprocess.Popen[bytes]](), list[int]()

    def forward(number: int, _frame: FrameType | None) -> None:
        # Ctrl-C on a terminal reaches the command itself: both are in the foreground group.
        if not commands:
            early.append(number)
        elif number not in (signal.SIGINT, signal.SIGQUIT) or not _in_foreground():
            commands[0].send_signal(number)

    def running(process: subprocess.Popen[bytes]) -> None:
        commands.append(process)
        for number in early:
            process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        yield running
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    with contextlib.suppress(OSError):
        return os.getpgrp() == os.tcgetpgrp(0)
    return False


def _xids(problems: list[str], seconds: float) -> list[dict[str, Any]]:
    read = kernel_log.signals(Path("/"), {})["kernel.xids"]
    if read.value is None:
        problems.append(f"Xids are not watched: {read.reason}")
        return []
    return [event for event in read.value if event["age"] <= seconds]


class _GpuLine(msgspec.Struct):
    gpus: list[GpuSample] = []
    problem: str = ""


class _Watcher:
    """The threads that sample; they never raise into the command's way."""

    def __init__(self, pid: int, began: float, interval: float, *, gpus: bool) -> None:
        self.gpus: list[list[GpuSample]] = []
        self.tree: list[TreeSample] = []
        self.problems: list[str] = []
        self._pid, self._began, self._interval = pid, began, interval
        self._over = threading.Event()
        self._sampler: subprocess.Popen[bytes] | None = None
        work = [self._watch_tree, self._watch_gpus] if gpus else [self._watch_tree]
        self._threads = [threading.Thread(target=self._safely, args=(one,), daemon=True) for one in work]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """End the threads, and the process that asks NVML."""
        self._over.set()
        if self._sampler is not None:
            self._sampler.kill()
        for thread in self._threads:
            thread.join(1.0)

    def _safely(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            self.problems.append(f"watching stopped: {type(error).__name__}: {error}")

    def _watch_gpus(self) -> None:
        call = f"sample_gpus({self._interval!r}, {self._began!r}, {os.getpid()})"
        command, environment = subprocesses.of_envcheck(__name__, call)
        self._sampler = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        if self._over.is_set():  # the command was that short
            self._sampler.kill()
        decoder = msgspec.json.Decoder(_GpuLine)
        for raw in self._sampler.stdout or ():
            line = decoder.decode(raw)
            if line.problem:
                self.problems.append(f"GPUs are not watched: {line.problem}")
                return
            self.gpus.append(line.gpus)
            if len(self.gpus) > _MOST:
                del self.gpus[::2]
        if not self._over.is_set():
            self.problems.append("GPUs are not watched any more: their process ended")

    def _watch_tree(self) -> None:
        seen: dict[int, ProcessUse] = {}
        while True:
            at, alive = time.monotonic() - self._began, below(self._pid)
            seen |= alive
            if alive:
                # Those that have ended keep their CPU seconds and bytes, as far as they were seen.
                cpu, read, written = (sum(column) for column in list(zip(*seen.values(), strict=True))[2:])
                memory = sum(use.rss for use in alive.values())
                self.tree.append(TreeSample(at, len(alive), memory, cpu, read, written))
            if len(self.tree) > _MOST:
                del self.tree[::2]
            if self._over.wait(self._interval):
                return


class ProcessUse(NamedTuple):
    """One process: its parent, bytes in memory, CPU seconds, and bytes read from and written to disks."""

    parent: int
    rss: int
    cpu: float
    read: int
    written: int


def below(root: int) -> dict[int, ProcessUse]:
    """Return a process and its descendants by their ids."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 (thousands of names many times a minute)
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parents.setdefault(int(_stat(name)[_PPID]), []).append(int(name))
    descendants, waiting = {}, [root]
    while waiting:
        pid = waiting.pop()
        waiting += parents.get(pid, [])
        with contextlib.suppress(OSError, ValueError, IndexError):
            descendants[pid] = _use(pid)
    return descendants


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
    return ProcessUse(int(fields[_PPID]), int(fields[_RSS]) * _PAGE, cpu, io["read_bytes"], io["write_bytes"])


def sample_gpus(interval: float, began: float, parent: int) -> None:
    """Print {"gpus": [...]} every `interval` seconds, or {"problem": text} and end.

    It is a process of its own, which a wedged driver may stop, and ends with its parent. `began` is the monotonic clock
    at the command's start, which all processes of a machine share.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not subprocesses.ends_with(parent):
        return
    try:
        library = nvml.load_nvml()
        library.nvmlInit()
        handles = {}
        for number in range(library.nvmlDeviceGetCount()):
            with contextlib.suppress(library.NVMLError):  # a lost GPU hides no other
                handles[number] = library.nvmlDeviceGetHandleByIndex(number)
    except ImportError as error:
        _say({"problem": f"nvidia-ml-py: {error}"})
        return
    except library.NVMLError as error:
        _say({"problem": f"NVML: {error}"})
        return
    while True:
        at = time.monotonic() - began
        _say({"gpus": [{"at": at, "index": number, **_sample(library, handles[number])} for number in handles]})
        time.sleep(max(0.0, interval - (time.monotonic() - began - at)))


def _sample(library: Any, handle: Any) -> dict[str, Any]:
    """Return what the GPU offers; a value that it refuses is not there."""
    values: dict[str, Any] = {"uuid": ""}
    for field, query in _QUERIES.items():
        with contextlib.suppress(library.NVMLError, AttributeError, TypeError, ValueError, LookupError):
            values[field] = query.read(library, handle)
    return values


def _say(line: dict[str, Any]) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")
