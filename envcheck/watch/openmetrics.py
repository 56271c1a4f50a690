"""The series of a watched run as OpenMetrics text with timestamps, which Prometheus can load into its database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from envcheck.printable import printable
from envcheck.watch.samples import GpuSample, TreeSample, WatchRecord

_GPU: Final[tuple[tuple[str, str, Callable[[GpuSample], float | None], float], ...]] = (
    ("utilization_ratio", "Share of the time in which the GPU worked.", lambda s: s.utilization, 0.01),
    ("memory_used_bytes", "Memory of the GPU in use.", lambda s: s.memory_used, 1),
    ("memory_size_bytes", "Memory that the GPU has.", lambda s: s.memory_total, 1),
    ("power_watts", "Power that the GPU draws.", lambda s: s.power_draw, 1),
    ("sm_clock_hertz", "Clock of the multiprocessors.", lambda s: s.clock_sm, 1e6),
    ("temperature_celsius", "Temperature of the GPU.", lambda s: s.temperature, 1),
)
_TREE: Final[tuple[tuple[str, str, str, Callable[[TreeSample], float]], ...]] = (
    ("resident_memory_bytes", "gauge", "Memory of the command and what it started.", lambda s: s.rss),
    ("processes", "gauge", "Processes of the command.", lambda s: s.processes),
    ("cpu_seconds", "counter", "CPU time of the command and what it started.", lambda s: s.cpu),
    ("disk_read_bytes", "counter", "Bytes read from disks.", lambda s: s.read),
    ("disk_written_bytes", "counter", "Bytes written to disks.", lambda s: s.written),
    ("network_received_bytes", "counter", "Bytes that the network namespace received.", lambda s: s.received),
    ("network_sent_bytes", "counter", "Bytes that the network namespace sent.", lambda s: s.sent),
)


def openmetrics(seen: WatchRecord) -> str:
    """Return the text, which ends with # EOF. A value that a GPU does not offer has no sample."""
    return "".join([*_gpus(seen), *_processes(seen), *_result(seen), "# EOF\n"])


def _gpus(seen: WatchRecord) -> Iterator[str]:
    by_gpu: dict[tuple[str, str], list[GpuSample]] = {}
    for sample in seen.gpus:
        by_gpu.setdefault((str(sample.index), sample.uuid), []).append(sample)
    for name, text, read, factor in _GPU:
        full = f"envcheck_watch_gpu_{name}"
        rows = [
            f'{full}{{gpu="{index}",uuid="{_escaped(uuid)}"}} {value * factor!r} {seen.started + sample.at:.3f}\n'
            for (index, uuid), samples in by_gpu.items()
            for sample in samples
            if (value := read(sample)) is not None
        ]
        if rows:
            yield f"# TYPE {full} gauge\n# HELP {full} {text}\n{''.join(rows)}"


def _processes(seen: WatchRecord) -> Iterator[str]:
    for name, kind, text, read in _TREE:
        full, suffix = f"envcheck_watch_{name}", "_total" if kind == "counter" else ""
        # A process that ended between two samples may take bytes of its own with it; a counter never falls.
        most, rows = 0.0, []
        for sample in seen.tree:
            most = max(most, read(sample)) if kind == "counter" else read(sample)
            rows.append(f"{full}{suffix} {float(most)!r} {seen.started + sample.at:.3f}\n")
        if rows:
            yield f"# TYPE {full} {kind}\n# HELP {full} {text}\n{''.join(rows)}"


def _result(seen: WatchRecord) -> Iterator[str]:
    ended = seen.started + seen.seconds
    for name, text, value in (
        ("exit_code", "Exit code of the command.", seen.exit_code),
        ("duration_seconds", "How long the command ran.", seen.seconds),
        ("xids", "GPU errors in the kernel's log while it ran.", len(seen.xids)),
    ):
        full = f"envcheck_watch_{name}"
        yield f"# TYPE {full} gauge\n# HELP {full} {text}\n{full} {float(value)!r} {ended:.3f}\n"


def _escaped(text: str) -> str:
    return printable(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
