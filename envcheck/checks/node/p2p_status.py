"""GPUs that could reach each other's memory and may not: every transfer takes the way through the host.

GeForce cards have none by design, nor most virtual machines over PCIe: that is reported and does not fail.
"""

from collections.abc import Callable

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, skipped, warned, worst
from envcheck.checks.gpu_readings import Pair, about, label, pairs_of_gpus, reachable, read, uuids_of_pair
from envcheck.checks.node.nvlink import board
from envcheck.counting import counted

CHECK = Check("every pair of GPUs that should reach each other's memory may", "quick", 0.01, gpus=2)

_UNIT = "pairs without"
_ALL = Limit(0, _UNIT, "NVIDIA NVML: GPUs with NVLinks up between them have peer-to-peer", "equal")
_ALIKE = Limit(0, _UNIT, "other pairs of this node on the same kind of path have it", "equal")
_FIX = (
    "compare `nvidia-smi topo -m` with `nvidia-smi topo -p2p r`; look at NVreg_RegistryDwords in /etc/modprobe.d, at "
    "the fabric manager, and at the slot of the odd GPU"
)


def judge(view: View) -> Outcome:
    """Fail where GPUs with NVLinks up may not reach each other; warn of a pair that is worse off than its like."""
    if read(view, "mig_mode").where(lambda mode: mode == "on"):
        return skipped("MIG is on: its instances cannot reach each other", code="gpu.mig")
    pairs = pairs_of_gpus(view)
    if isinstance(pairs, Outcome):
        return pairs
    paths = {pair["path"] for pair in pairs if reachable(pair)}
    without, findings = [pair for pair in pairs if not reachable(pair)], _apart(view, pairs)
    for pair in without:
        if _linked(view, pair):
            findings.append(_finding(view, pair, _ALL, failed, "p2p-status.nvlink"))
        elif pair["path"] in paths:
            findings.append(_finding(view, pair, _ALIKE, warned, "p2p-status.odd"))
    total = counted(len(pairs), "pair")
    if not without and not findings:
        return passed(f"every pair has it ({total}): {_over(pairs)}", value=0, limit=_ALL)
    if not findings and len(without) == len(pairs):
        why = ", ".join(sorted(set(map(_why, without))))
        text = f"no pair of these GPUs has it ({why}): NCCL goes through the host's memory"
        return skipped(text, code="peer-to-peer.none")
    text = f"{len(pairs) - len(without)} of {total} with it, all on one kind of path: {_over(pairs)}"
    return worst(findings, passed(text, value=0, limit=_ALIKE))


def _apart(view: View, pairs: list[Pair]) -> list[Outcome]:
    """Fail on a GPU without NVLink to any other, on a board whose others all have it to each other."""
    linked = [{pair["a"], pair["b"]} for pair in pairs if pair["nvlink"] == "ok"]
    apart = [gpu for gpu in view.snapshot.gpus if not any(gpu.signal("index").value in ends for ends in linked)]
    models, others = {str(gpu.signal("name").value) for gpu in view.snapshot.gpus}, len(view.snapshot.gpus) - 1
    if any("V100-SXM2" in model or "P100-SXM2" in model for model in models):
        return []  # A hybrid cube mesh: no GPU of it has NVLinks to all others, and some have one to none of a part.
    if len(apart) != 1 or others < 2 or len(linked) != others * (others - 1) // 2 or not all(map(board, models)):  # noqa: PLR2004 (a pair)
        return []
    text = f"{label(apart[0])} reaches the others over PCIe only; they reach each other over NVLink"
    return [failed(text, fix=_FIX, value=others, limit=_ALL, code="p2p-status.apart", **about(apart[0]))]


def _why(pair: Pair) -> str:
    return next((str(pair[word]) for word in ("read", "write") if pair[word] != "ok"), "ok")


def _finding(view: View, pair: Pair, limit: Limit, verdict: Callable[..., Outcome], code: str) -> Outcome:
    ends = f"GPU {pair['a']} - GPU {pair['b']}"
    text, gpus = f"no peer-to-peer: {ends} ({_why(pair)})", uuids_of_pair(view, pair)
    return verdict(text, fix=_FIX, value=1, limit=limit, code=code, culprit=ends, gpus=gpus)


def _linked(view: View, pair: Pair) -> bool:
    """Return whether NVLinks join the two: NVML says so, or both hang on NVSwitches only."""
    ends = uuids_of_pair(view, pair)
    remotes = [gpu.signal("nvlink_remotes").value for gpu in view.snapshot.gpus if gpu.uuid in ends]
    return pair["nvlink"] == "ok" or all(far and set(far) == {"switch"} for far in remotes)


def _over(pairs: list[Pair]) -> str:
    linked = sum(pair["nvlink"] == "ok" for pair in pairs if reachable(pair))
    over_pcie = sum(map(reachable, pairs)) - linked
    return ", ".join([f"{linked} over NVLink"] * bool(linked) + [f"{over_pcie} over PCIe"] * bool(over_pcie))
