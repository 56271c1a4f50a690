"""A thread that sleeps in its work is told from one that waits for its core."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from envcheck.checks.support import timed_rounds

_BURN = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nprint(flush=True)\nwhile True: pass"


def spin(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def sleep_and_spin(asleep: float, spinning: float) -> None:
    time.sleep(asleep)
    spin(spinning)


def test_a_sleep_is_measured_and_work_is_none() -> None:
    # A clock that is read late, because the thread waited for its core just then, takes from the sleep.
    rounds = [timed_rounds.timed(lambda: time.sleep(0.05)) for _ in range(5)]
    assert all(slept <= took for took, slept in rounds)
    assert max(slept for _, slept in rounds) > 0.045
    slept = min(timed_rounds.timed(lambda: spin(0.002))[1] for _ in range(5))
    assert slept == 0.0


def test_a_thread_that_waits_for_its_core_does_not_sleep() -> None:
    cores = os.sched_getaffinity(0)
    core = min(cores)
    burning = subprocess.Popen([sys.executable, "-c", _BURN, str(core)], stdout=subprocess.PIPE)
    try:
        assert burning.stdout is not None
        burning.stdout.readline()
        os.sched_setaffinity(0, {core})
        took, slept = timed_rounds.timed(lambda: sleep_and_spin(0.001, 0.3))
    finally:
        os.sched_setaffinity(0, cores)
        burning.kill()
        burning.communicate()
    assert took > 0.4  # the core was shared
    assert slept < 0.03


def test_where_the_kernel_does_not_tell_the_whole_round_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_rounds, "_SCHEDULED", "/nowhere")
    took, slept = timed_rounds.timed(lambda: sleep_and_spin(0.002, 0.01))
    assert slept == took
