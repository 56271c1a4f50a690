"""The control group that this process is in: its files, and how long its quota of CPU time held processes back.

A quota of `docker --cpus` or of limits.cpu in Kubernetes takes no core away: all are still seen, as many threads are
started, and the kernel stops them until the next period (onyx-dot-app/onyx#12351: 192 threads on a quota of 8 cores).
Kernel: Documentation/admin-guide/cgroup-v2.rst, scheduler/sched-bwc.rst; version 1 has other names for the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from envcheck.checks import Limit

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
HELD = Limit(0.1, "of the periods", "ours: a tenth of the time moves a median of short rounds by less", "at most")
FIX = "raise the quota (--cpus of docker, limits.cpu in Kubernetes, CPUQuota of systemd), or start fewer threads"
_MOST = 1 << 53
_COUNTS = re.compile(r"nr_periods (\d+)\nnr_throttled (\d+)\n")


def directories(controller: str) -> Iterator[Path]:
    """Yield the directory of this process's control group and those above it; a container shows the last alone."""
    for line in [*text(OWN).splitlines(), "0::/"]:
        _, controllers, own = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = ROOT / controller if controllers else ROOT
        for place in (PurePosixPath(own), *PurePosixPath(own).parents):
            yield top / str(place).lstrip("/")


def text(path: Path) -> str:
    """Return what a file of the kernel's says; "" where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def quotas() -> list[tuple[float, int, int]]:
    """Return each quota on this process: its cores, its periods so far, and in how many of them it was used up."""
    counted = [(_quota(place), _COUNTS.search(text(place / "cpu.stat"))) for place in directories("cpu")]
    return [(cores, int(counts[1]), int(counts[2])) for cores, counts in counted if counts and cores]


def held(before: list[tuple[float, int, int]]) -> dict[str, float]:
    """Return the quota that held processes back most since `before`, as plain data; {} where none did."""
    since = [(cores, now[0] - was[0], now[1] - was[1]) for (_, *was), (cores, *now) in zip(before, quotas())]
    told = [
        {"quota": cores, "periods": periods, "throttled": throttled, "share": round(throttled / periods, 3)}
        for cores, periods, throttled in since
        if periods > 0 and throttled > 0
    ]
    return max(told, key=lambda one: one["share"], default={})


def measured(held: Any) -> bool:
    """Tell whether this is a quota that `held` returned, and not what somebody wrote into a report."""
    numbers = [held.get(name) for name in ("quota", "periods", "throttled", "share")] if isinstance(held, dict) else []
    return bool(numbers) and all(isinstance(one, (int, float)) and 0 <= one < _MOST for one in numbers)


def told(held: dict[str, float]) -> str:
    """Say how a quota that `held` returned held processes back."""
    periods = f"in {held['throttled']} of {held['periods']} periods"
    return f"a CPU quota of {held['quota']:.2g} cores held processes back {periods}"


def _quota(place: Path) -> float:
    """Return the cores that a group's quota is worth; 0 where it has none (cpu.max, in version 1 cpu.cfs_quota_us)."""
    said = text(place / "cpu.max") or f"{text(place / 'cpu.cfs_quota_us')} {text(place / 'cpu.cfs_period_us')}"
    numbers = [int(word) for word in said.split() if word.isdecimal()]
    return numbers[0] / numbers[1] if len(numbers) == 2 and numbers[1] else 0.0  # noqa: PLR2004 (quota and period)
