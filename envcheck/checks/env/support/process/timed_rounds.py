"""Rounds of some work, timed on the clock, and whether the thread slept meanwhile: getrusage(2), voluntary switches."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

from envcheck.checks import Measured
from envcheck.checks.env.support.collectives import timed_collectives


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds that some work takes, and the same again if this thread slept meanwhile, else 0."""
    before, began = slept(), time.monotonic()
    work()
    took = time.monotonic() - began
    return took, took if slept() > before else 0.0


def slept() -> int:
    """Return how often this thread has given its core away by itself."""
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
