"""Runs a command, samples its GPUs and processes, and says what slowed it. Times are seconds from its start.

The command's exit code and signals are its own; a failing watcher is only said.
"""

import contextlib
import json
import os
import shlex
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal, NamedTuple

import msgspec

from envcheck import __version__
from envcheck.counting import counted
from envcheck.node import kernel_log, nvml, subprocesses
from envcheck.reports.formats import html
from envcheck.reports.measurements import PlotLine, chart
from envcheck.struct_types import know_types

# What practitioners aim at in training: GPUs at work in 80 % of the time, and 20 % of their memory free as reserve
# against longer batches and fragmentation.
_GOAL: Final = 80.0
_FREE_GOAL: Final = 0.2
# A GPU below this did nothing; one below _WAITING at a moment waited then.
_IDLE, _WAITING = 5.0, 20.0
_OFTEN: Final = 0.1
_UNEVEN: Final = 20.0
# envcheck/checks/support/gpu_speed.py has the same faults among NVML's reasons.
_FAULTS: Final = ("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake")
_CAPS: Final = ("software power cap", "applications clocks", "sync boost")
_FULL: Final = 0.9
_GIB: Final = float(1 << 30)
_MOST_POINTS: Final = 400
LineStatus = Literal["good", "low", "info", "unknown"]
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/PID/stat after the command's name (proc(5) counts from 1, with the name as 2).
_PPID, _UTIME, _STIME, _RSS = 1, 11, 12, 21
_FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
# Series longer than this lose every second moment, so that a run of weeks needs no more memory than one of hours.
_MOST: Final = 20_000


class GpuSample(msgspec.Struct, frozen=True):
    """One GPU at one moment: percent, bytes, W, MHz, C, ECC errors since the driver came up; None is not offered."""

    at: float
    uuid: str
    index: int | None = None
    name: str | None = None
    utilization: float | None = None
    memory_used: float | None = None
    memory_total: float | None = None
    power_draw: float | None = None
    clock_sm: float | None = None
    temperature: float | None = None
    reasons: tuple[str, ...] | None = None
    ecc: int | None = None


class TreeSample(NamedTuple):
    """The command and all that it started: bytes in memory, and CPU seconds and bytes of disks since its start."""

    at: float
    processes: int
    rss: int
    cpu: float
    read: int
    written: int


class WatchRecord(NamedTuple):
    """All that was seen: the kernel's GPU errors (`xids`) too, and what could not be watched and why (`problems`)."""

    command: tuple[str, ...]
    started: float
    seconds: float
    exit_code: int
    cores: int
    gpus: list[GpuSample]
    tree: list[TreeSample]
    xids: list[dict[str, Any]]
    problems: list[str]


