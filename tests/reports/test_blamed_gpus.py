"""Which GPU a finding is about: by its UUID in words or details, or by its rank; a pass blames nobody."""

from typing import Any

from envcheck.node.snapshot import Gpu, Snapshot
from envcheck.reports.phrases import culprits
from tests.builders import report, row
from tests.tables import each

RANKS = [{"rank": i, "device": f"GPU-{i}"} for i in range(3)]


@each(
    ("finding", "blamed"),
    [
        ({"summary": "GPU-1 lost 3 rows"}, ["GPU-1"]),
        ({"details": {"device": "GPU-2"}}, ["GPU-2"]),
        ({"details": {"gpus": ["GPU-0", "GPU-2"]}}, ["GPU-0", "GPU-2"]),
        ({"details": {"gpus": {"GPU-0": 3}}}, ["GPU-0"]),
        ({"details": {"rank": 1}, "ranks": RANKS}, ["GPU-1"]),
        ({"details": {"ranks": [0, 2]}, "ranks": RANKS}, ["GPU-0", "GPU-2"]),
        ({"ranks": RANKS}, []),
        ({"details": {"curve": "GPU-1"}}, []),
    ],
)
@each("status", ["warn", "fail", "error", "pass", "skip"])
def test_findings_blame_the_gpus_they_name(finding: dict[str, Any], blamed: list[str], status: str) -> None:
    outcome = row("x", status, **finding)
    data = culprits(report(outcome, snapshot=Snapshot("", {}, [Gpu(f"GPU-{i}") for i in range(3)])))
    expected = blamed if status in ("warn", "fail", "error") else []
    assert [uuid for uuid, outcomes in data.items() if outcomes] == expected
