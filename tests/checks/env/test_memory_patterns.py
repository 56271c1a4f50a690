"""Memory that was written and read back, judged: each pattern owed, the wrong word named, little tested told."""

import itertools
from collections.abc import Callable
from typing import Any

from envcheck.checks import ERROR, FAIL, PASS, WARN, View
from envcheck.checks.env import memory_patterns
from tests.builders import Entry, group
from tests.tables import each

Node = Callable[..., View]
NAN = float("nan")
GIB = 1 << 30
PATTERNS = ("zeros", "ones", "0x55", "0xaa", "address", "random", "moving inversions")
FIRST = {"offset": 4096, "address": "0x7f0000001000", "xor": "0x0000000000000100"}


def entries(view: View, **changes: Any) -> list[Entry]:
    passes = {name: {"wrong": 0, "first": None} for name in PATTERNS}
    measured = {"tested": 66 * GIB, "total": 80 * GIB, "passes": passes, **changes}
    return group(measured, view=view, backend=None)


def test_memory_that_holds_every_pattern_passes(h100: View, cpu: View) -> None:
    outcome = memory_patterns.judge(h100, entries(h100))
    assert (outcome.status, outcome.value) == (PASS, 0)
    assert "540,672 MiB on 8 ranks held 7 patterns" in outcome.summary
    alone = entries(h100, tested=8 << 20, total=8 << 20)[:1]
    alone[0] |= {"world": 1, "is_cuda": False, "device": "cpu"}
    assert memory_patterns.judge(cpu, alone).status == PASS


@each("pattern", PATTERNS)
def test_one_word_under_any_pattern_fails_naming_gpu_place_and_bits(h100: View, pattern: str) -> None:
    ranks = entries(h100)
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
    ranks = entries(h100)
    ranks[7]["passes"][pattern] = result
    outcome = memory_patterns.judge(h100, ranks)
    assert outcome.status == ERROR
    assert f"rank 7 tested no {pattern}" in outcome.summary


def test_counts_that_cannot_be_never_pass(h100: View) -> None:
    ranks = entries(h100)
    ranks[7]["passes"]["zeros"]["wrong"] = -1
    assert memory_patterns.judge(h100, ranks).status == FAIL
    assert memory_patterns.judge(h100, entries(h100, passes=None)).status == ERROR


@each("tested", [0, -1, None, NAN, "all"])
def test_no_memory_tested_is_an_error(h100: View, tested: Any) -> None:
    assert memory_patterns.judge(h100, entries(h100, tested=tested)).status == ERROR


@each(
    "tested, total, status",
    [(60 * GIB, 80 * GIB, PASS), (60 * GIB - 1, 80 * GIB, WARN), (60 * GIB, None, WARN), (60 * GIB, 0, WARN)],
)
def test_a_gpu_somebody_else_fills_is_told(h100: View, tested: int, total: Any, status: str) -> None:
    ranks = entries(h100)
    ranks[2] |= {"tested": tested, "total": total}
    outcome = memory_patterns.judge(h100, ranks)
    assert outcome.status == status
    if status == WARN:
        assert outcome.details["rank"] == 2
