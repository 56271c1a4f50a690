"""GPU memory goes bad slowly: bits that can be corrected, then bits that cannot, then a job that ends or lies.

Seen in the wild: uncorrected errors that a reset hid until the next job; SRAM, which has no spare rows, past the count
at which NVIDIA replaces the board; ECC switched off on one GPU of eight. Volatile counts begin with the driver's load.
"""

from __future__ import annotations

from typing import Final

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, warned
from envcheck.checks.node import _facts, _gpus
from envcheck.matrix.gpus import find_gpu

CHECK = Check(promise="no GPU memory has errors that could not be corrected", level="quick", seconds=0.01, gpus=1)

_RESET: Final = "drain the node and reset these GPUs; replace one that does it again"
_REPLACE: Final = "have these GPUs replaced: NVML says that their SRAM is past its threshold"
_LIMIT: Final = Limit(
    0, "uncorrected errors", "NVIDIA GPU memory error management: a reset clears volatile ones", "at most"
)
_SRAM: Final = Limit(
    4, "uncorrected errors", "stas00/ml-engineering: more than 4 in SRAM over its life, replace it", "at most"
)


def judge(view: View) -> Outcome:
    """Fail on uncorrected errors since the driver was loaded and on worn SRAM, warn on a history of them."""
    now, ever = _gpus.read(view, "ecc_volatile_uncorrected"), _gpus.read(view, "ecc_aggregate_uncorrected")
    sram = _gpus.read(view, "ecc_sram")
    worn = sram.where(lambda s: s["threshold_exceeded"] or not s["uncorrectable"] <= _SRAM.value)
    if worn:
        counts = {gpu: state["uncorrectable"] for gpu, state in worn.items()}
        return _bad(view, f"worn SRAM: {_gpus.told(counts, 'errors')}", _REPLACE, counts, _SRAM)
    fresh = now.where(lambda count: not count <= 0)
    if fresh:
        return _bad(view, f"uncorrected errors since the driver's load: {_gpus.told(fresh)}", _RESET, fresh, _LIMIT)
    return (now.lacking() if now.unread else None) or _past(view, now, ever)


def _past(view: View, now: _gpus.Reading, ever: _gpus.Reading) -> Outcome:
    off, old = _switched_off(view), ever.where(lambda count: not count <= 0)
    if off:
        fix = "nvidia-smi --ecc-config=1, then reset; or say with --skip ecc that you want it so"
        return warned(f"ECC is off on {', '.join(off)}", fix=fix, value=len(off), unit="GPUs")
    if old:
        fix = "watch it; run the full level on these GPUs"
        told, gpus = f"uncorrected errors in the past: {_gpus.told(old)}", _gpus.uuids(view, old)
        return warned(told, fix=fix, value=max(old.values()), unit=_LIMIT.unit, limit=_LIMIT, gpus=gpus)
    lacking = now.lacking()
    if lacking is not None:
        return lacking
    corrected = sum(_gpus.read(view, "ecc_volatile_corrected").values.values())
    summary = f"no uncorrected error on {len(now.values)} GPU(s), {corrected} corrected"
    return passed(summary, value=0, unit=_LIMIT.unit, limit=_LIMIT)


def _switched_off(view: View) -> list[str]:
    """Return the data-centre GPUs whose ECC is off; a GeForce comes with it off, or without it."""
    off = _gpus.read(view, "ecc_mode").where(lambda word: word == "off")
    known = {
        _gpus.label(gpu): find_gpu(_facts.matrix(view), str(gpu.signal("name").value)) for gpu in view.snapshot.gpus
    }
    return [gpu for gpu in off if (model := known[gpu]) is None or model.datacenter]


def _bad(view: View, why: str, fix: str, counts: dict[str, int], limit: Limit) -> Outcome:
    value = max(counts.values())
    return failed(why, fix=fix, value=value, unit=limit.unit, limit=limit, gpus=_gpus.uuids(view, counts))
