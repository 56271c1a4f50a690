"""A PCIe link with a bad contact works, by sending again and again what did not arrive.

Counters begin with the driver's load (replays) or with boot (AER).
"""

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, warned, worst
from envcheck.checks.gpu_readings import Rule, read

CHECK = Check("the PCIe links carry data without errors", "quick", 0.01, gpus=1)

_REPLAYS = Limit(80, "replays", "NVIDIA/DCGM diag, pcie test: at most 80 replays", "at most")
_AER = Limit(480, "errors", "NVIDIA/DCGM diag, pcie test: at most 480 correctable AER errors", "at most")
_NONE = Limit(0, "errors", "PCI Express: an uncorrectable error has lost data", "at most")
_FIX = "reseat the board or its riser; exchange it with a good one to see whether slot or board is at fault"
_REPLAYED = Rule(warned, "pcie-errors.replays", "replays: {gpu} {value}", _FIX, _REPLAYS)
_KINDS = (("fatal", _NONE, failed), ("nonfatal", _NONE, warned), ("correctable", _AER, warned))


def judge(view: View) -> Outcome:
    """Fail on fatal AER errors; warn on replays and correctable errors past what DCGM allows, and on nonfatal ones."""
    gpus, replays = view.snapshot.signal("pci.gpus").value or [], read(view, "pcie_replays")
    findings = replays.lacking()
    for kind, limit, verdict in _KINDS:
        rule = Rule(verdict, f"pcie-errors.{kind}", f"{kind} AER errors: {{gpu}} {{value}}", _FIX, limit)
        counts = [(gpu["bus_id"], gpu["aer"].get(kind)) for gpu in gpus]
        findings += [rule.at(view, bus_id, count) for bus_id, count in counts if count and count > limit.value]
    findings += replays.blame(replays.where(lambda count: count > _REPLAYS.value), _REPLAYED)
    shown = any(gpu["aer"].get("fatal") is not None for gpu in gpus)
    counted = "AER counts nothing worse" if shown else "the kernel shows no AER counters"
    most = max(replays.values.values(), default=0)
    return worst(findings, replays.absent() or passed(f"at most {most} replays; {counted}", value=most, limit=_REPLAYS))
