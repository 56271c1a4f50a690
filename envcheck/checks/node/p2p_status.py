"""GPUs that could reach each other's memory and may not: every transfer takes the way through the host.

Seen in the wild: one GPU of eight behind another root complex after a board was moved, peer-to-peer switched off by a
driver setting that somebody forgot, an NVLink bridge that the driver does not use. GeForce cards have none by design
and most virtual machines over PCIe have none either: that is reported and does not fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, skipped, warned, worst
from envcheck.checks.readings import gpu_readings
from envcheck.counting import counted

CHECK = Check(
    promise="every pair of GPUs that should reach each other's memory may", level="quick", seconds=0.01, gpus=2
)

_ALL: Final = Limit(0, "pairs without", "NVIDIA NVML: GPUs with NVLinks up between them have peer-to-peer", "equal")
_ALIKE: Final = Limit(0, "pairs without", "other pairs of this node on the same kind of path have it", "equal")
_FIX: Final = (
    "compare `nvidia-smi topo -m` with `nvidia-smi topo -p2p r`; look at NVreg_RegistryDwords in /etc/modprobe.d, at "
    "the fabric manager, and at the slot of the odd GPU"
)


def judge(view: View) -> Outcome:
    """Fail where GPUs with NVLinks up may not reach each other; warn of a pair that is worse off than its like."""
    if gpu_readings.read(view, "mig_mode").where(lambda mode: mode == "on"):
        return skipped("MIG is on: its instances cannot reach each other", code="gpu.mig")
    pairs = gpu_readings.pairs_of_gpus(view)
    if isinstance(pairs, Outcome):
        return pairs
    without = [pair for pair in pairs if not gpu_readings.reachable(pair)]
    if not without:
        return passed(
            f"every pair has it ({counted(len(pairs), 'pair')}): {_over(pairs)}",
            value=0,
            unit=_ALL.unit,
            limit=_ALL,
        )
    linked = [pair for pair in without if _linked(view, pair)]
    odd = [
        pair for pair in without if any(gpu_readings.reachable(peer) and peer["path"] == pair["path"] for peer in pairs)
    ]
    findings = [_finding(view, pair, _ALL, failed, "p2p-status.nvlink") for pair in linked]
    findings += [_finding(view, pair, _ALIKE, warned, "p2p-status.odd") for pair in odd if pair not in linked]
    if findings:
        return worst(findings, findings[0])
    if len(without) == len(pairs):
        why = sorted({gpu_readings.why_unreachable(pair) for pair in without})
        return skipped(
            f"no pair of these GPUs has it ({', '.join(why)}): NCCL goes through the host's memory",
            code="peer-to-peer.none",
        )
    return passed(
        f"{len(pairs) - len(without)} of {counted(len(pairs), 'pair')} with it, "
        f"all on one kind of path: {_over(pairs)}",
        value=0,
        unit=_ALIKE.unit,
        limit=_ALIKE,
    )


def _finding(view: View, pair: gpu_readings.Pair, limit: Limit, verdict: Callable[..., Outcome], code: str) -> Outcome:
    return verdict(
        f"no peer-to-peer: {gpu_readings.listed_pairs([pair])}",
        fix=_FIX,
        value=1,
        unit=limit.unit,
        limit=limit,
        code=code,
        culprit=f"GPU {pair['a']} - GPU {pair['b']}",
        gpus=gpu_readings.uuids_of_pairs(view, [pair]),
    )


def _linked(view: View, pair: gpu_readings.Pair) -> bool:
    """Return whether NVLinks join the two: NVML says so, or both hang on NVSwitches only."""
    ends = [gpu for gpu in view.snapshot.gpus if gpu.signal("index").value in (pair["a"], pair["b"])]
    remotes = [gpu.signal("nvlink_remotes").value for gpu in ends]
    switched = all(isinstance(far, list) and bool(far) and set(far) == {"switch"} for far in remotes)
    return pair["nvlink"] == "ok" or switched


def _over(pairs: list[gpu_readings.Pair]) -> str:
    linked = sum(pair["nvlink"] == "ok" for pair in pairs if gpu_readings.reachable(pair))
    over_pcie = sum(map(gpu_readings.reachable, pairs)) - linked
    counts = [f"{linked} over NVLink"] * bool(linked) + [f"{over_pcie} over PCIe"] * bool(over_pcie)
    return ", ".join(counts)
