"""Rounds of some work, timed on the clock, and how long the thread slept meanwhile."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

from envcheck.checks import Measured
from envcheck.checks.collectives import timed_collectives

_SCHEDULED = "/proc/thread-self/schedstat"


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds that some work takes, and for how many of them this thread slept.

    A thread that waits for a core does not sleep. Where the kernel does not tell how long it waited, all of a round in
    which it slept counts.
    """
    before, waited, computed, began = slept(), waited_for_core(), time.thread_time(), time.monotonic()
    work()
    took = time.monotonic() - began
    if slept() == before:
        return took, 0.0
    ready = waited_for_core()
    if waited is None or ready is None:
        return took, took
    return took, max(0.0, took - (time.thread_time() - computed) - (ready - waited))


def waited_for_core() -> float | None:
    """Return for how many seconds this thread has been ready and had no core (sched-stats.rst), or None if unknown."""
    try:
        with open(_SCHEDULED, encoding="ascii") as file:  # noqa: PTH123 (no Path: this is timed)
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def slept() -> int:
    """Return how often this thread has given its core away by itself (getrusage(2), voluntary switches)."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def spread(rounds: list[tuple[float, float]]) -> Measured:
    """Return the median, 95th percentile and shortest of rounds, and the mean time that they slept."""
    seconds = [took for took, _ in rounds]
    return {
        "median": statistics.median(seconds),
        "p95": timed_collectives.percentile(seconds, 0.95),
        "shortest": min(seconds),
        "slept": statistics.fmean(slept for _, slept in rounds),
    }
