"""A GPU replaces bad rows of its memory by spare ones, at the next reset; when the spares are used up, it is worn out.

Seen in the wild: "remap pending" for weeks on a node that nobody reset, so that each job met the same bad row; a failed
remapping taken for a software fault. GPUs before Ampere retire pages instead, 64 in all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, warned, worst
from envcheck.checks.readings import gpu_readings

CHECK = Check(
    promise="no memory row or page waits for its replacement, and spares are left", level="quick", seconds=0.01, gpus=1
)

_DCGM: Final = "NVIDIA/DCGM diag: rows remapped for uncorrectable errors below 512, retired pages below 63"
_NVIDIA: Final = "NVIDIA GPU memory error management: row remapping"
_ROWS: Final = Limit(512, "rows", _DCGM, "at most")
_PAGES: Final = Limit(62, "pages", _DCGM, "at most")
_NONE: Final = Limit(0, "GPUs", _NVIDIA, "equal")
_BANKS: Final = Limit(0, "banks", f"{_NVIDIA}; NVML: nvmlRowRemapperHistogramValues_t, none and low", "equal")
_REPAIR: Final = Limit(0, "GPUs", "NVML: nvmlRepairStatus_v1_t; a reset makes the repair", "equal")
_RESET: Final = "drain the node and reset these GPUs (nvidia-smi --gpu-reset): the replacement happens then"
_REPLACE: Final = "have these GPUs replaced: there is no spare memory left where it is needed"
_WATCH: Final = "watch it; run the full level on these GPUs"
_THIN: Final = "plan the replacement of these GPUs: the next bad row of such a bank cannot be remapped"
_Holds = Callable[[dict[str, Any]], Any]


def judge(view: View) -> Outcome:
    """Fail on failed, pending and used-up replacements; warn where data was lost once and where spares run out."""
    rows, pages = gpu_readings.read(view, "remapped_rows"), gpu_readings.read(view, "retired_pages")
    main = rows if rows.values or rows.unread or not pages.values else pages
    sound = main.absent() or passed("nothing is pending, nothing failed", value=0, unit=_unit(main), limit=_limit(main))
    findings = [
        *main.lacking(),
        *_replacements(rows, pages),
        *_spares(rows, _ROWS, "row-remap.used-up", lambda r: r["uncorrectable"]),
        *_spares(pages, _PAGES, "row-remap.pages-used-up", lambda p: p["single_bit"] + p["double_bit"]),
        *_repairs(view),
        *_banks(view),
        *_lost_data(rows, pages),
    ]
    return worst(findings, sound)


def _limit(main: gpu_readings.Reading) -> Limit:
    return _PAGES if main.name == "retired_pages" else _ROWS


def _unit(main: gpu_readings.Reading) -> str:
    return _limit(main).unit


def _replacements(rows: gpu_readings.Reading, pages: gpu_readings.Reading) -> list[Outcome]:
    rules: tuple[tuple[gpu_readings.Reading, str, str, str, str], ...] = (
        (rows, "failed", "row-remap.failed", "a row could not be remapped", _REPLACE),
        (rows, "pending", "row-remap.pending", "a row waits to be remapped", _RESET),
        (pages, "pending", "row-remap.page-pending", "a page waits for its retirement", _RESET),
    )
    return [
        finding
        for reading, field, code, subject, fix in rules
        for finding in reading.blame(
            _counts(reading, field), gpu_readings.Rule(failed, code, f"{subject}: {{gpu}}", fix, _NONE)
        )
    ]


def _counts(reading: gpu_readings.Reading, field: str) -> dict[str, int]:
    """Return the GPUs for which a field is more than zero, or true."""
    return {gpu: int(value[field]) for gpu, value in reading.values.items() if value[field]}


def _spares(reading: gpu_readings.Reading, limit: Limit, code: str, count: _Holds) -> list[Outcome]:
    worn = {gpu: count(value) for gpu, value in reading.values.items() if not count(value) <= limit.value}
    text = f"spares are used up: {{gpu}} {{value}} {limit.unit}"
    return reading.blame(worn, gpu_readings.Rule(failed, code, text, _REPLACE, limit, limit.unit))


def _repairs(view: View) -> list[Outcome]:
    """Judge what only newer drivers report: memory that cannot be repaired, and repairs that wait for a reset."""
    repairs, banks = gpu_readings.read(view, "repairs", newer=True), gpu_readings.read(view, "bank_remaps", newer=True)
    broken = gpu_readings.read(view, "unrepairable_memory", newer=True)
    findings = [f for reading in (repairs, banks, broken) for f in reading.lacking()]
    rule = gpu_readings.Rule(failed, "row-remap.unrepairable", "memory that cannot be repaired: {gpu}", _REPLACE, _NONE)
    findings += broken.blame(broken.where(bool), rule)
    for reading, field, code, subject in (
        (repairs, "channel", "row-remap.channel-repair-pending", "a memory channel"),
        (repairs, "tpc", "row-remap.tpc-repair-pending", "a TPC"),
        (banks, "pending", "row-remap.bank-repair-pending", "a memory bank"),
    ):
        text = f"{subject} waits for its repair: {{gpu}}"
        rule = gpu_readings.Rule(failed, code, text, _RESET, _REPAIR)
        findings += reading.blame(_counts(reading, field), rule)
    return findings


def _banks(view: View) -> list[Outcome]:
    """Warn of banks that have no spare row left, and of those that have few."""
    rows, banks = (
        gpu_readings.read(view, "row_histogram", newer=True),
        gpu_readings.read(view, "bank_remaps", newer=True),
    )
    findings = rows.lacking()
    for reading, field, code, subject in (
        (rows, "none", "row-remap.rows-none", "banks without a spare row"),
        (rows, "low", "row-remap.rows-low", "banks with few spare rows"),
        (banks, "none", "row-remap.banks-none", "groups without a spare bank"),
    ):
        text = f"{subject}: {{gpu}} {{value}}"
        findings += reading.blame(
            _counts(reading, field), gpu_readings.Rule(warned, code, text, _THIN, _BANKS, _BANKS.unit)
        )
    return findings


def _lost_data(rows: gpu_readings.Reading, pages: gpu_readings.Reading) -> list[Outcome]:
    findings = []
    for reading, field, limit in ((rows, "uncorrectable", _ROWS), (pages, "double_bit", _PAGES)):
        text = f"repaired after errors that lost data: {{gpu}} {{value}} {limit.unit}"
        rule = gpu_readings.Rule(warned, "row-remap.lost-data", text, _WATCH, limit, limit.unit)
        findings += reading.blame(_counts(reading, field), rule)
    return findings
