"""An IOMMU that translates stands between GPUs which reach each other over PCIe: transfers hang, or bring other bytes.

NCCL hangs at its first transfer (NVIDIA/nccl#631). NVLink does not go through it; virtual machines need it.
"""

from envcheck.checks import Check, Limit, Outcome, View, passed, skipped, warned, worst
from envcheck.checks.gpu_readings import Pair, Rule, at, pairs_of_gpus, reachable, unreadable, uuids_of_pair
from envcheck.counting import counted

CHECK = Check("no IOMMU translates between GPUs that reach each other over PCIe", "quick", 0.01, gpus=2)

_SOURCE = "NVIDIA CUDA C++ Programming Guide, IOMMU on Linux: no peer-to-peer over PCIe with it on bare metal"
_LIMIT = Limit(0, "GPUs behind one", _SOURCE, "equal")
_FIX = "boot with iommu=pt (pass through), or with the IOMMU off in the BIOS"


def judge(view: View) -> Outcome:
    """Warn on bare metal of each GPU that reaches another over PCIe and for which the IOMMU translates."""
    missing = unreadable(view, "pci.iommu", "run where /sys of the host is to be seen")
    if missing is not None:
        return missing
    groups = view.snapshot.signal("pci.iommu").value
    if not groups:
        return skipped("the PCI bus shows no GPU here", code="pci.no-gpu")
    behind = sorted(gpu for gpu, kind in groups.items() if str(kind).startswith("DMA"))
    if behind:
        return _translates(view, behind)
    how = "passes through for" if "identity" in groups.values() else "is off for, or has no group of,"
    return passed(f"the IOMMU {how} {counted(len(groups), 'GPU')}", value=0, limit=_LIMIT)


def _translates(view: View, behind: list[str]) -> Outcome:
    pairs, summary = pairs_of_gpus(view), f"the IOMMU translates for {', '.join(behind[:4])}"
    if view.snapshot.signal("host.hypervisor").value is not False:
        return skipped(f"{summary}; not known to be bare metal", code="iommu.virtual-machine")
    if isinstance(pairs, Outcome):
        text = f"{summary}; which GPUs reach each other over PCIe is not known: {pairs.summary}"
        return skipped(text, code="iommu.peers-unknown")
    over_pcie = [pair for pair in pairs if reachable(pair) and pair["nvlink"] != "ok"]
    findings = [finding for address in behind for finding in _finding(view, address, over_pcie)]
    return worst(findings, passed(f"{summary}; none of them reaches another over PCIe", value=0, limit=_LIMIT))


def _finding(view: View, address: str, over_pcie: list[Pair]) -> list[Outcome]:
    here = set(at(view, [address]))
    visible = [pair for pair in over_pcie if not here or here & set(uuids_of_pair(view, pair))]
    text = f"the IOMMU translates for {address}, which reaches other GPUs over PCIe ({counted(len(visible), 'pair')})"
    return [Rule(warned, "iommu.translates", text, _FIX, _LIMIT).at(view, address)] if visible else []
