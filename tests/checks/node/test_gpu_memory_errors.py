"""GPU memory: what is bad fails by name, what was repaired is told, and what is not counted is not 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, View
from envcheck.checks.node import ecc, recovery_action, row_remap
from envcheck.node.snapshot import Signal
from tests.tables import each

Node = Callable[..., View]
UNSUPPORTED = Signal(reason="NVML: Not Supported", why="unsupported")
FORBIDDEN = Signal(reason="NVML: Insufficient Permissions", why="denied")
LOST = Signal(reason="NVML: GPU is lost", why="lost")
UNREAD = Signal(reason="NVML: Unknown Error", why="failed")
ROWS = {"correctable": 0, "uncorrectable": 0, "pending": 0, "failed": 0}
PAGES = {"single_bit": 0, "double_bit": 0, "pending": False}


@each(
    "signals, status, word",
    [
        ({"ecc_volatile_uncorrected": 0}, PASS, "no uncorrected error"),
        ({"ecc_volatile_uncorrected": 1}, FAIL, "GPU 3 1"),
        ({"ecc_aggregate_uncorrected": 1}, WARN, "in the past"),
        ({"ecc_volatile_corrected": 9_000_000}, PASS, "9000000 corrected"),
        ({"ecc_sram": {"uncorrectable": 4, "threshold_exceeded": False}}, PASS, "no uncorrected error"),
        ({"ecc_sram": {"uncorrectable": 5, "threshold_exceeded": False}}, FAIL, "worn SRAM: GPU 3 5"),
        ({"ecc_sram": {"uncorrectable": 0, "threshold_exceeded": True}}, FAIL, "worn SRAM"),
        ({"ecc_mode": "off"}, WARN, "ECC is off on GPU 3"),
        ({"ecc_volatile_uncorrected": UNREAD}, ERROR, "GPU 3: NVML: Unknown Error"),
        ({"ecc_volatile_uncorrected": LOST}, SKIP, "GPU 3 is lost (see gpu-lost)"),
    ],
)
def test_ecc_on_each_side(node: Node, put_gpu: Node, signals: dict[str, Any], status: str, word: str) -> None:
    outcome = ecc.judge(put_gpu(node("h100x8"), [3], **signals))
    assert outcome.status == status
    assert word in outcome.summary


def test_a_bad_gpu_is_named_by_uuid_even_where_another_could_not_be_read(node: Node, put_gpu: Node) -> None:
    view = put_gpu(node("h100x8"), [5], ecc_volatile_uncorrected=2)
    outcome = ecc.judge(put_gpu(view, [6], ecc_volatile_uncorrected=UNREAD))
    assert outcome.status == FAIL
    assert outcome.details["gpus"] == [view.snapshot.gpus[5].uuid]


@each("judge", [ecc.judge, row_remap.judge, recovery_action.judge])
def test_a_geforce_counts_none_of_it_and_that_is_a_skip(node: Node, judge: Callable[[View], Any]) -> None:
    assert judge(node("rtx4090")).status == SKIP


@each(
    "judge, name",
    [
        (ecc.judge, "ecc_volatile_uncorrected"),
        (row_remap.judge, "remapped_rows"),
        (recovery_action.judge, "recovery_action"),
    ],
)
def test_what_may_not_be_read_is_an_error(node: Node, put_gpu: Node, judge: Callable[[View], Any], name: str) -> None:
    assert judge(put_gpu(node("h100x8"), range(8), **{name: FORBIDDEN})).status == ERROR


@each(
    "rows, status, word",
    [
        ({}, PASS, "nothing is pending"),
        ({"correctable": 8}, PASS, "nothing is pending"),
        ({"pending": 1}, FAIL, "waits to be remapped: GPU 2"),
        ({"failed": 1}, FAIL, "could not be remapped: GPU 2"),
        ({"uncorrectable": 1}, WARN, "repaired"),
        ({"uncorrectable": 512}, WARN, "repaired"),
        ({"uncorrectable": 513}, FAIL, "used up: GPU 2 513 rows"),
    ],
)
def test_rows_on_each_side(node: Node, put_gpu: Node, rows: dict[str, int], status: str, word: str) -> None:
    outcome = row_remap.judge(put_gpu(node("a100x8"), [2], remapped_rows={**ROWS, **rows}))
    assert outcome.status == status
    assert word in outcome.summary


@each(
    "pages, status",
    [
        ({}, PASS),
        ({"single_bit": 62}, PASS),
        ({"single_bit": 63}, FAIL),
        ({"single_bit": 61, "double_bit": 2}, FAIL),
        ({"double_bit": 1}, WARN),
        ({"pending": True}, FAIL),
    ],
)
def test_pages_of_gpus_before_ampere(node: Node, put_gpu: Node, pages: dict[str, Any], status: str) -> None:
    assert row_remap.judge(put_gpu(node("v100x4"), [1], retired_pages={**PAGES, **pages})).status == status


def test_the_drivers_wish_is_the_remedy(node: Node, put_gpu: Node) -> None:
    assert recovery_action.judge(node("h100x8")).status == PASS
    outcome = recovery_action.judge(put_gpu(node("h100x8"), [7], recovery_action="drain and reset"))
    assert outcome.status == FAIL
    assert "drain and reset" in outcome.remedy
    assert "GPU 7" in outcome.summary


def test_an_older_driver_that_has_no_such_word_is_a_skip(node: Node, put_gpu: Node) -> None:
    old = put_gpu(node("h100x8"), range(8), recovery_action=UNSUPPORTED)
    assert recovery_action.judge(old).status == SKIP


HISTOGRAM = {"max": 640, "high": 0, "partial": 0, "low": 0, "none": 0}
BANKS = {"active": 0, "inactive": 0, "none": 0, "pending": 0}


@each(
    "signals, status, code",
    [
        ({"unrepairable_memory": 0, "repairs": {"channel": False, "tpc": False}}, PASS, ""),
        ({"unrepairable_memory": 1}, FAIL, "row-remap.unrepairable"),
        ({"repairs": {"channel": True, "tpc": False}}, FAIL, "row-remap.channel-repair-pending"),
        ({"repairs": {"channel": False, "tpc": True}}, FAIL, "row-remap.tpc-repair-pending"),
        ({"bank_remaps": {**BANKS, "pending": 1}}, FAIL, "row-remap.bank-repair-pending"),
        ({"bank_remaps": {**BANKS, "none": 2}}, WARN, "row-remap.banks-none"),
        ({"row_histogram": {**HISTOGRAM, "none": 1}}, WARN, "row-remap.rows-none"),
        ({"row_histogram": {**HISTOGRAM, "low": 1}}, WARN, "row-remap.rows-low"),
        ({"row_histogram": {**HISTOGRAM, "high": 3, "partial": 1}}, PASS, ""),
        ({"repairs": Signal(reason="NVML: Invalid Argument", why="no-data")}, PASS, ""),
        ({"repairs": UNREAD}, ERROR, "repairs.unread"),
    ],
)
def test_what_newer_drivers_say_of_repairs(
    node: Node, put_gpu: Node, signals: dict[str, Any], status: str, code: str
) -> None:
    outcome = row_remap.judge(put_gpu(node("h100x8"), [2], **signals))
    assert (outcome.status, outcome.code) == (status, code)
    assert outcome.culprit.startswith("GPU 2 (" if code else "")


def test_an_older_driver_is_read_by_its_reset_status(node: Node, put_gpu: Node) -> None:
    old = put_gpu(node("h100x8"), range(8), recovery_action=UNSUPPORTED)
    quiet = put_gpu(old, range(8), reset_status={"reset": False, "drain_and_reset": False})
    assert recovery_action.judge(quiet).status == PASS
    for status, action in (
        ({"reset": True, "drain_and_reset": False}, "reset the GPU"),
        ({"reset": False, "drain_and_reset": True}, "drain and reset"),
    ):
        outcome = recovery_action.judge(put_gpu(quiet, [4], reset_status=status))
        assert (outcome.status, outcome.value) == (FAIL, action)
    assert recovery_action.judge(put_gpu(quiet, [4], reset_status=UNREAD)).status == ERROR
    assert recovery_action.judge(put_gpu(node("h100x8"), [4], reset_status=UNREAD)).status == PASS


def test_each_sick_gpu_and_each_unread_one_is_a_finding(node: Node, put_gpu: Node) -> None:
    view = put_gpu(node("a100x8"), [1], remapped_rows={**ROWS, "pending": 1})
    view = put_gpu(put_gpu(view, [5], remapped_rows={**ROWS, "failed": 1}), [6], remapped_rows=UNREAD)
    outcome = row_remap.judge(view)
    assert [(f.status, f.code, f.culprit[:5]) for f in outcome.findings] == [
        (FAIL, "row-remap.failed", "GPU 5"),
        (FAIL, "row-remap.pending", "GPU 1"),
        (ERROR, "remapped-rows.unread", "GPU 6"),
    ]
    assert outcome.details["gpus"] == [view.snapshot.gpus[i].uuid for i in (5, 1)]


@each("name", ["ecc_volatile_uncorrected", "ecc_aggregate_uncorrected", "ecc_sram", "ecc_mode"])
def test_no_count_that_cannot_be_read_passes(node: Node, put_gpu: Node, name: str) -> None:
    unread = Signal(reason="NVML: Unknown Error", why="failed")
    outcome = ecc.judge(put_gpu(node("a100x8"), [3], **{name: unread}))
    assert (outcome.status, outcome.code) == (ERROR, f"{name.replace('_', '-')}.unread")
    assert "GPU 3" in outcome.culprit
    none = Signal(reason="NVML: Not Supported", why="unsupported")
    assert ecc.judge(put_gpu(node("a100x8"), [3], **{name: none})).status == PASS
