"""FP8: which torch and GPU owe it, and a training judged on both sides of its limits."""

import itertools
from types import SimpleNamespace
from typing import Any

from envcheck.checks import FAIL, PASS, SKIP, View
from envcheck.checks.env import fp8_training
from tests.builders import Entry, gpu_view, group
from tests.tables import each

NAN = float("nan")
STEPS = fp8_training.STEPS
LOSSES = [1.0, *[0.05] * (STEPS - 1)]


def entries(view: View, **changes: Any) -> list[Entry]:
    losses = {"float8": [*LOSSES], "bfloat16": [*LOSSES]}
    return group({"losses": losses, **changes}, view=view, backend=None)


@each(
    "version, capability, why",
    [
        ("2.1.2+cu121", (9, 0), ""),
        ("2.1.2+cu121", (8, 9), "torch before 2.3"),
        ("2.3.0+cu121", (8, 9), ""),
        ("2.15.0+cu132", (12, 0), ""),
        ("2.15.0+cu132", (8, 0), "not in this GPU"),
        ("2.15.0+cu132", (8, 6), "not in this GPU"),
    ],
)
def test_who_owes_fp8(version: str, capability: tuple[int, int], why: str) -> None:
    torch = SimpleNamespace(__version__=version, _scaled_mm=1, float8_e4m3fn=1)
    assert fp8_training.lacking(torch, SimpleNamespace(type="cuda"), capability) == why
    old = SimpleNamespace(__version__="2.0.1+cu118")
    assert "2.0.1+cu118 has no" in fp8_training.lacking(old, SimpleNamespace(type="cuda"), (9, 0))


@each("given", ["product", ("product", "largest")])
def test_the_product_is_found_in_what_each_torch_gives(given: Any) -> None:
    called: Entry = {}

    def scaled(_left: Any, _right: Any, **options: Any) -> Any:
        called.update(options)
        return given

    torch = SimpleNamespace(_scaled_mm=scaled, bfloat16="bf16")
    right = SimpleNamespace(t=lambda: "right.T")
    assert fp8_training.multiply(torch, "left", 2.0, right, 3.0) == "product"
    assert called == {"scale_a": 2.0, "scale_b": 3.0, "out_dtype": "bf16"}


@each("apart, status", [(0.0299, PASS), (0.0301, FAIL), (-0.0301, FAIL)])
def test_a_loss_that_goes_its_own_way_names_the_gpu(h100: View, apart: float, status: str) -> None:
    ranks = entries(h100)
    ranks[3]["losses"]["float8"][10] += apart
    outcome = fp8_training.judge(h100, ranks)
    assert outcome.status == status
    if status == FAIL:
        assert f"rank 3 on {h100.snapshot.gpus[3].uuid}" in outcome.summary
        assert outcome.limit is fp8_training.DISTANCE
        assert outcome.remedy


@each("dtype, last, status", [(d, *row) for d in ("float8", "bfloat16") for row in ((0.0999, PASS), (0.1001, FAIL))])
def test_a_loss_that_does_not_fall_fails(h100: View, dtype: str, last: float, status: str) -> None:
    ranks = entries(h100)
    ranks[0]["losses"] = {name: [1.0, *[0.09] * (STEPS - 1)] for name in ("float8", "bfloat16")}
    ranks[0]["losses"][dtype][-1] = last
    assert fp8_training.judge(h100, ranks).status == status


@each("loss, dtype", itertools.product([NAN, None, "1.0", float("inf"), True], ["float8", "bfloat16"]))
def test_a_loss_that_is_no_number_fails(h100: View, dtype: str, loss: Any) -> None:
    ranks = entries(h100)
    ranks[7]["losses"][dtype][4] = loss
    assert fp8_training.judge(h100, ranks).status == FAIL
    ranks[7]["losses"] = {"float8": [0.0] * STEPS, "bfloat16": [0.0] * STEPS}
    assert fp8_training.judge(h100, ranks).status == FAIL


def test_every_rank_that_is_off_is_a_finding(h100: View) -> None:
    ranks = entries(h100)
    ranks[2]["losses"]["float8"][10] += 0.1
    ranks[5]["losses"]["float8"][-1] = 0.2
    ranks[7]["losses"] = {}
    outcome = fp8_training.judge(h100, ranks)
    assert [(finding.culprit[:6], finding.code) for finding in outcome.findings] == [
        ("rank 2", "fp8.distance"),
        ("rank 5", "fp8.distance"),
        ("rank 5", "fp8.not-learning"),
        ("rank 7", "fp8.missing"),
    ]


def test_where_nobody_has_fp8_it_is_skipped_with_the_reason() -> None:
    view = gpu_view("a100x8")
    outcome = fp8_training.judge(view, entries(view, lacking="not in this GPU", losses=None))
    assert outcome.status == SKIP
    assert "not in this GPU" in outcome.summary


def test_of_a_mixed_node_those_that_have_it_are_judged(h100: View) -> None:
    ranks = entries(h100)
    ranks[0] |= {"lacking": "not in this GPU", "losses": None}
    outcome = fp8_training.judge(h100, ranks)
    assert outcome.status == PASS
    assert "on 7 ranks; not on rank 0: not in this GPU" in outcome.summary
    ranks[1]["losses"]["float8"][-1] = 0.2
    assert fp8_training.judge(h100, ranks).status == FAIL
