"""GPU memory goes bad slowly: bits that can be corrected, then bits that cannot, then a job that ends or lies.

Seen in the wild: uncorrected errors that a reset hid until the next job; SRAM, which has no spare rows, past the count
at which NVIDIA replaces the board; ECC switched off on one GPU of eight. Volatile counts begin with the driver's load.
"""

from __future__ import annotations

from typing import Final

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, warned, worst
from envcheck.checks.readings import gpu_readings, matrix_facts
from envcheck.counting import counted

CHECK = Check(promise="no GPU memory has errors that could not be corrected", level="quick", seconds=0.01, gpus=1)

_RESET: Final = "drain the node and reset these GPUs; replace one that does it again"
_REPLACE: Final = "have these GPUs replaced: NVML says that their SRAM is past its threshold"
_LIMIT: Final = Limit(
    0, "uncorrected errors", "NVIDIA GPU memory error management: a reset clears volatile ones", "at most"
)
_SRAM: Final = Limit(
    4, "uncorrected errors", "stas00/ml-engineering: more than 4 in SRAM over its life, replace it", "at most"
)
_UNIT: Final = "errors"
_WORN: Final = gpu_readings.Rule(failed, "ecc.sram", "worn SRAM: {gpu} {value} errors", _REPLACE, _SRAM, _UNIT)
_FRESH: Final = gpu_readings.Rule(
    failed, "ecc.uncorrected", "uncorrected errors since the driver's load: {gpu} {value}", _RESET, _LIMIT, _UNIT
)
_PAST: Final = gpu_readings.Rule(
    warned,
    "ecc.past",
    "uncorrected errors in the past: {gpu} {value}",
    "watch it; run the full level on these GPUs",
    _LIMIT,
    _UNIT,
)
_OFF: Final = gpu_readings.Rule(
    warned,
    "ecc.off",
    "ECC is off on {gpu}",
    "nvidia-smi --ecc-config=1, then reset; or say with --skip ecc that you want it so",
)


def judge(view: View) -> Outcome:
    """Fail on uncorrected errors since the driver was loaded and on worn SRAM, warn on a history of them."""
    now, ever = (
        gpu_readings.read(view, "ecc_volatile_uncorrected"),
        gpu_readings.read(view, "ecc_aggregate_uncorrected", newer=True),
    )
    sram, mode = gpu_readings.read(view, "ecc_sram", newer=True), gpu_readings.read(view, "ecc_mode", newer=True)
    worn = sram.where(lambda s: s["threshold_exceeded"] or not s["uncorrectable"] <= _SRAM.value)
    fresh = now.where(lambda count: not count <= 0)
    past = {gpu: count for gpu, count in ever.values.items() if not count <= 0 and gpu not in fresh}
    findings = [
        *sram.blame({gpu: state["uncorrectable"] for gpu, state in worn.items()}, _WORN),
        *now.blame(fresh, _FRESH),
        *(finding for reading in (now, ever, sram, mode) for finding in reading.lacking()),
        *now.blame(_uncounted(view, mode), _OFF),
        *ever.blame(past, _PAST),
    ]
    corrected = sum(gpu_readings.read(view, "ecc_volatile_corrected").values.values())
    text = f"no uncorrected error on {counted(len(now.values), 'GPU')}, {corrected} corrected"
    return worst(findings, now.absent() or passed(text, value=0, unit=_LIMIT.unit, limit=_LIMIT))


def _uncounted(view: View, mode: gpu_readings.Reading) -> dict[str, str]:
    """Return the data-centre GPUs whose ECC is off; boards for workstations and desktops come with it off."""
    names = gpu_readings.read(view, "name").values
    off = mode.where(lambda word: word == "off")
    return {
        gpu: word for gpu, word in off.items() if matrix_facts.is_datacenter(view, str(names.get(gpu))) is not False
    }
