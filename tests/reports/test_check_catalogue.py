"""A check has met a GPU when a recorded report shows it: not one made by hand, not a skip, not a rank on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envcheck.node.snapshot import Gpu, Signal, Snapshot
from envcheck.reports.check_catalogue import met_in
from envcheck.reports.model import RunReport
from envcheck.runner.schema import OutcomeRow
from tests.builders import row
from tests.tables import each

GPUS = [Gpu("GPU-1", {"name": Signal("NVIDIA H200")})]
REAL = Snapshot("", {"origin": Signal("recorded")}, GPUS)


def gemm(status: Any = "pass", kind: Any = "env", **more: Any) -> OutcomeRow:
    return row("gemm", status, kind=kind, **more)


@each(
    ("outcome", "facts", "met"),
    [
        (gemm(ranks=[{"is_cuda": True}]), {}, True),
        (gemm("fail", ranks=[{"is_cuda": True}]), {}, True),
        (gemm("warn", "node"), {}, True),
        (gemm("skip"), {}, False),
        (gemm("error"), {}, False),
        (gemm(ranks=[{"is_cuda": True}, {"is_cuda": False}]), {}, False),
        (gemm(), {"mode": "cpu"}, False),
        (gemm(), {"snapshot": Snapshot("", {"origin": Signal("made from documentation")}, GPUS)}, False),
        (gemm(), {"snapshot": Snapshot("", {}, GPUS)}, False),
        (gemm(), {"snapshot": Snapshot("", REAL.signals)}, False),
    ],
)
def test_what_counts_as_having_met_a_gpu(
    report: Callable[..., RunReport],
    outcome: OutcomeRow,
    facts: dict[str, Any],
    met: bool,  # noqa: FBT001 (a table's column)
) -> None:
    entries = met_in([("a.json", report(outcome, **{"snapshot": REAL, **facts}))])
    expected = {"check": "gemm", "gpu": "NVIDIA H200", "date": "2026-01-02", "report": "a.json"}
    assert entries == ([expected] if met else [])


def test_each_model_is_told_once_by_the_first_report(report: Callable[..., RunReport]) -> None:
    made = report(gemm(), snapshot=REAL)
    assert [actual["report"] for actual in met_in([("a.json", made), ("b.json", made)])] == ["a.json"]
