"""A PCIe bridge with Access Control Services sends what one GPU writes to its neighbour up to the CPU and back.

NCCL's first transfer hangs until ACS is off (NVIDIA/nccl#2079). Virtual machines need it: there it is reported.
"""

from typing import Any

from envcheck.checks import Check, Limit, Outcome, View, passed, skipped, warned, worst
from envcheck.checks.gpu_readings import pairs_of_gpus, reachable, unreadable
from envcheck.counting import counted

CHECK = Check("no PCIe bridge above several GPUs turns their transfers back to the CPU", "quick", 0.01, gpus=2)

_SOURCE = "NVIDIA NCCL user guide, Troubleshooting, PCI Access Control Services: disable ACS on bare metal"
_LIMIT = Limit(0, "bridges", _SOURCE, "equal")
_REDIRECTS = ("request redirect", "completion redirect")
_SHOWN = 4
_FIX = (
    "switch ACS off in the BIOS (often with VT-d or the IOMMU), or on this bridge after each boot: "
    "`setpci -s BRIDGE ECAP_ACS+0x6.w=0000`"
)


def judge(view: View) -> Outcome:
    """Warn on bare metal of each bridge that redirects, by address; elsewhere say why that is no fault."""
    missing = unreadable(view, "pci.acs", "run as root, outside a container or in one that sees the host's /sys")
    if missing is not None:
        return missing
    bridges = view.snapshot.signal("pci.acs").value
    if not bridges:
        return skipped("the PCI bus shows no bridge above a GPU here", code="acs.no-bridge")
    redirecting = [bridge for bridge in bridges if any(word in bridge["enabled"] for word in _REDIRECTS)]
    harmless = _harmless(view) if redirecting else ""
    if harmless:
        addresses = ", ".join(bridge["bus_id"] for bridge in redirecting[:_SHOWN])
        summary = f"ACS redirects on {len(redirecting)} of {counted(len(bridges), 'bridge')} above GPUs: {addresses}"
        return skipped(f"{summary}; {harmless}", code="acs.harmless")
    sound = f"none of {counted(len(bridges), 'bridge')} above the GPUs redirects"
    return worst(map(_finding, redirecting), passed(sound, value=0, limit=_LIMIT))


def _finding(bridge: dict[str, Any]) -> Outcome:
    address, below = bridge["bus_id"], sorted(bridge["gpus"])
    text = f"ACS on the PCIe bridge {address} redirects what {counted(len(below), 'GPU')} below it send"
    enabled = [word for word in _REDIRECTS if word in bridge["enabled"]]
    about: dict[str, Any] = {"enabled": enabled, "bridges": [address], "below": below}
    culprit, fix = f"PCIe bridge {address}", _FIX.replace("BRIDGE", address)
    return warned(text, fix=fix, value=1, limit=_LIMIT, code="acs.redirects", culprit=culprit, **about)


def _harmless(view: View) -> str:
    virtual = view.snapshot.signal("host.hypervisor").value
    if virtual is not False:
        return "a virtual machine's host needs it" if virtual else "whether this is a virtual machine is unknown"
    pairs = pairs_of_gpus(view)
    alone = isinstance(pairs, list) and not any(map(reachable, pairs))
    return "these GPUs have no peer-to-peer to turn back" if alone else ""
