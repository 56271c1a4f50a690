"""Cases of `operators`: a sound torch is within their tolerance, and only a known flaw of oneDNN is excused."""

from __future__ import annotations

import contextlib
import random
import types
from collections.abc import Iterator
from typing import Any

import pytest

from envcheck.checks import View
from envcheck.checks.env import operators
from envcheck.checks.env.support.operators import operator_trial
from envcheck.checks.env.support.operators.cases import losses

SEEDS = range(300)
CASE = operator_trial.Case("conv3d", print, print, (), flaw="known upstream")


def test_lines_never_cancel_in_a_cosine() -> None:
    for seed in SEEDS:
        source = random.Random(seed)  # noqa: S311 (test data)
        case = losses._cosine(source, source.randint(1, 5), source.randint(1, 40))  # noqa: SLF001 (its bound is ours)
        assert all(abs(value) >= 0.6 for value in case.reference(*(given.values for given in case.inputs)))


def _rows(monkeypatch: pytest.MonkeyPatch, without: float, case: operator_trial.Case, kind: str = "cpu") -> list[Any]:
    """Return the rows of a case that is wrong with oneDNN, and so far off without it."""
    state = {"onednn": True}

    @contextlib.contextmanager
    def flags(*, enabled: bool) -> Iterator[None]:
        state["onednn"] = enabled
        yield
        state["onednn"] = True

    torch = types.SimpleNamespace(
        __version__="2.13.0+cpu", backends=types.SimpleNamespace(mkldnn=types.SimpleNamespace(flags=flags))
    )
    monkeypatch.setattr(operator_trial, "run", lambda *_: {"output": 9.0 if state["onednn"] else without})
    device = types.SimpleNamespace(type=kind)
    return list(operator_trial.measure(torch, [case], ["float32", "bfloat16"], device, random.Random(1)))  # noqa: S311


def test_a_known_flaw_of_onednn_is_told_in_bf16_only(monkeypatch: pytest.MonkeyPatch) -> None:
    single, short = _rows(monkeypatch, 0.1, CASE)
    assert single["error"] == 9.0
    assert short["known"] == "known upstream"


@pytest.mark.parametrize(
    ("without", "case", "kind"),
    [(9.0, CASE, "cpu"), (float("nan"), CASE, "cpu"), (0.1, CASE._replace(flaw=""), "cpu"), (0.1, CASE, "cuda")],
    ids=["wrong without oneDNN too", "no number without oneDNN", "no known flaw", "on a GPU"],
)
def test_anything_else_is_wrong(
    monkeypatch: pytest.MonkeyPatch, without: float, case: operator_trial.Case, kind: str
) -> None:
    assert [row["error"] for row in _rows(monkeypatch, without, case, kind)] == [9.0, 9.0]


def test_a_known_flaw_warns_and_hides_no_failure(cpu: View) -> None:
    entry: dict[str, Any] = {
        "rank": 0,
        "world": 1,
        "host": "a",
        "is_cuda": False,
        "device": "cpu",
        "backend": None,
        "seed": 1,
        "rows": 744,
        "ran": {"float32": 300, "float64": 240, "bfloat16": 181, "": 22},
        "wrong": [],
        "wrong_rows": 0,
        "worst": {"operator": "add", "dtype": "bfloat16", "error": 0.2},
        "known": {"conv3d bfloat16": "known upstream"},
    }
    result = operators.judge(cpu, [entry])
    assert (result.status, "conv3d bfloat16: known upstream" in result.summary) == ("warn", True)
    wrong = [{"operator": "conv1d", "dtype": "bfloat16", "error": 9.0, "part": "output"}]
    assert operators.judge(cpu, [{**entry, "wrong": wrong, "wrong_rows": 1}]).status == "fail"
    absent = {**entry, "ran": {"float32": 300, "float64": 240, "": 22}, "absent": {"add bfloat16": "not implemented"}}
    assert operators.judge(cpu, [absent]).status == "error"
