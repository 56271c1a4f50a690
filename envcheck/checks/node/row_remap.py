"""A GPU replaces bad rows of its memory by spare ones, at the next reset; when the spares are used up, it is worn out.

GPUs before Ampere retire pages instead, 64 in all.
"""

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, warned, worst
from envcheck.checks.gpu_readings import Reading, Rule, read

CHECK = Check("no memory row or page waits for its replacement, and spares are left", "quick", 0.01, gpus=1)

_DCGM = "NVIDIA/DCGM diag: rows remapped for uncorrectable errors below 512, retired pages below 63"
_NVIDIA = "NVIDIA GPU memory error management: row remapping"
_ROWS = Limit(512, "rows", _DCGM, "at most")
_PAGES = Limit(62, "pages", _DCGM, "at most")
_NONE = Limit(0, "GPUs", _NVIDIA, "equal")
_BANKS = Limit(0, "banks", f"{_NVIDIA}; NVML: nvmlRowRemapperHistogramValues_t, none and low", "equal")
_ONCE = Limit(0, "GPUs", "NVML: nvmlRepairStatus_v1_t; a reset makes the repair", "equal")
_RESET = "drain the node and reset these GPUs (`nvidia-smi --gpu-reset`): the replacement happens then"
_REPLACE = "have these GPUs replaced: there is no spare memory left where it is needed"
_WATCH = "watch it; run the full level on these GPUs"
_THIN = "plan the replacement of these GPUs: the next bad row of such a bank cannot be remapped"
_LOST = "repaired after errors that lost data: {gpu} {value}"
# The signal, its field, and what is said of a GPU where that is more than zero, or true. Those of _NEWER are read by
# newer drivers only.
_NEWER = ("repairs", "bank_remaps", "row_histogram")
RULES = (
    ("remapped_rows", "failed", failed, "row-remap.failed", "a row could not be remapped", _REPLACE, _NONE),
    ("remapped_rows", "pending", failed, "row-remap.pending", "a row waits to be remapped", _RESET, _NONE),
    ("retired_pages", "pending", failed, "row-remap.page-pending", "a page waits for its retirement", _RESET, _NONE),
    ("repairs", "channel", failed, "row-remap.channel-repair-pending", "a memory channel awaits repair", _RESET, _ONCE),
    ("repairs", "tpc", failed, "row-remap.tpc-repair-pending", "a TPC awaits repair", _RESET, _ONCE),
    ("bank_remaps", "pending", failed, "row-remap.bank-repair-pending", "a memory bank awaits repair", _RESET, _ONCE),
    ("row_histogram", "none", warned, "row-remap.rows-none", "banks without a spare row", _THIN, _BANKS),
    ("row_histogram", "low", warned, "row-remap.rows-low", "banks with few spare rows", _THIN, _BANKS),
    ("bank_remaps", "none", warned, "row-remap.banks-none", "groups without a spare bank", _THIN, _BANKS),
    ("remapped_rows", "uncorrectable", warned, "row-remap.lost-data", f"{_LOST} rows", _WATCH, _ROWS),
    ("retired_pages", "double_bit", warned, "row-remap.lost-data", f"{_LOST} pages", _WATCH, _PAGES),
)


def judge(view: View) -> Outcome:
    """Fail on failed, pending and used-up replacements; warn where data was lost once and where spares run out."""
    readings = {name: read(view, name, newer=name in _NEWER) for name, *_ in RULES}
    rows, pages = readings["remapped_rows"], readings["retired_pages"]
    main, limit = (rows, _ROWS) if rows.values or rows.unread or not pages.values else (pages, _PAGES)
    broken = read(view, "unrepairable_memory", newer=True)
    findings = [f for reading in (main, broken, *(readings[n] for n in _NEWER)) for f in reading.lacking()]
    for name, field, verdict, code, text, fix, bound in RULES:
        counts = {gpu: int(value[field]) for gpu, value in readings[name].values.items() if value[field]}
        words = text if "{gpu}" in text else text + (": {gpu}" if verdict is failed else ": {gpu} {value}")
        findings += readings[name].blame(counts, Rule(verdict, code, words, fix, bound))
    remapped = {gpu: row["uncorrectable"] for gpu, row in rows.values.items()}
    retired = {gpu: page["single_bit"] + page["double_bit"] for gpu, page in pages.values.items()}
    findings += _used_up(rows, remapped, _ROWS, "row-remap.used-up")
    findings += _used_up(pages, retired, _PAGES, "row-remap.pages-used-up")
    rule = Rule(failed, "row-remap.unrepairable", "memory that cannot be repaired: {gpu}", _REPLACE, _NONE)
    findings += broken.blame(broken.where(bool), rule)
    return worst(findings, main.absent() or passed("nothing is pending, nothing failed", value=0, limit=limit))


def _used_up(reading: Reading, counts: dict[str, int], limit: Limit, code: str) -> list[Outcome]:
    rule = Rule(failed, code, f"spares are used up: {{gpu}} {{value}} {limit.unit}", _REPLACE, limit)
    return reading.blame({gpu: count for gpu, count in counts.items() if count > limit.value}, rule)
