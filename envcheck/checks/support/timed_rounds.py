"""Rounds of some work, timed on the clock, how long the thread slept meanwhile, and the products that are a round."""

from __future__ import annotations

import math
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

from envcheck.checks import Measured
from envcheck.checks.collectives import exact_numbers, timed_collectives
from envcheck.checks.support import verified_products

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


class Work:
    """So many products of one matrix by itself: the work of a round, verified outside what is timed."""

    def __init__(self, torch: Any, device: Any, size: int, products: int, seed: int) -> None:
        self.torch = torch
        self.data = verified_products.data(torch, size, size, device, seed)
        self.outs = [torch.empty_like(self.data) for _ in range(products)]
        self._do()
        self.reference = self.outs[0].clone()
        self.error = verified_products.error(torch, self.data, self.data.t(), self.reference)
        self.counted: list[Any] = []

    def timed(self) -> tuple[float, float]:
        """Return how long a round took and for how long it slept; its products have to be there afterwards."""
        for out in self.outs:
            out.fill_(math.nan)
        self._wait()
        took = timed(self._do)
        for out in self.outs:
            wrong = exact_numbers.compared(self.torch, out.view(-1), self.reference.view(-1))
            self.counted.append(wrong)
        return took

    def measured(self) -> Measured:
        """Return how far the first product is off, and how many of the timed ones had other bits than it."""
        wrong = [int(count) for count in self.counted]
        return {"error": self.error, "products": len(wrong), "wrong": sum(count > 0 for count in wrong)}

    def _do(self) -> None:
        for out in self.outs:
            self.torch.mm(self.data, self.data, out=out)
        self._wait()

    def _wait(self) -> None:
        if self.data.is_cuda:
            self.torch.cuda.synchronize()
