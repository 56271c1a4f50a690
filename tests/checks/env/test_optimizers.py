"""Many promises in one check: each broken one is a finding, absence needs evidence, the reference is plain Python."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, SKIP, Limit, Rank, View
from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.optimizers import implementations, optimizer_formulas, schedule_formulas
from envcheck.checks.support import promise_cases
from envcheck.checks.training import plain_math
from tests.builders import Entry, group

LIMIT = Limit(0.1, "relative error", "a test's", "at most")
TERMS = promise_cases.Terms(("one", "two"), lambda _name: LIMIT, "tests.code", "mend it", lambda name: name == "two")


def entry(**cases: Any) -> Entry:
    measured = {"cases": {"one": {"off": 0.0}, "two": {"off": 0.0}, **cases}}
    return group(measured, 1, gpu=False, backend=None, seed=7)[0]


def raising(error: Exception) -> promise_cases.Case:
    def case() -> None:
        raise error

    return case


@pytest.mark.parametrize(
    ("cases", "status", "message"),
    [
        ({}, PASS, "2 cases right"),
        ({"one": {"off": 0.11}}, FAIL, "one is off by 0.11"),
        ({"one": {"off": math.nan}}, FAIL, "one is off by nan"),
        ({"one": {"off": None}}, FAIL, "one is off by None"),
        ({"one": {"off": -1.0}}, FAIL, "one is off by -1.0"),
        ({"one": {"wrong": "lost a row"}}, FAIL, "one: lost a row"),
        ({"one": {"raised": "RuntimeError: NCCL"}}, FAIL, "one raised RuntimeError: NCCL"),
        ({"one": {}}, ERROR, "one was not tried"),
        ({"one": {"absent": "no such thing"}}, FAIL, "one is missing"),
        ({"two": {"absent": "takes no fused"}}, PASS, "1 case right"),
        ({"one": {"off": 1.0}, "two": {"off": 2.0}}, FAIL, "one is off by 1.0; rank 0 on cpu: two is off by 2.0"),
    ],
)
def test_each_case_is_judged_by_itself(cpu: View, cases: dict[str, Any], status: str, message: str) -> None:
    outcome = promise_cases.judge(cpu, [entry(**cases)], TERMS)
    assert outcome.status == status
    assert message in outcome.summary
    expected = {"was not tried": "cases.not-tried"}.get(message.removeprefix("one "), "tests.code")
    assert all(finding.code == expected for finding in outcome.findings)


def test_what_all_cases_raise_alike_is_one_finding(cpu: View) -> None:
    broken = {"raised": "ImportError: no libcudart"}
    outcome = promise_cases.judge(cpu, [entry(one=broken, two=broken)], TERMS)
    assert len(outcome.findings) == 1
    assert "one and 1 other cases raised ImportError: no libcudart" in outcome.summary


def test_nothing_that_could_be_tried_is_no_pass(cpu: View) -> None:
    terms = TERMS._replace(names=("two",))
    outcome = promise_cases.judge(cpu, [entry(two={"absent": "takes no fused"})], terms)
    assert (outcome.status, outcome.summary) == (SKIP, "takes no fused")


def test_absence_is_only_what_says_so() -> None:
    tried = promise_cases.run(
        {
            "absent": raising(promise_cases.AbsentFeature("torch 1.13 has no such hook")),
            "broken": raising(NotImplementedError("CUDA error")),
            "missing import": raising(ImportError("libnccl.so")),
            "exact": lambda: None,
            "text": lambda: "row 3 is lost",
            "number": lambda: 0.5,
        }
    )
    assert tried["absent"] == {"absent": "torch 1.13 has no such hook"}
    assert tried["broken"] == {"raised": "NotImplementedError: CUDA error"}
    assert tried["missing import"] == {"raised": "ImportError: libnccl.so"}
    assert (tried["exact"], tried["text"], tried["number"]) == ({"off": 0.0}, {"wrong": "row 3 is lost"}, {"off": 0.5})


@pytest.mark.parametrize("values", [[1.0], [1.0, math.nan], [1.0, math.inf], [], [1.0, 2.0, 3.0]])
def test_what_does_not_compare_is_infinitely_far(values: list[float]) -> None:
    assert plain_math.off(values, [1.0, 2.0]) == math.inf


def test_the_distance_is_that_of_the_worst_relative_to_the_largest() -> None:
    assert plain_math.off([1.0, 2.5], [1.0, 2.0]) == 0.25
    assert plain_math.off([1.0, 2.5], [1.0, 2.0], scale=1.0) == 0.5
    assert plain_math.off([0.0], [0.0]) == 0.0


def test_the_gradient_by_hand_is_the_slope_of_the_loss() -> None:
    parameters: list[Any] = [plain_math.rows(plain_math.values("w", 6), 3), plain_math.values("b", 2)]
    parameters += [plain_math.rows(plain_math.values("v", 4), 2), plain_math.values("c", 2)]
    inputs, targets = plain_math.rows(plain_math.values("x", 12), 3), plain_math.rows(plain_math.values("y", 8), 2)
    _, gradients = plain_math.two_layers(parameters, inputs, targets)
    step = 1e-6
    for part, gradient in zip(parameters, gradients, strict=True):
        cells = [(row, i) for row in part for i in range(len(row))] if isinstance(part[0], list) else []
        cells = cells or [(part, i) for i in range(len(part))]
        for (row, i), slope in zip(cells, gradient, strict=True):
            row[i] += step
            above, _ = plain_math.two_layers(parameters, inputs, targets)
            row[i] -= 2 * step
            below, _ = plain_math.two_layers(parameters, inputs, targets)
            row[i] += step
            assert (above - below) / (2 * step) == pytest.approx(slope, abs=1e-7)


def test_the_seed_is_one_for_all_ranks_and_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(seeded_numbers.SEED)
    ranks = [Rank(n, 2, n, "cpu", "gloo", "/scratch/ddp") for n in range(2)]
    assert plain_math.seed_of(ranks[0]) == plain_math.seed_of(ranks[1])
    monkeypatch.setenv(seeded_numbers.SEED, "41")
    assert plain_math.seed_of(ranks[0]) == 41
    assert seeded_numbers.seed(1) == 42
    monkeypatch.setenv(seeded_numbers.SEED, "²")  # a digit to str.isdigit, and no number to int
    assert seeded_numbers.requested_seed() is None
    assert plain_math.values(41, 5) == plain_math.values(41, 5) != plain_math.values(42, 5)


def test_first_steps_are_what_the_papers_say() -> None:
    # Adam's first step is lr * g / (|g| + eps); AdamW's shrinks the weight before it.
    assert optimizer_formulas.trajectory("Adam", [1.0], [[0.5]], {}) == [
        pytest.approx(1 - 1e-3 * 0.5 / (0.5 + 1e-8), rel=1e-12)
    ]
    assert optimizer_formulas.trajectory("AdamW", [1.0], [[0.5]], {}) == [pytest.approx(1 - 1e-5 - 1e-3, rel=1e-9)]
    assert optimizer_formulas.trajectory("SGD", [1.0], [[0.5], [0.5]], {"lr": 0.1, "momentum": 0.9}) == [
        pytest.approx(0.855)
    ]
    assert optimizer_formulas.trajectory("Rprop", [1.0], [[2.0], [2.0], [-2.0]], {}) == [
        pytest.approx(1 - 0.01 - 0.012)
    ]


def test_schedules_begin_at_the_rate_or_at_their_warm_up() -> None:
    starts = {name: formula(0) / schedule_formulas.RATE for name, formula in schedule_formulas.FORMULAS.items()}
    warm = {"LinearLR": 0.2, "ConstantLR": 0.25, "OneCycleLR": 0.04, "CyclicLR": 0.1, "SequentialLR": 0.1}
    warm |= {"OneCycleLR, linear": 0.1, "CyclicLR, triangular2": 0.1, "CyclicLR, exp_range": 0.1}
    warm |= {"LinearLR, downwards": 0.5}
    assert starts == pytest.approx({**dict.fromkeys(starts, 1.0), **warm, "ChainedScheduler": 0.2})


def test_every_algorithm_has_a_formula_and_options_of_its_own() -> None:
    whole = {"Adafactor"}
    assert set(implementations.OPTIONS) == {*optimizer_formulas.STEPS, *whole} == set(optimizer_formulas.DEFAULTS)
    for name, options in implementations.OPTIONS.items():
        start, gradients = [0.5, -0.25], [[0.5, 0.25], [0.25, -0.5], [1.0, 0.5]]
        walk: Any = functools.partial(optimizer_formulas.trajectory, name)
        walk = functools.partial(optimizer_formulas.adafactor, [(2,)]) if name in whole else walk
        ends = [walk(start, gradients, chosen) for chosen in ({}, *options.values())]
        assert len({tuple(end) for end in ends}) == len(ends), name


def test_sparse_adam_leaves_what_has_no_gradient_and_adafactor_steps_by_the_size_of_its_tensor() -> None:
    # A first step is lr * sign(g) for both, Adafactor's times the root mean square of the weights.
    sparse = optimizer_formulas.trajectory("SparseAdam", [1.0, 2.0], [[0.5, 0.0]], {})
    assert sparse == [pytest.approx(1 - 1e-3, rel=1e-7), 2.0]
    vector = optimizer_formulas.adafactor([(2,)], [3.0, 4.0], [[0.5, -2.0]], {})
    size = 0.01 * (25 / 2) ** 0.5
    assert vector == pytest.approx([3 - size, 4 + size])
    # Of a matrix of rank one, row and column make the whole second moment.
    matrix = optimizer_formulas.adafactor([(2, 2)], [1.0] * 4, [[1.0, 2.0, 3.0, 6.0]], {})
    assert matrix == pytest.approx([0.99] * 4)
