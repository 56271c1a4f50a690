"""GPU memory goes bad slowly: bits that can be corrected, then bits that cannot, then a job that ends or lies.

Past a count of errors in SRAM NVIDIA replaces the board. Volatile counts begin with the driver's load.
"""

from envcheck.checks import Check, Limit, Outcome, View, failed, matrix_facts, passed, warned, worst
from envcheck.checks.gpu_readings import Rule, read
from envcheck.counting import counted

CHECK = Check("no GPU memory has errors that could not be corrected", "quick", 0.01, gpus=1)

_RESET = "drain the node and reset these GPUs; replace one that does it again"
_REPLACE = "have these GPUs replaced: NVML says that their SRAM is past its threshold"
_WATCH = "watch it; run the full level on these GPUs"
_ON = "`nvidia-smi --ecc-config=1`, then reset; or say with `--skip ecc` that you want it so"
_UNIT = "uncorrected errors"
_LIMIT = Limit(0, _UNIT, "NVIDIA GPU memory error management: a reset clears volatile ones", "at most")
_SRAM = Limit(4, _UNIT, "stas00/ml-engineering: more than 4 in SRAM over its life, replace it", "at most")
_MANY = Limit(20_000_000, "corrected errors", "Azure azurehpc-health-checks: check_gpu_ecc 20000000", "at most")
_STALL = "plan its replacement: what asks for its state stalls under them, and DCGM calls it healthy (NVIDIA/DCGM#313)"
_WORN = Rule(failed, "ecc.sram", "worn SRAM: {gpu} {value} errors", _REPLACE, _SRAM)
_FRESH = Rule(failed, "ecc.uncorrected", "uncorrected errors since the driver's load: {gpu} {value}", _RESET, _LIMIT)


def judge(view: View) -> Outcome:
    """Fail on uncorrected errors since the driver was loaded and on worn SRAM, warn on a history of them.

    ECC that is off is named for data-centre GPUs; boards for workstations and desktops come with it off.
    """
    now, ever = read(view, "ecc_volatile_uncorrected"), read(view, "ecc_aggregate_uncorrected", newer=True)
    sram, mode = read(view, "ecc_sram", newer=True), read(view, "ecc_mode", newer=True)
    worn = sram.where(lambda state: state["threshold_exceeded"] or state["uncorrectable"] > _SRAM.value)
    fresh = now.where(lambda count: count > 0)
    corrected = read(view, "ecc_volatile_corrected")
    many = Rule(warned, "ecc.corrected", "corrected errors since the driver's load: {gpu} {value}", _STALL, _MANY)
    past = {gpu: count for gpu, count in ever.values.items() if count > 0 and gpu not in fresh}
    off = matrix_facts.unless_consumer(view, mode.where(lambda word: word == "off"))
    findings = [
        *sram.blame({gpu: state["uncorrectable"] for gpu, state in worn.items()}, _WORN),
        *now.blame(fresh, _FRESH),
        *(finding for reading in (now, ever, sram, mode) for finding in reading.lacking()),
        *now.blame(off, Rule(warned, "ecc.off", "ECC is off on {gpu}", _ON)),
        *corrected.blame(corrected.where(lambda count: count > _MANY.value), many),
        *ever.blame(past, Rule(warned, "ecc.past", "uncorrected errors in the past: {gpu} {value}", _WATCH, _LIMIT)),
    ]
    total = sum(corrected.values.values())
    text = f"no uncorrected error on {counted(len(now.values), 'GPU')}, {total} corrected"
    return worst(findings, now.absent() or passed(text, value=0, limit=_LIMIT))
