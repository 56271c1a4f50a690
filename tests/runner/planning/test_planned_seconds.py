"""A plan for a machine without a GPU uses the time that a check takes on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from envcheck.checks import Check, passed
from envcheck.runner.planning.discover import Found, discover
from envcheck.runner.planning.plan import plan


def found(cpu_seconds: float | None) -> Found:
    """Return a check that takes 5 s on a GPU."""
    check = Check(promise="p", level="quick", seconds=5.0, cpu_seconds=cpu_seconds)
    return Found("it", "env", check, lambda *_: passed("fine"), "", "", Path("it.py"))


@pytest.mark.parametrize(
    ("gpus", "cpu_seconds", "planned"), [(0, 0.5, 0.5), (0, None, 5.0), (1, 0.5, 5.0), (None, 0.5, 5.0)]
)
def test_the_cpus_time_counts_only_where_no_gpu_is(gpus: int | None, cpu_seconds: float | None, planned: float) -> None:
    made = plan([found(cpu_seconds)], level="quick", nproc=2, gpus=gpus)
    assert (made.checks[0].seconds, made.seconds) == (planned, planned)


def test_a_check_that_needs_a_gpu_has_no_time_on_a_cpu() -> None:
    assert [check.id for check in discover() if check.check.gpus and check.check.cpu_seconds is not None] == []
