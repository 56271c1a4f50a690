"""What a DataLoader's workers delivered, judged."""

import copy
import math
from typing import Any

from envcheck.checks import ERROR, FAIL, PASS, View
from envcheck.checks.env import dataloader
from tests.builders import Entry, group

DEATH = "RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed."
SEEDS = {"fork": {"8": 100, "9": 101}, "spawn": {"10": 100}, "forkserver": {"11": 100}}


def entries(method: str = "fork", *, gpu: bool = False, death: Any = DEATH, **changes: Any) -> list[Entry]:
    honest = {"batches": 6, "wrong": 0, "shared": True, "died": None}
    methods = {name: {**honest, "workers": copy.copy(seeds)} for name, seeds in SEEDS.items()}
    methods[method] |= changes
    return group({"methods": methods, "death": death}, 1, gpu=gpu, backend=None)


def test_the_truth_passes_and_nothing_measured_is_an_error(h100: View, cpu: View) -> None:
    assert dataloader.judge(h100, entries(gpu=True)).status == PASS
    assert dataloader.judge(cpu, entries()).status == PASS
    nothings: list[list[Entry]] = [[], [{}], group({}, 1, gpu=False, backend=None)]
    for nothing in nothings:
        assert dataloader.judge(cpu, nothing).status in (ERROR, FAIL)
    assert dataloader.judge(h100, entries()).code == "rank.wrong-device"


def test_each_fault_of_each_start_method_is_named(cpu: View) -> None:
    rows: list[tuple[Entry, str, str]] = [
        ({"died": "DataLoader worker (pid 5) is killed by signal: Bus error."}, FAIL, "dataloader.broke"),
        ({"wrong": 3, "item": 9, "index": 5, "got": -1}, FAIL, "dataloader.data"),
        ({"wrong": math.nan}, ERROR, "dataloader.unmeasured"),
        ({"batches": None}, ERROR, "dataloader.unmeasured"),
        ({"workers": None}, ERROR, "dataloader.unmeasured"),
        ({"batches": 5}, FAIL, "dataloader.lost"),
        ({"batches": 7}, FAIL, "dataloader.lost"),
        ({"workers": {}}, FAIL, "dataloader.start"),
        ({"workers": {"1": 5, "2": 6, "3": 7}}, FAIL, "dataloader.start"),
        ({"shared": False}, ERROR, "dataloader.not-shared"),
    ]
    actual = [(method, change, status, code) for method in SEEDS for change, status, code in rows]
    wrong = []
    for method, change, status, code in [*actual, ("fork", {"workers": {"1": 5, "2": 5}}, FAIL, "dataloader.seeds")]:
        outcome = dataloader.judge(cpu, entries(method, **change))
        if (outcome.status, outcome.code, outcome.culprit) != (status, code, method) or not outcome.remedy:
            wrong.append((method, change, outcome))
    assert not wrong


def test_a_full_shared_memory_has_its_own_remedy(cpu: View) -> None:
    assert "--shm-size" in dataloader.judge(cpu, entries(died="RuntimeError: bus error")).remedy
    assert "ulimit" in dataloader.judge(cpu, entries(died="OSError: too many open files (ulimit -n)")).remedy


def test_a_death_counts_as_reported_by_the_words_that_report_it(cpu: View) -> None:
    reports = {DEATH: PASS, "EOFError:": PASS, "ConnectionResetError: [Errno 104]": PASS, "": FAIL}
    reports |= {"DataLoader worker (pid 9) timed out": FAIL, "AttributeError: no 'poll'": FAIL}
    judged = {death: dataloader.judge(cpu, entries(death=death)).status for death in reports}
    assert judged == reports
    assert dataloader.judge(cpu, entries(death=None)).code == "dataloader.death-not-reported"
