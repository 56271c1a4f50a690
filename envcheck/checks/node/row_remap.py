"""A GPU replaces bad rows of its memory by spare ones, at the next reset; when the spares are used up, it is worn out.

Seen in the wild: "remap pending" for weeks on a node that nobody reset, so that each job met the same bad row; a failed
remapping taken for a software fault. GPUs before Ampere retire pages instead, 64 in all.
"""

from __future__ import annotations

from typing import Any, Final

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, warned
from envcheck.checks.node import _gpus

CHECK = Check(
    promise="no memory row or page waits for its replacement, and spares are left", level="quick", seconds=0.01, gpus=1
)

_DCGM: Final = "NVIDIA/DCGM diag: rows remapped for uncorrectable errors below 512, retired pages below 63"
_ROWS: Final = Limit(512, "rows", _DCGM, "at most")
_PAGES: Final = Limit(62, "pages", _DCGM, "at most")
_NONE: Final = Limit(0, "GPUs", "NVIDIA GPU memory error management: row remapping", "equal")
_RESET: Final = "drain the node and reset these GPUs (nvidia-smi --gpu-reset): the replacement happens then"
_REPLACE: Final = "have these GPUs replaced: there is no spare memory left where it is needed"


def judge(view: View) -> Outcome:
    """Fail on failed, pending and used-up replacements; warn on nothing: remapped rows are repaired rows."""
    rows, pages = _gpus.read(view, "remapped_rows"), _gpus.read(view, "retired_pages")
    for told, bad, fix in (
        ("a row could not be remapped", rows.where(lambda r: r["failed"]), _REPLACE),
        ("a row waits to be remapped", rows.where(lambda r: r["pending"]), _RESET),
        ("a page waits for its retirement", pages.where(lambda p: p["pending"]), _RESET),
    ):
        if bad:
            why, gpus = f"{told}: {', '.join(bad)}", _gpus.uuids(view, bad)
            return failed(why, fix=fix, value=len(bad), unit="GPUs", limit=_NONE, gpus=gpus)
    worn = rows.where(lambda r: not r["uncorrectable"] <= _ROWS.value)
    if worn:
        return _worn(view, {gpu: r["uncorrectable"] for gpu, r in worn.items()}, _ROWS)
    thin = pages.where(lambda p: not _retired(p) <= _PAGES.value)
    if thin:
        return _worn(view, {gpu: _retired(p) for gpu, p in thin.items()}, _PAGES)
    told_by = rows if rows.values or not pages.values else pages
    lacking = told_by.lacking()
    if lacking is not None:
        return lacking
    return _healthy(rows, pages)


def _retired(pages: dict[str, Any]) -> int:
    return int(pages["single_bit"]) + int(pages["double_bit"])


def _worn(view: View, counts: dict[str, int], limit: Limit) -> Outcome:
    why, worst = f"spares are used up: {_gpus.told(counts, limit.unit)}", max(counts.values())
    return failed(why, fix=_REPLACE, value=worst, unit=limit.unit, limit=limit, gpus=_gpus.uuids(view, counts))


def _healthy(rows: _gpus.Reading, pages: _gpus.Reading) -> Outcome:
    """Warn where a GPU has needed spares for errors that lost data, pass otherwise."""
    lost = {gpu: r["uncorrectable"] for gpu, r in rows.values.items() if r["uncorrectable"]}
    lost |= {gpu: p["double_bit"] for gpu, p in pages.values.items() if p["double_bit"]}
    limit = _ROWS if rows.values else _PAGES
    if lost:
        fix = "watch it; run the full level on these GPUs"
        told = f"repaired after errors that lost data: {_gpus.told(lost, limit.unit)}"
        return warned(told, fix=fix, value=max(lost.values()), unit=limit.unit, limit=limit)
    return passed("nothing is pending, nothing failed", value=0, unit=limit.unit, limit=limit)
