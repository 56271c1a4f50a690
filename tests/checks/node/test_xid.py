"""Xids and SXids: what calls for action is a failure while it is fresh, what a user's own program did is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, View
from envcheck.checks.node import sxid, xid
from envcheck.node.snapshot import Signal, Why
from tests.tables import each

Node = Callable[..., View]
DAY = 24 * 3600.0


def event(code: int, text: str = "", age: float = 60.0, bus: str = "0000:12:00") -> dict[str, Any]:
    return {"code": code, "text": text, "age": age, "bus_id": bus}


@each(
    "code, status",
    [
        (79, FAIL),
        (48, FAIL),
        (74, FAIL),
        (64, FAIL),
        (119, FAIL),
        (94, WARN),
        (44, WARN),
        (31, PASS),
        (43, PASS),
        (45, PASS),
        (63, PASS),
        (171, FAIL),
        (172, FAIL),
        (163, WARN),
        (168, WARN),
        (9999, WARN),
    ],
)
def test_each_kind_of_xid_has_its_verdict(node: Node, put: Node, code: int, status: str) -> None:
    outcome = xid.judge(put(node("h100x8"), kernel__xids=[event(code)]))
    assert outcome.status == status
    if status != PASS:
        assert f"Xid {code} " in outcome.summary
        assert "0000:12:00" in outcome.summary
        assert outcome.remedy


def test_the_gpus_in_the_slots_that_the_log_names_are_named(node: Node, put: Node) -> None:
    view = node("h100x8")
    grave, lesser, harmless = event(79), event(94, bus="0000:14:00"), event(31, bus="0000:15:00")
    uuids = [gpu.uuid for gpu in view.snapshot.gpus]
    assert xid.judge(put(view, kernel__xids=[grave, lesser, harmless])).details["gpus"] == [uuids[2]]
    assert xid.judge(put(view, kernel__xids=[lesser, harmless])).details["gpus"] == [uuids[4]]
    elsewhere = event(79, bus="0001:12:00")
    assert xid.judge(put(view, kernel__xids=[elsewhere])).details["gpus"] == []


@each(
    "code, text, status",
    [
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000)", FAIL),
        (149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)", FAIL),
        (149, "NETIR Fatal XC0 i0 Link -1 (0x000fe406", FAIL),
        (144, "SAW_MVB Fatal XC0 i0 Link 00 (0x00000001 0x00000002)", FAIL),
        (150, "MSE_WATCHDOG Fatal XC0 i0 Link -1 (0x00000000 0x00000000)", FAIL),
        (145, "pid=1, name=Fatal, RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008)", WARN),
        (149, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x00082226 0x00000001)", WARN),
        (149, "something new", WARN),
        # What the catalogue ignores: the link went down because the host, or a user, took it down.
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x028505c6 0x00000000)", WARN),
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x026505c6 0x00000000)", WARN),
        (145, "RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000100)", PASS),
        (145, "RLW_REMAP Fatal XC0 i0 Link 00 (0x00000004 0x00000100)", FAIL),
    ],
)
def test_an_error_of_nvlink_5_is_as_grave_as_its_text_says(
    node: Node, put: Node, code: int, text: str, status: str
) -> None:
    assert xid.judge(put(node("h100x8"), kernel__xids=[event(code, text)])).status == status


def test_two_gpus_and_two_codes_are_as_many_findings(node: Node, put: Node) -> None:
    xids = [event(79), event(95, bus="0000:13:00"), event(94, bus="0000:13:00")]
    outcome = xid.judge(put(node("h100x8"), kernel__xids=xids))
    assert [(f.status, f.code, f.culprit[:5]) for f in outcome.findings] == [
        (FAIL, "xid.79", "GPU 2"),
        (FAIL, "xid.95", "GPU 3"),
        (WARN, "xid.94", "GPU 3"),
    ]


def test_an_instance_of_mig_is_named(node: Node, put: Node) -> None:
    sliced = {**event(94), "instance": "GPU-I:05"}
    outcome = xid.judge(put(node("h100x8"), kernel__xids=[sliced]))
    assert outcome.status == WARN
    assert outcome.culprit.endswith("MIG GPU-I:05")


@each(
    "seen, status, codes",
    [
        ([event(45, "pid=1, name=x, Ch 1 caused by previous Xid 95")], FAIL, ["xid.95"]),
        ([event(45, "pid=1, name=x, Ch 1 caused by previous Xid 149")], WARN, ["xid.149"]),
        ([event(45, "pid=1, name=x, Ch 1 caused by previous Xid 31")], PASS, []),
        ([event(45, "pid=1, name=x, Ch 1 caused by previous Xid 95"), event(95)], FAIL, ["xid.95"]),
        ([event(45, "Ch 1 caused by previous Xid 31"), event(45, "Ch 2 caused by previous Xid 79")], FAIL, ["xid.79"]),
        ([event(13, "Ch 1 caused by previous Xid 79")], PASS, []),
    ],
)
def test_what_the_log_only_names_as_a_cause_is_judged_too(
    node: Node, put: Node, seen: list[dict[str, Any]], status: str, codes: list[str]
) -> None:
    outcome = xid.judge(put(node("h100x8"), kernel__xids=seen))
    actual = [finding.code for finding in outcome.findings] or [outcome.code] * bool(outcome.code)
    assert (outcome.status, actual) == (status, codes)


def test_a_gpu_without_power_cables_is_one_failure_and_the_cables_are_its_remedy(node: Node, put: Node) -> None:
    at, other = {"bus_id": "0000:f1:00.0", "text": "", "age": 60.0, "count": 1}, "0000:f2:00.0"
    kinds = [{"kind": "power-cable", **at}, {"kind": "start", **at}, {"kind": "start", **at, "bus_id": other}]
    outcome = xid.judge(put(node("h100x8"), kernel__driver_failures=kinds))
    assert [(f.code, f.culprit) for f in outcome.findings] == [
        ("xid.power-cable", "PCI 0000:f1:00.0"),
        ("xid.start", f"PCI {other}"),
    ]
    assert outcome.status == FAIL
    assert "power cables" in outcome.remedy


def test_messages_that_the_kernel_left_out_are_a_warning(node: Node, put: Node) -> None:
    gaps = [{"name": "nv_printf", "count": 123, "age": 60.0}]
    outcome = xid.judge(put(node("h100x8"), kernel__suppressed=gaps))
    assert (outcome.status, outcome.code, outcome.value) == (WARN, "xid.suppressed", 123)


def test_a_quiet_log_passes_and_says_how_far_it_goes_back(node: Node) -> None:
    outcome = xid.judge(node("h100x8"))
    assert (outcome.status, outcome.value) == (PASS, 0)
    assert "72 h" in outcome.summary


@each("age, status", [(DAY, FAIL), (DAY + 1, WARN)])
def test_what_is_older_than_a_day_is_a_warning(node: Node, put: Node, age: float, status: str) -> None:
    assert xid.judge(put(node("h100x8"), kernel__xids=[event(79, age=age)])).status == status
    fatal = event(20034, "Fatal, Link 30 LTSSM Fault Up", age=age)
    assert sxid.judge(put(node("h100x8"), kernel__sxids=[fatal])).status == status


@each("times, status", [(4, PASS), (5, WARN)])
def test_an_applications_fault_five_times_on_one_gpu_is_suspicious(
    node: Node, put: Node, times: int, status: str
) -> None:
    wild = [event(13 if n % 2 else 31) for n in range(times)]
    assert xid.judge(put(node("h100x8"), kernel__xids=wild)).status == status
    spread = [event(31, bus=f"0000:{n:02x}:00") for n in range(times)]
    assert xid.judge(put(node("h100x8"), kernel__xids=spread)).status == PASS


@each("other, words", [(63, "its row was remapped"), (64, "could NOT be remapped")])
def test_a_double_bit_error_is_told_with_what_became_of_its_row(node: Node, put: Node, other: int, words: str) -> None:
    outcome = xid.judge(put(node("h100x8"), kernel__xids=[event(48), event(other)]))
    assert outcome.status == FAIL
    assert words in outcome.summary
    elsewhere = xid.judge(put(node("h100x8"), kernel__xids=[event(48), event(other, bus="0000:13:00")]))
    assert words not in elsewhere.summary


def test_xid_154_carries_the_drivers_own_action_and_its_end(node: Node, put: Node) -> None:
    drain = event(154, "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", age=100)
    outcome = xid.judge(put(node("h100x8"), kernel__xids=[drain]))
    assert outcome.status == FAIL
    assert "Drain and Reset" in outcome.remedy
    over = event(154, "GPU recovery action changed from 0x4 (Drain and Reset) to 0x0 (None)", age=10)
    assert xid.judge(put(node("h100x8"), kernel__xids=[drain, over])).status == PASS
    assert xid.judge(put(node("h100x8"), kernel__xids=[event(154, "something new")])).status == WARN


@each(
    "code, text, status",
    [
        (20034, "Fatal, Link 30 LTSSM Fault Up", FAIL),
        (12028, "Non-fatal, Link 32 egress non-posted PRIV error (First)", WARN),
        (10003, "Non-fatal, whatever it says", FAIL),
        (11012, "Non-fatal, Link 1 single bit ECC", PASS),
        (24003, "Non-fatal, Link 1 single bit ECC", PASS),
        (22013, "Non-fatal, Link 60 Minion Link DLREQ interrupt", PASS),
        (22013, "Fatal, Link 60 Minion Link DLREQ interrupt", FAIL),
        (24007, "Severity 1 Engine instance 30 Sub-engine instance 00", FAIL),
        (24007, "Severity 0 Engine instance 30 Sub-engine instance 00", WARN),
        (20001, "Non-fatal, Link 1 TX Replay Error", WARN),
    ],
)
def test_a_switchs_errors(node: Node, put: Node, code: int, text: str, status: str) -> None:
    assert sxid.judge(put(node("h100x8"), kernel__sxids=[event(code, text)])).status == status


@each(
    "why, status", [("denied", SKIP), ("unsupported", SKIP), ("no-data", SKIP), ("failed", ERROR), ("timed-out", ERROR)]
)
def test_a_log_that_was_not_read_is_never_a_quiet_one(node: Node, put: Node, why: Why, status: str) -> None:
    log = Signal(reason="/dev/kmsg: as it was", why=why)
    unread = put(node("h100x8"), kernel__xids=log, kernel__sxids=log)
    for judge in (xid.judge, sxid.judge):
        outcome = judge(unread)
        assert outcome.status == status
        assert "/dev/kmsg: as it was" in outcome.summary


def test_a_gpu_that_fell_off_is_found_though_nvml_shows_none(node: Node, put: Node) -> None:
    assert xid.judge(put(node("mismatch"), kernel__xids=[event(79)])).status == FAIL


def test_no_driver_is_a_skip(cpu: View) -> None:
    assert xid.judge(cpu).status == SKIP
    assert sxid.judge(cpu).status == SKIP


def test_the_catalogue_names_an_action_for_every_code_and_a_reason_for_every_override() -> None:
    data = xid.catalogue()
    assert {row["action"] for row in data["xids"].values()} <= set(data["actions"])
    assert {row["status"] for row in data["actions"].values()} <= {PASS, WARN, FAIL}
    assert all(row["because"] for row in data["overrides"].values())
    assert [int(code) for code in data["xids"]] == list(range(1, 173))
