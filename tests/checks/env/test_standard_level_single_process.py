"""What one process reports at levels standard and full, judged: the truth passes, and each lie is caught by name."""

import copy
import itertools
import math
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, View
from envcheck.checks.env import checkpoint, compiled, dataloader, memory_patterns
from tests.builders import Entry, gpu_view, group
from tests.tables import each

NAN = float("nan")
LOSSES = [1.0, 0.9, 0.8, 0.7]
MEASURED: dict[Any, Entry] = {
    checkpoint: {
        "bytes": 71759,
        "lacking": [],
        "losses": [LOSSES, LOSSES],
        "saved": {"0.weight": "a", "1.running_mean": "b"},
        "resumed": {"0.weight": "a", "1.running_mean": "b"},
        "distributed": {"wrong": []},
    },
    compiled: {"missing": [], "errors": {"output": 4e-7, "0.weight": 1e-7}, "code": {".so": 3}},
}
CHECKS = pytest.mark.parametrize("check", MEASURED, ids=lambda check: check.__name__.rpartition(".")[2])


def entries(check: Any, *, gpu: bool = False, **changes: Any) -> list[Entry]:
    return group({**MEASURED[check], **changes}, 1, gpu=gpu, backend=None)


@CHECKS
def test_the_truth_passes_on_a_gpu_and_on_a_cpu(check: Any, cpu: View) -> None:
    assert check.judge(gpu_view("h100x8"), entries(check, gpu=True)).status == PASS
    assert check.judge(cpu, entries(check)).status == PASS


@CHECKS
def test_nothing_measured_is_an_error(check: Any, cpu: View) -> None:
    bare = {key: value for key, value in entries(check)[0].items() if key not in MEASURED[check]}
    assert check.judge(cpu, [bare]).status == ERROR


@each(
    "changes, status, message",
    [
        ({"resumed": {"0.weight": "a", "1.running_mean": "c"}}, FAIL, "in what no loss shows; 1 different tensor: 1."),
        ({"resumed": {"0.weight": "a"}}, FAIL, "1 different tensor"),
        ({"losses": [LOSSES, [1.0, 0.9, 0.8, 0.71]]}, FAIL, "another one from step 7 on"),
        ({"losses": [LOSSES, [1.0, NAN, 0.8, 0.7]]}, FAIL, "not finite"),
        ({"losses": [LOSSES, LOSSES[:2]]}, ERROR, "not resumed"),
        ({"saved": {}, "resumed": {}}, ERROR, "not resumed"),
        ({"distributed": {"wrong": ["int64"]}}, FAIL, "brings back other numbers: int64"),
        ({"distributed": {"raised": "OSError: full"}}, FAIL, "raised OSError: full"),
        ({"distributed": None}, ERROR, "was not tried"),
        ({"distributed": {"absent": "no module"}}, PASS, "same to the bit"),
    ],
)
def test_each_way_a_checkpoint_lies_is_named(cpu: View, changes: Entry, status: str, message: str) -> None:
    outcome = checkpoint.judge(cpu, entries(checkpoint, **changes))
    assert outcome.status == status
    assert message in outcome.summary


@each(
    "changes, status, message",
    [
        ({"missing": ["a C compiler", "Python.h"]}, SKIP, "needs a C compiler and Python.h"),
        ({"errors": {}}, ERROR, "nothing was compiled"),
        ({"errors": {"output": 1e-4}}, PASS, "are right"),
        ({"errors": {"output": 1.1e-4}}, FAIL, "the output is off by"),
        ({"errors": {"output": 0.0, "gradient of 0.weight": NAN}}, FAIL, "the gradient of 0.weight is off by nan"),
        ({"breaks": ["data-dependent"]}, FAIL, "the graph was broken: data-dependent"),
        ({"errors": {"output": None}}, FAIL, "the output is off by None"),
    ],
)
def test_each_way_a_compiler_fails_is_named(cpu: View, changes: Entry, status: str, message: str) -> None:
    outcome = compiled.judge(cpu, entries(compiled, **changes))
    assert outcome.status == status
    assert message in outcome.summary


GIB = 1 << 30
PATTERNS = ("zeros", "ones", "0x55", "0xaa", "address", "random", "moving inversions")
FIRST = {"offset": 4096, "address": "0x7f0000001000", "xor": "0x0000000000000100"}


def patterns(view: View, **changes: Any) -> list[Entry]:
    passes = {name: {"wrong": 0, "first": None} for name in PATTERNS}
    measured = {"tested": 66 * GIB, "total": 80 * GIB, "passes": passes, **changes}
    return group(measured, view=view, backend=None)


