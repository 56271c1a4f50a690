"""Reports made by hand: what a run of each kind leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from envcheck.node.snapshot import Gpu, Signal, Snapshot
from envcheck.reports.model import HostFacts, RunReport
from envcheck.runner.judging.judge import verdict
from envcheck.runner.schema import OutcomeRow, Plan, Planned, TargetFacts
from envcheck.runner.targets.launcher import Place


def planned(identity: str) -> Planned:
    """Return a check as a plan has it."""
    return Planned(
        id=identity,
        kind="env",
        level="quick",
        promise=f"{identity} holds",
        seconds=2.0,
        timeout=30.0,
        gpus=1,
        ranks=0,
        performance=True,
    )


MakeReport = Callable[..., RunReport]


@pytest.fixture
def report() -> MakeReport:
    """Return what makes a report of these outcomes."""

    def make(*outcomes: OutcomeRow, mode: Any = "gpu", **facts: Any) -> RunReport:
        gpu = {"index": 0, "name": "NVIDIA H100 80GB HBM3", "capability": "9.0", "uuid": "GPU-1", "memory": 80 << 30}
        environment = {"python": "3.12.3", "torch": "2.9.1+cu128", "cuda": "12.8", "cudnn": "9.10.2", "nccl": "2.27.5"}
        return RunReport(
            **{
                "tool": "0.1.0",
                "started": "2026-01-02T03:04:05+00:00",
                "ended": "2026-01-02T03:05:05+00:00",
                "host": HostFacts(name="n1", system="Linux", kernel="6.1", arch="x86_64", cpus=8, place=Place()),
                "target": TargetFacts(
                    kind="image", name="registry.example/torch:1", chosen="--image", image_id="sha256:1"
                ),
                "mode": mode,
                "plan": Plan(level="quick", checks=[planned(o.id) for o in outcomes], nproc=2),
                "environment": {**environment, "devices": [gpu] * 8 if mode == "gpu" else []},
                "promises": {"torch": "2.9.1+cu128"},
                "snapshot": Snapshot(
                    "", {"driver.version": Signal("570.124.06")}, [Gpu("GPU-1", {"name": Signal("H100")})]
                ),
                "outcomes": list(outcomes),
                "verdict": verdict(outcomes, mode),
                **facts,
            }
        )

    return make
