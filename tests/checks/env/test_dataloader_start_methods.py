"""Workers that are started anew: what they do not deliver is a failure, and what nobody compared is no pass."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, View
from envcheck.checks.env import dataloader_start_methods as check

Entry = dict[str, Any]
DUE = [check.ITEMS // check.BATCH] * check.EPOCHS
TOLD = {
    "epochs": DUE,
    "wrong": 0,
    "workers": [8, 9],
    "forked": 0,
    "died": None,
    "death": "RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed.",
}
STANDING = {"rank": 0, "world": 1, "host": "n1", "is_cuda": False, "device": "cpu", "backend": None, "seed": 7}


def report(method: str = "spawn", **changes: Any) -> list[Entry]:
    methods = {name: copy.deepcopy({**TOLD, "seconds": 2.0}) for name in check.METHODS}
    methods[method] |= changes
    return [{**STANDING, "methods": methods}]


@pytest.mark.parametrize("method", check.METHODS)
@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, PASS),
        ({"epochs": [DUE[0], DUE[0] - 1]}, FAIL),
        ({"epochs": [DUE[0] + 1, DUE[0]]}, FAIL),
        ({"epochs": []}, FAIL),
        ({"epochs": None}, ERROR),
        ({"wrong": 1}, FAIL),
        ({"wrong": None}, ERROR),
        ({"workers": [8]}, FAIL),
        ({"workers": []}, FAIL),
        ({"workers": None}, ERROR),
        ({"forked": 4}, FAIL),
        ({"died": "RuntimeError: bus error"}, FAIL),
        ({"death": None}, FAIL),
        ({"death": "DataLoader timed out after 100 seconds"}, FAIL),
        ({"death": "DataLoader worker (pid 9) timed out"}, FAIL),
        ({"death": "AttributeError: 'NoneType' object has no attribute 'poll'"}, FAIL),
        ({"death": "ConnectionResetError: [Errno 104] Connection reset by peer"}, PASS),
    ],
)
def test_each_start_method_is_judged_by_itself(cpu: View, method: str, changes: Entry, status: str) -> None:
    outcome = check.judge(cpu, report(method, **changes))
    assert outcome.status == status
    assert status == PASS or (outcome.culprit == method and outcome.remedy and outcome.code)


def test_a_start_method_that_is_missing_is_no_pass(cpu: View) -> None:
    assert check.judge(cpu, [{**STANDING, "methods": {"spawn": TOLD}}]).status == ERROR
    assert check.judge(cpu, [STANDING]).status == ERROR
    assert check.judge(cpu, []).status == ERROR


def test_items_come_from_the_seed_and_differ() -> None:
    made = [check.words(seed, index) for seed in (1, 2) for index in range(3)]
    assert all(len(words) == check.ELEMENTS and min(words) >= 0 and max(words) < 1 << 31 for words in made)
    assert len({tuple(words) for words in made}) == 6
    assert check.words(1, 2) == made[2]


def test_the_order_kills_a_worker_after_the_last_epoch_alone() -> None:
    order = check.Order()
    epochs = [[*order] for _ in range(check.EPOCHS + 1)]
    assert epochs[:-1] == [list(range(check.ITEMS))] * check.EPOCHS
    assert check.FATAL in epochs[-1]