def test_memory_that_holds_every_pattern_passes(h100: View, cpu: View) -> None:
    outcome = memory_patterns.judge(h100, patterns(h100))
    assert (outcome.status, outcome.value) == (PASS, 0)
    assert "540,672 MiB on 8 ranks held 7 patterns" in outcome.summary
    alone = patterns(h100, tested=8 << 20, total=8 << 20)[:1]
    alone[0] |= {"world": 1, "is_cuda": False, "device": "cpu"}
    assert memory_patterns.judge(cpu, alone).status == PASS


@each("pattern", PATTERNS)
def test_one_word_under_any_pattern_fails_naming_gpu_place_and_bits(h100: View, pattern: str) -> None:
    ranks = patterns(h100)
    ranks[5]["passes"][pattern] = {"wrong": 1, "first": FIRST}
    outcome = memory_patterns.judge(h100, ranks)
    assert (outcome.status, outcome.value) == (FAIL, 1)
    for message in (f"rank 5 on {h100.snapshot.gpus[5].uuid}", pattern, "byte 4096", "0x7f0000001000", FIRST["xor"]):
        assert str(message) in outcome.summary
    assert outcome.remedy


@each(
    "pattern, result",
    itertools.product(PATTERNS, [None, {}, {"wrong": None}, {"wrong": NAN}, {"wrong": True}, {"wrong": "0"}]),
)
def test_a_pattern_nobody_read_back_is_an_error(h100: View, pattern: str, result: Any) -> None:
    ranks = patterns(h100)
    ranks[7]["passes"][pattern] = result
    outcome = memory_patterns.judge(h100, ranks)
    assert outcome.status == ERROR
    assert f"rank 7 tested no {pattern}" in outcome.summary


def test_counts_that_cannot_be_never_pass(h100: View) -> None:
    ranks = patterns(h100)
    ranks[7]["passes"]["zeros"]["wrong"] = -1
    assert memory_patterns.judge(h100, ranks).status == FAIL
    assert memory_patterns.judge(h100, patterns(h100, passes=None)).status == ERROR


@each("tested", [0, -1, None, NAN, "all"])
def test_no_memory_tested_is_an_error(h100: View, tested: Any) -> None:
    assert memory_patterns.judge(h100, patterns(h100, tested=tested)).status == ERROR


@each(
    "tested, total, status",
    [(60 * GIB, 80 * GIB, PASS), (60 * GIB - 1, 80 * GIB, WARN), (60 * GIB, None, WARN), (60 * GIB, 0, WARN)],
)
def test_a_gpu_somebody_else_fills_is_told(h100: View, tested: int, total: Any, status: str) -> None:
    ranks = patterns(h100)
    ranks[2] |= {"tested": tested, "total": total}
    outcome = memory_patterns.judge(h100, ranks)
    assert outcome.status == status
    if status == WARN:
        assert outcome.details["rank"] == 2


DEATH = "RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed."
SEEDS = {"fork": {"8": 100, "9": 101}, "spawn": {"10": 100}, "forkserver": {"11": 100}}


def loaded(method: str = "fork", *, gpu: bool = False, death: Any = DEATH, **changes: Any) -> list[Entry]:
    honest = {"batches": 6, "wrong": 0, "shared": True, "died": None}
    methods = {name: {**honest, "workers": copy.copy(seeds)} for name, seeds in SEEDS.items()}
    methods[method] |= changes
    return group({"methods": methods, "death": death}, 1, gpu=gpu, backend=None)


def test_the_truth_passes_and_nothing_measured_is_an_error(h100: View, cpu: View) -> None:
    assert dataloader.judge(h100, loaded(gpu=True)).status == PASS
    assert dataloader.judge(cpu, loaded()).status == PASS
    assert dataloader.judge(cpu, group({}, 1, gpu=False, backend=None)).status in (ERROR, FAIL)
    assert dataloader.judge(h100, loaded()).code == "rank.wrong-device"


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
        outcome = dataloader.judge(cpu, loaded(method, **change))
        if (outcome.status, outcome.code, outcome.culprit) != (status, code, method) or not outcome.remedy:
            wrong.append((method, change, outcome))
    assert not wrong


def test_a_full_shared_memory_has_its_own_remedy(cpu: View) -> None:
    assert "--shm-size" in dataloader.judge(cpu, loaded(died="RuntimeError: bus error")).remedy
    assert "ulimit" in dataloader.judge(cpu, loaded(died="OSError: too many open files (ulimit -n)")).remedy


def test_a_death_counts_as_reported_by_the_words_that_report_it(cpu: View) -> None:
    reports = {DEATH: PASS, "EOFError:": PASS, "ConnectionResetError: [Errno 104]": PASS, "": FAIL}
    reports |= {"DataLoader worker (pid 9) timed out": FAIL, "AttributeError: no 'poll'": FAIL}
    judged = {death: dataloader.judge(cpu, loaded(death=death)).status for death in reports}
    assert judged == reports
    assert dataloader.judge(cpu, loaded(death=None)).code == "dataloader.death-not-reported"
