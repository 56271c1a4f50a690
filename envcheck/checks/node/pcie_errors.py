"""A PCIe link with a bad contact works, by sending again and again what did not arrive.

Seen in the wild: replay counters in the thousands behind "random" slow copies; AER fatal errors before a GPU falls off
the bus. Counters begin with the driver's load (replays) or with boot (AER).
"""

from __future__ import annotations

from typing import Any, Final

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, warned
from envcheck.checks.node import _gpus

CHECK = Check(promise="the PCIe links carry data without errors", level="quick", seconds=0.01, gpus=1)

_REPLAYS: Final = Limit(80, "replays", "NVIDIA/DCGM diag, pcie test: at most 80 replays", "at most")
_AER: Final = Limit(480, "errors", "NVIDIA/DCGM diag, pcie test: at most 480 correctable AER errors", "at most")
_NONE: Final = Limit(0, "errors", "PCI Express: an uncorrectable error has lost data", "at most")
_FIX: Final = "reseat the board or its riser; exchange it with a good one to see whether slot or board is at fault"


def judge(view: View) -> Outcome:
    """Fail on fatal AER errors; warn on replays and correctable errors past what DCGM allows, and on nonfatal ones."""
    bus = view.snapshot.signal("pci.gpus").value
    aer = {str(gpu["bus_id"]): gpu["aer"] for gpu in ([] if bus is None else bus)}
    replays = _gpus.read(view, "pcie_replays")
    rules: tuple[tuple[str, dict[str, Any], Limit], ...] = (
        ("fatal AER errors", _counts(aer, "fatal"), _NONE),
        ("nonfatal AER errors", _counts(aer, "nonfatal"), _NONE),
        ("correctable AER errors", _counts(aer, "correctable"), _AER),
        ("replays", replays.values, _REPLAYS),
    )
    for what, counts, limit in rules:
        bad = {place: count for place, count in counts.items() if not count <= limit.value}
        if bad:
            verdict = failed if what.startswith("fatal") else warned
            told = f"{what}: {_gpus.told(bad)}"
            gpus = _gpus.uuids(view, bad) if what == "replays" else _gpus.at(view, bad)
            return verdict(told, fix=_FIX, value=max(bad.values()), unit=limit.unit, limit=limit, gpus=gpus)
    lacking = replays.lacking()
    if lacking is not None:
        return lacking
    counted = "AER counts nothing worse" if _counts(aer, "fatal") else "the kernel shows no AER counters"
    worst = max(replays.values.values())
    return passed(f"at most {worst} replays; {counted}", value=worst, unit="replays", limit=_REPLAYS)


def _counts(aer: dict[str, Any], kind: str) -> dict[str, int]:
    return {place: counts[kind] for place, counts in aer.items() if counts.get(kind) is not None}
