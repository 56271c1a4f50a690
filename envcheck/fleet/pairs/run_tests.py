"""Runs round after round until there is a diagnosis. What is next is decided by `session.step` alone."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from envcheck.fleet.pairs import state_file
from envcheck.fleet.pairs.model import Diagnosis, GroupResult, GroupTest
from envcheck.fleet.pairs.session import Fleet, NextRound, step
from envcheck.fleet.pairs.state_file import PairsState

# Launch commands at one time on this machine; a round of more tests takes several turns.
AT_ONCE: Final = 64
RunTest = Callable[[GroupTest, threading.Event], GroupResult]


def run_tests(
    fleet: Fleet,
    state: PairsState,
    path: Path,
    run: RunTest,
    say: Callable[[int, GroupTest, GroupResult], None],
) -> Diagnosis:
    """Run the tests that have no result yet; each result is kept before the next one counts."""
    state_file.write(path, state)
    while isinstance(following := step(fleet, state.results), NextRound):
        number = following.done + 1

        def keep(test: GroupTest, result: GroupResult, number: int = number) -> None:
            state_file.add(path, state, test, result)
            say(number, test, result)

        _run_round(following.tests, run, keep)
    state.over = True
    state_file.write(path, state)
    return following


def _run_round(tests: Sequence[GroupTest], run: RunTest, keep: Callable[[GroupTest, GroupResult], None]) -> None:
    stop = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(min(AT_ONCE, len(tests))) as pool:
        running = {pool.submit(run, test, stop): test for test in tests}
        try:
            for done in concurrent.futures.as_completed(running):
                keep(running[done], done.result())
        except BaseException:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
