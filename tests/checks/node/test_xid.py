"""Xids and SXids: what calls for action is a failure while it is fresh, what a user's own program did is none."""

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN
from envcheck.checks.node import sxid, xid
from envcheck.node.snapshot import Signal, Why
from tests.builders import gpu_view, put
from tests.tables import each


def test_a_gpu_without_power_cables_is_one_failure_and_the_cables_are_its_remedy() -> None:
    at, other = {"bus_id": "0000:f1:00.0", "text": "", "age": 60.0, "count": 1}, "0000:f2:00.0"
    kinds = [{"kind": "power-cable", **at}, {"kind": "start", **at}, {"kind": "start", **at, "bus_id": other}]
    outcome = xid.judge(put(gpu_view("h100x8"), kernel__driver_failures=kinds))
    assert [(f.code, f.culprit) for f in outcome.findings] == [
        ("xid.power-cable", "PCI 0000:f1:00.0"),
        ("xid.start", f"PCI {other}"),
    ]
    assert outcome.status == FAIL
    assert "power cables" in outcome.remedy


def test_a_quiet_log_passes_and_says_how_far_it_goes_back() -> None:
    outcome = xid.judge(gpu_view("h100x8"))
    assert (outcome.status, outcome.value) == (PASS, 0)
    assert "72 h" in outcome.summary


@each(
    "why, status", [("denied", SKIP), ("unsupported", SKIP), ("no-data", SKIP), ("failed", ERROR), ("timed-out", ERROR)]
)
def test_a_log_that_was_not_read_is_never_a_quiet_one(why: Why, status: str) -> None:
    log = Signal(reason="/dev/kmsg: as it was", why=why)
    unread = put(gpu_view("h100x8"), kernel__xids=log, kernel__sxids=log)
    for judge in (xid.judge, sxid.judge):
        outcome = judge(unread)
        assert outcome.status == status
        assert "/dev/kmsg: as it was" in outcome.summary


def test_the_catalogue_names_an_action_for_every_code_and_a_reason_for_every_override() -> None:
    data = xid.CATALOGUE
    assert {row["action"] for row in data["xids"].values()} <= set(data["actions"])
    assert {row["status"] for row in data["actions"].values()} <= {PASS, WARN, FAIL}
    assert all(row["because"] for row in data["overrides"].values())
    assert [int(code) for code in data["xids"]] == list(range(1, 177))
