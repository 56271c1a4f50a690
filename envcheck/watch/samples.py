"""What is sampled while a command runs. Times are seconds from its start."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from envcheck.struct_types import know_types


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
