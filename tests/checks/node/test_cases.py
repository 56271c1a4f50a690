"""Each side of each rule of the node checks, as cases.yaml has it: the machine in, status, code and culprit out."""

import dataclasses
from typing import Any

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, View
from envcheck.checks.node import sxid, xid
from envcheck.node.snapshot import Signal, Why
from envcheck.runner.planning import discover
from tests import builders
from tests.builders import gpu_view, put
from tests.tables import beside, each

Row = dict[str, Any]
JUDGES = {module.id: module.judge for module in discover() if module.kind == "node"}
CASES: dict[str, list[Row]] = beside(__file__, "cases.yaml")


def view_of(row: Row) -> View:
    """Return the view of a machine with what the row changes; an empty environment is of no torch."""
    name = row.get("machine", "h100x8")
    view = builders.cpu_view() if name == "cpu" else builders.gpu_view(name)
    for index, values in row.get("gpus", {}).items():
        view = builders.put_gpu(view, range(99) if index == "all" else [index], **values)
    view = builders.put(view, **row.get("node", {}))
    changed = row.get("environment", view.environment)
    environment = {**view.environment, **changed} if changed else {}
    return dataclasses.replace(view, environment=environment, promises=row.get("promises", {}))


@each("check, row", [(check, row) for check, rows in CASES.items() for row in rows])
def test_a_check_says_of_a_machine_what_the_case_says(check: str, row: Row) -> None:
    outcome = JUDGES[check](view_of(row))
    told = (outcome.status, outcome.code, outcome.culprit, max(len(outcome.findings), 1))
    assert told == (row["status"], row.get("code", ""), row.get("culprit", ""), row.get("findings", 1)), outcome.summary
    assert bool(outcome.remedy) or outcome.status in (PASS, SKIP, ERROR)


@each("others", [False, True])
def test_a_gpu_is_no_other_one_of_its_model(*, others: bool) -> None:
    gpu = {"bus_id": "0000:10:00.0", "device": "0x2330", "driver": "nvidia", "numa_node": 0, "aer": {}}
    found = [gpu, {**gpu, "bus_id": "0000:11:00.0"}] if others else [gpu]
    unknown = {"kind": "unknown-gpu", "bus_id": gpu["bus_id"], "text": "", "age": 60.0, "count": 1}
    outcome = xid.judge(put(gpu_view("h100x8"), pci__gpus=found, kernel__driver_failures=[unknown]))
    assert ("reseat" in outcome.remedy) == others


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
