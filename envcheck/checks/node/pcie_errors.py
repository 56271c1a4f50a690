"""A PCIe link with a bad contact works, by sending again and again what did not arrive.

Seen in the wild: replay counters in the thousands behind "random" slow copies; AER fatal errors before a GPU falls off
the bus. Counters begin with the driver's load (replays) or with boot (AER).
"""

from __future__ import annotations

from typing import Any, Final

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, warned, worst
from envcheck.checks.readings import gpu_readings

CHECK = Check(promise="the PCIe links carry data without errors", level="quick", seconds=0.01, gpus=1)

_REPLAYS: Final = Limit(80, "replays", "NVIDIA/DCGM diag, pcie test: at most 80 replays", "at most")
_AER: Final = Limit(480, "errors", "NVIDIA/DCGM diag, pcie test: at most 480 correctable AER errors", "at most")
_NONE: Final = Limit(0, "errors", "PCI Express: an uncorrectable error has lost data", "at most")
_FIX: Final = "reseat the board or its riser; exchange it with a good one to see whether slot or board is at fault"


def judge(view: View) -> Outcome:
    """Fail on fatal AER errors; warn on replays and correctable errors past what DCGM allows, and on nonfatal ones."""
    bus = view.snapshot.signal("pci.gpus").value
    aer = {str(gpu["bus_id"]): gpu["aer"] for gpu in ([] if bus is None else bus)}
    replays = gpu_readings.read(view, "pcie_replays")
    findings = [*replays.lacking(), *_aer(view, aer)]
    replaying = replays.where(lambda count: not count <= _REPLAYS.value)
    findings += replays.blame(
        replaying,
        gpu_readings.Rule(warned, "pcie-errors.replays", "replays: {gpu} {value}", _FIX, _REPLAYS, _REPLAYS.unit),
    )
    counted = "AER counts nothing worse" if _counts(aer, "fatal") else "the kernel shows no AER counters"
    most = max(replays.values.values(), default=0)
    sound = passed(f"at most {most} replays; {counted}", value=most, unit="replays", limit=_REPLAYS)
    return worst(findings, replays.absent() or sound)


def _aer(view: View, aer: dict[str, Any]) -> list[Outcome]:
    """Return one finding for each GPU on the bus and kind of error."""
    rules = (("fatal", _NONE, failed), ("nonfatal", _NONE, warned), ("correctable", _AER, warned))
    return [
        verdict(
            f"{kind} AER errors: {place} {count}",
            fix=_FIX,
            value=count,
            unit=limit.unit,
            limit=limit,
            code=f"pcie-errors.{kind}",
            culprit=gpu_readings.place(view, place),
            gpus=gpu_readings.at(view, [place]),
        )
        for kind, limit, verdict in rules
        for place, count in _counts(aer, kind).items()
        if not count <= limit.value
    ]


def _counts(aer: dict[str, Any], kind: str) -> dict[str, int]:
    return {place: counts[kind] for place, counts in aer.items() if counts.get(kind) is not None}
