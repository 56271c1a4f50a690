"""A check has met a GPU when a recorded report shows it: not one made by hand, not a skip, not a rank on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from envcheck.node.snapshot import Gpu, Signal, Snapshot
from envcheck.reports.check_catalogue import met_in
from envcheck.reports.model import RunReport
from envcheck.runner.schema import OutcomeRow

GPUS = [Gpu("GPU-1", {"name": Signal("NVIDIA H200")})]
REAL = Snapshot("", {"origin": Signal("recorded")}, GPUS)


def row(status: Any = "pass", kind: Any = "env", **more: Any) -> OutcomeRow:
    return OutcomeRow(id="gemm", kind=kind, status=status, summary="", **more)


@pytest.mark.parametrize(
    ("outcome", "facts", "met"),
    [
        (row(ranks=[{"is_cuda": True}]), {}, True),
        (row("fail", ranks=[{"is_cuda": True}]), {}, True),
        (row("warn", "node"), {}, True),
        (row("skip"), {}, False),
        (row("error"), {}, False),
        (row(ranks=[{"is_cuda": True}, {"is_cuda": False}]), {}, False),
        (row(), {"mode": "cpu"}, False),
        (row(), {"snapshot": Snapshot("", {"origin": Signal("made from documentation")}, GPUS)}, False),
        (row(), {"snapshot": Snapshot("", {}, GPUS)}, False),
        (row(), {"snapshot": Snapshot("", REAL.signals)}, False),
    ],
)
def test_what_counts_as_having_met_a_gpu(
    report: Callable[..., RunReport],
    outcome: OutcomeRow,
    facts: dict[str, Any],
    met: bool,  # noqa: FBT001 (a table's column)
) -> None:
    found = met_in([("a.json", report(outcome, **{"snapshot": REAL, **facts}))])
    expected = {"check": "gemm", "gpu": "NVIDIA H200", "date": "2026-01-02", "report": "a.json"}
    assert found == ([expected] if met else [])


def test_each_model_is_told_once_by_the_first_report(report: Callable[..., RunReport]) -> None:
    made = report(row(), snapshot=REAL)
    assert [found["report"] for found in met_in([("a.json", made), ("b.json", made)])] == ["a.json"]