know_types(GpuSample)
# Our field by NVML's signal, where they are not called alike.
_FIELDS: Final = {"clock_reasons": "reasons", "ecc_volatile_uncorrected": "ecc"}
_QUERIES: Final = {
    field: query
    for query in nvml.QUERIES
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
    seconds, problems, xids = time.monotonic() - began, watcher.problems, []
    if gpus:
        logged = kernel_log.signals(Path("/"), {})["kernel.xids"]
        problems += [] if logged.reason is None else [f"Xids are not watched: {logged.reason}"]
        xids = [event for event in logged.value or [] if event["age"] <= seconds]
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
                cpu, read, written = (sum(column) for column in list(zip(*seen.values(), strict=True))[1:])
                memory = sum(use.rss for use in alive.values())
                self.tree.append(TreeSample(at, len(alive), memory, cpu, read, written))
            if len(self.tree) > _MOST:
                del self.tree[::2]
            if self._over.wait(self._interval):
                return


class ProcessUse(NamedTuple):
    """One process: bytes in memory, CPU seconds, and bytes read from and written to disks."""

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
                parents.setdefault(int(subprocesses.stat(name)[_PPID]), []).append(int(name))
    descendants, waiting = {}, [root]
    while waiting:
        pid = waiting.pop()
        waiting += parents.get(pid, [])
        with contextlib.suppress(OSError, ValueError, IndexError):
            descendants[pid] = _use(pid)
    return descendants


def _use(pid: int) -> ProcessUse:
    fields = subprocesses.stat(pid)
    io = {"read_bytes": 0, "write_bytes": 0}
    with contextlib.suppress(OSError, ValueError):  # another user's process does not say
        rows = (line.partition(":") for line in Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines())
        io |= {name: int(value) for name, _, value in rows if name in io}
    cpu = (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS
    return ProcessUse(int(fields[_RSS]) * _PAGE, cpu, io["read_bytes"], io["write_bytes"])


def sample_gpus(interval: float, began: float, parent: int) -> None:
    """Print {"gpus": [...]} every `interval` seconds, or {"problem": text} and end.

    It is a process of its own, which a wedged driver may stop, and ends with its parent. `began` is the monotonic clock
    at the command's start, which all processes of a machine share.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    subprocesses.die_with_parent(parent)
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


class SummaryLine(NamedTuple):
    """What was looked at, how it stands, and the sentence."""

    what: str
    status: LineStatus
    text: str


def summarize(seen: WatchRecord) -> list[SummaryLine]:
    """Return the lines of the summary: goals first, then what slowed the run, then the processes."""
    by_gpu = grouped(seen.gpus)
    lines = [*_goals(by_gpu), *_slowed(by_gpu, seen), *_processes(seen.tree, seen.cores)]
    return lines + [SummaryLine("watching", "unknown", problem) for problem in seen.problems]


def grouped(samples: Sequence[GpuSample]) -> dict[str, list[GpuSample]]:
    """Return the samples of each GPU under its name in the output: "GPU 0"."""
    by_gpu: dict[str, list[GpuSample]] = {}
    for sample in samples:
        by_gpu.setdefault(f"GPU {sample.index if sample.index is not None else sample.uuid}", []).append(sample)
    return by_gpu


def _means(by_gpu: dict[str, list[GpuSample]]) -> dict[str, float]:
    values = {gpu: [s.utilization for s in samples if s.utilization is not None] for gpu, samples in by_gpu.items()}
    return {gpu: statistics.fmean(numbers) for gpu, numbers in values.items() if numbers}


def _goals(by_gpu: dict[str, list[GpuSample]]) -> Iterator[SummaryLine]:
    means = _means(by_gpu)
    if means:
        mean, least = statistics.fmean(means.values()), min(means, key=lambda gpu: means[gpu])
        status: LineStatus = "good" if mean >= _GOAL else "low"
        text = f"{mean:.0f} % on {counted(len(means), 'GPU')}, least {least} with {means[least]:.0f} %"
        yield SummaryLine("utilization", status, f"{text} (goal {_GOAL:.0f} %)")
    elif by_gpu:
        yield SummaryLine("utilization", "unknown", "no GPU offers its utilization")
    shares = {
        gpu: [s.memory_used / s.memory_total for s in of if s.memory_used is not None and s.memory_total]
        for gpu, of in by_gpu.items()
    }
    if free := {gpu: 1 - max(full) for gpu, full in shares.items() if full}:
        least = min(free, key=lambda gpu: free[gpu])
        status = "good" if round(free[least], 6) >= _FREE_GOAL else "low"
        yield SummaryLine("memory", status, f"{free[least]:.0%} of {least} stayed free (goal {_FREE_GOAL:.0%})")


def _slowed(by_gpu: dict[str, list[GpuSample]], seen: WatchRecord) -> Iterator[SummaryLine]:
    for gpu, samples in by_gpu.items():
        reasons = {reason for sample in samples for reason in sample.reasons or ()}
        for reason in (*_FAULTS, *_CAPS):
            share = sum(reason in (sample.reasons or ()) for sample in samples) / len(samples)
            if reason in reasons and (reason in _FAULTS or share > 1 / 2):
                status: LineStatus = "low" if reason in _FAULTS else "info"
                yield SummaryLine("clocks", status, f"{gpu}: {reason} in {share:.0%} of the samples")
        counts = [sample.ecc for sample in samples if sample.ecc is not None]
        if counts and (new := counts[-1] - counts[0]) > 0:
            yield SummaryLine("memory errors", "low", f"{gpu}: {counted(new, 'uncorrected ECC error')}")
    for event in seen.xids:
        yield SummaryLine("Xid", "low", f"Xid {event['code']} on {event['bus_id']}: {event['text']}")
    means = _means(by_gpu)
    idle = [gpu for gpu, mean in means.items() if mean < _IDLE]
    if idle:
        yield SummaryLine("idle", "low", f"{', '.join(idle)} did nothing: start a rank for each GPU, or use fewer GPUs")
    busy = {gpu: mean for gpu, mean in means.items() if gpu not in idle}
    if busy and max(busy.values()) - min(busy.values()) > _UNEVEN:
        text = f"{min(busy.values()):.0f} to {max(busy.values()):.0f} %: ranks have unequal work or wait for each other"
        yield SummaryLine("uneven", "low", text)
    yield from _waiting({gpu: by_gpu[gpu] for gpu in busy}, seen)


def _waiting(by_gpu: dict[str, list[GpuSample]], seen: WatchRecord) -> Iterator[SummaryLine]:
    """Yield why GPUs that work now and then wait, as far as the CPU shows it."""
    values = [s.utilization for samples in by_gpu.values() for s in samples if s.utilization is not None]
    share = sum(value < _WAITING for value in values) / len(values) if values else 0.0
    if share < _OFTEN:
        return
    used = cores_used(seen.tree)
    if used is not None and used >= _FULL * seen.cores:
        why = f"all {seen.cores} cores are busy: data loading on the CPU is the limit"
    else:
        why = "cores are free: more DataLoader workers, larger batches, or look at input, logging and checkpoints"
    yield SummaryLine("waiting", "low", f"GPUs waited in {share:.0%} of the samples; {why}")


def cores_used(tree: Sequence[TreeSample]) -> float | None:
    """Return the mean number of busy cores between the first and the last sample."""
    if len(tree) < 2 or tree[-1].at <= tree[0].at:  # noqa: PLR2004 (a difference)
        return None
    return (tree[-1].cpu - tree[0].cpu) / (tree[-1].at - tree[0].at)


def _processes(tree: Sequence[TreeSample], cores: int) -> Iterator[SummaryLine]:
    if not tree:
        return
    used, last = cores_used(tree), tree[-1]
    busy = "busy cores unknown (one sample)" if used is None else f"{used:.1f} of {cores} cores busy in the mean"
    most = counted(max(sample.processes for sample in tree), "process", "processes")
    yield SummaryLine("processes", "info", f"up to {most}, {max(s.rss for s in tree) / _GIB:.2f} GiB, {busy}")
    yield SummaryLine("disks", "info", f"{last.read / 1e6:.1f} MB read and {last.written / 1e6:.1f} MB written")


def document(seen: WatchRecord) -> dict[str, Any]:
    """Return the document envcheck/watch/1: what ran, the summary, and the series."""
    lines, tree = ([row._asdict() for row in rows] for rows in (summarize(seen), seen.tree))
    told = {"schema": "envcheck/watch/1", **seen._asdict(), "seconds": round(seen.seconds, 3), "summary": lines}
    return {name: value for name, value in told.items() if name not in ("tree", "cores")} | {"processes": tree}


_CLASS: Final = {"good": "pass", "low": "warn", "info": "skip", "unknown": "error"}
_GPU_CHARTS: Final = (
    ("GPU utilization", "%", "utilization", 1),
    ("GPU memory in use", "GiB", "memory_used", 1 / _GIB),
    ("power", "W", "power_draw", 1),
    ("clock of the multiprocessors", "MHz", "clock_sm", 1),
    ("temperature", "C", "temperature", 1),
)


def page(seen: WatchRecord) -> str:
    """Return the run as one HTML page that needs nothing else; what the command is called cannot steer it."""
    title = f"envcheck watch: {shlex.join(seen.command)}"
    rows = "".join(
        f'<tr><td class="id">{html.text(line.what)}</td><td class="status {_CLASS[line.status]}">{line.status}</td>'
        f"<td>{html.text(line.text)}</td></tr>\n"
        for line in summarize(seen)
    )
    body = (
        f'<header class="verdict"><h1>{html.text(title)}</h1>'
        f"<p>exit code {seen.exit_code} after {seen.seconds:.1f} s</p></header>\n"
        f'<main>\n<h2>Summary</h2>\n<div class="wide"><table><tbody>\n{rows}</tbody></table></div>\n'
        f'<h2>Over time</h2>\n<div class="figures">\n{"".join(_figures(seen))}</div>\n</main>\n'
    )
    return html.document(title, body, f"envcheck {__version__}")


def _figures(seen: WatchRecord) -> Iterator[str]:
    by_gpu = grouped(seen.gpus)
    for title, unit, field, factor in _GPU_CHARTS:
        read = {gpu: [(s.at, getattr(s, field)) for s in samples] for gpu, samples in by_gpu.items()}
        series = {
            gpu: [(at, value * factor) for at, value in points if value is not None] for gpu, points in read.items()
        }
        yield from _figure(f"{title}, {unit}", unit, series)
    rates = [(b.at, max(0.0, b.cpu - a.cpu) / (b.at - a.at)) for a, b in pairwise(seen.tree) if b.at > a.at]
    yield from _figure("busy cores, cores", "cores", {"cores": rates})
    yield from _figure("memory of the processes, GiB", "GiB", {"": [(s.at, s.rss / _GIB) for s in seen.tree]})
    disks = {kind: [(s.at, getattr(s, kind) / 1e6) for s in seen.tree] for kind in ("read", "written")}
    yield from _figure("disks since the start, MB", "MB", disks)


def _figure(title: str, unit: str, series: dict[str, list[tuple[float, float]]]) -> Iterator[str]:
    drawn = [PlotLine(name, thinned(points)) for name, points in series.items() if len(points) > 1]
    if any(value > 0 for line in drawn for _, value in line.points):
        yield html.figure(chart(title, drawn, unit))


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most _MOST_POINTS points: the mean of each stretch, so that no peak is invented."""
    size = -(-len(points) // _MOST_POINTS)
    parts = [points[start : start + size] for start in range(0, len(points), max(size, 1))]
    return [(part[0][0], sum(value for _, value in part) / len(part)) for part in parts]
