"""What is sampled while a command runs, and what the samples say of it. Times are seconds from its start."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from envcheck.counting import counted
from envcheck.struct_types import know_types

# What practitioners aim at in training: GPUs at work in 80 % of the time, and 20 % of their memory free as reserve
# against longer batches and fragmentation.
UTILIZATION_GOAL: Final = 80.0
HEADROOM_GOAL: Final = 0.2
# A GPU below this did nothing; one below _WAITING at a moment waited then.
_IDLE, _WAITING = 5.0, 20.0
_OFTEN: Final = 0.1
_UNEVEN: Final = 20.0
# envcheck/checks/support/gpu_speed.py has the same faults among NVML's reasons.
_FAULTS: Final = ("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake")
_CAPS: Final = ("software power cap", "applications clocks", "sync boost")
_FULL: Final = 0.9
_GIB: Final = float(1 << 30)
LineStatus = Literal["good", "low", "info", "unknown"]


class GpuSample(msgspec.Struct, frozen=True):
    """One GPU at one moment. What it does not offer is None.

    Percent, bytes, W, MHz, C; `reasons` for its clocks in NVML's words; `ecc` uncorrected errors since the driver came
    up.
    """

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
    """The command and all that it started: bytes in memory, and seconds and bytes since its start.

    `received` and `sent` are those of its network namespace, which is the machine's unless the command has its own.
    """

    at: float
    processes: int
    rss: int
    cpu: float
    read: int
    written: int
    received: int
    sent: int


class WatchRecord(NamedTuple):
    """All that was seen. `exit_code` is the command's, `problems` what could not be watched and why.

    `xids` are the kernel's lines on GPU errors that came while it ran.
    """

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


class SummaryLine(NamedTuple):
    """One line: `what` was looked at, how it stands, and the sentence."""

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
    """Return the mean utilization in percent of each GPU that offers it."""
    values = {gpu: [s.utilization for s in samples if s.utilization is not None] for gpu, samples in by_gpu.items()}
    return {gpu: statistics.fmean(numbers) for gpu, numbers in values.items() if numbers}


def _goals(by_gpu: dict[str, list[GpuSample]]) -> Iterator[SummaryLine]:
    means = _means(by_gpu)
    if means:
        mean, least = statistics.fmean(means.values()), min(means, key=lambda gpu: means[gpu])
        status: LineStatus = "good" if mean >= UTILIZATION_GOAL else "low"
        text = f"{mean:.0f} % on {counted(len(means), 'GPU')}, least {least} with {means[least]:.0f} %"
        yield SummaryLine("utilization", status, f"{text} (goal {UTILIZATION_GOAL:.0f} %)")
    elif by_gpu:
        yield SummaryLine("utilization", "unknown", "no GPU offers its utilization")
    free = {gpu: share for gpu, samples in by_gpu.items() if (share := headroom(samples)) is not None}
    if free:
        least = min(free, key=lambda gpu: free[gpu])
        status = "good" if round(free[least], 6) >= HEADROOM_GOAL else "low"
        text = f"{free[least]:.0%} of {least} stayed free (goal {HEADROOM_GOAL:.0%})"
        yield SummaryLine("memory", status, text)


def headroom(samples: Sequence[GpuSample]) -> float | None:
    """Return the share of a GPU's memory that was free at its fullest moment."""
    shares = [s.memory_used / s.memory_total for s in samples if s.memory_used is not None and s.memory_total]
    return 1 - max(shares) if shares else None


def _slowed(by_gpu: dict[str, list[GpuSample]], seen: WatchRecord) -> Iterator[SummaryLine]:
    for gpu, samples in by_gpu.items():
        reasons = {reason for sample in samples for reason in sample.reasons or ()}
        for reason in (*_FAULTS, *_CAPS):
            share = sum(reason in (sample.reasons or ()) for sample in samples) / len(samples)
            if reason in reasons and (reason in _FAULTS or share > 1 / 2):
                status: LineStatus = "low" if reason in _FAULTS else "info"
                yield SummaryLine("clocks", status, f"{gpu}: {reason} in {share:.0%} of the samples")
        counts = [sample.ecc for sample in samples if sample.ecc is not None]
        if counts and counts[-1] > counts[0]:
            yield SummaryLine(
                "memory errors", "low", f"{gpu}: {counted(counts[-1] - counts[0], 'uncorrected ECC error')}"
            )
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
    peak = max(sample.rss for sample in tree)
    most = max(sample.processes for sample in tree)
    yield SummaryLine(
        "processes", "info", f"up to {counted(most, 'process', 'processes')}, {peak / _GIB:.2f} GiB, {busy}"
    )
    disk = f"{last.read / 1e6:.1f} MB read and {last.written / 1e6:.1f} MB written on disks"
    network = f"{last.received / 1e6:.1f} MB received and {last.sent / 1e6:.1f} MB sent by this network namespace"
    yield SummaryLine("traffic", "info", f"{disk}; {network}")


def document(seen: WatchRecord) -> dict[str, Any]:
    """Return the document envcheck/watch/1: what ran, the summary, and the series."""
    return {
        "schema": "envcheck/watch/1",
        "command": seen.command,
        "started": seen.started,
        "seconds": round(seen.seconds, 3),
        "exit_code": seen.exit_code,
        "summary": [line._asdict() for line in summarize(seen)],
        "gpus": seen.gpus,
        "processes": [sample._asdict() for sample in seen.tree],
        "xids": seen.xids,
        "problems": seen.problems,
    }
