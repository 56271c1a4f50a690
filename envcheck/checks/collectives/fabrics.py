"""The network between hosts: which RDMA ports a node has, what NCCL made of them, and what they carry.

NCCL opens libibverbs and its plug-ins at run time. What is missing sends it to sockets, at 1 to 5 GB/s beside ports of
400 Gb/s, with a line at level INFO. The lines are those of NCCL 2.14 to 2.30 (src/init.cc, misc/ibvsymbols.cc,
misc/ibvwrap.cc, plugin/net.cc, transport/net_ib) and of aws-ofi-nccl (src/nccl_ofi_net.cpp).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envcheck.checks import Limit, Measured, Outcome, Ranks, Verdict, View, failed, warned
from envcheck.checks.support import control_group, process_group
from envcheck.counting import counted

DEVICES = Path("/sys/class/infiniband")
AMAZON = "0x1d0f"
RAILS = 4  # active ports of one node
LIMIT = Limit(0, "nodes", "ours: a node with an active RDMA port has no reason to use sockets between hosts", "at most")
ROW = "all-reduce-between-hosts"
_HYPER_V = re.compile(r"/(?:VMBUS|MSFT1000):")
_RATE = re.compile(r"(\d+(?:\.\d+)?) Gb/sec")
_TEXT = r"[^\r\n]{0,160}"
_USED = re.compile(r"NET/IB : Using ([^\r\n]{1,4000}?)(?:; OOB|$)", re.MULTILINE)
_DEVICE = re.compile(r"(\w+):(\d+)(?::\d*)*/(IB|RoCE)")
_RAIL = re.compile(r"Channel \d+(?:/\d+)? : (\d{1,6})\[\w+\] -> (\d{1,6})\[\w+\] \[\w+\] via NET/IB/(\d{1,3})")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is (\S{1,40}?)(?:,|\s|$)", re.MULTILINE)
_TCP = ("tcp", "sockets")
LIBRARIES = "install libibverbs1 and ibverbs-providers (Debian, Ubuntu) or libibverbs (Fedora, RHEL) in the image"
_HANDED = "give the container /dev/infiniband (--device /dev/infiniband --network host; Kubernetes: an rdma/… resource)"
_PLUGIN = "install the network's NCCL plug-in for this NCCL (EFA: aws-ofi-nccl and libfabric), first on LD_LIBRARY_PATH"
# A plug-in that is there lacks a library, or a newer one (AI-Hypercomputer/gpu-recipes#5).
_LACKS = r"version `GLIBC\w*[^']{0,20}' not found|undefined symbol|(?<=: )(?!libnccl-net)lib[\w.+-]{1,60}: cannot open"
_BUILT = (
    "take an image whose libraries are as new as those that the network's NCCL plug-in was built on, or its own image"
)
# What NCCL says of a network that it cannot use, the most telling first, and what to do. Of libibverbs.so without a
# number 2.30 complains on sound machines too; that no plug-in was found is a fault on EFA alone.
_TROUBLE = (
    (re.compile(rf"(?:Failed to open libibverbs\.so\[\.1\]|Count not open libibverbs\.so\.1){_TEXT}"), LIBRARIES),
    (re.compile(rf"Call to ibv_\w{{1,40}} failed{_TEXT}"), "raise memlock (--ulimit memlock=-1); look at the GIDs"),
    (re.compile(rf"lib wrapper not initialized{_TEXT}"), LIBRARIES),
    (re.compile(rf"NET/IB : Unable to open device{_TEXT}"), _HANDED),
    (re.compile(rf"NET/IB : No device found{_TEXT}"), f"{LIBRARIES}; {_HANDED}; unset NCCL_IB_HCA"),
    (re.compile(rf"NET/IB : No IP interface found{_TEXT}"), "use the host's network; look at NCCL_SOCKET_IFNAME"),
    (re.compile(rf"NET/OFI (?:aws-ofi-nccl initialization failed|Couldn't open a fabric){_TEXT}"), _PLUGIN),
    (re.compile(rf"NET/OFI Selected [Pp]rovider is (?:tcp|sockets){_TEXT}"), _PLUGIN),
    (re.compile(rf"External network plugin {_TEXT}unsupported|Failed to initialize NET plugin{_TEXT}"), _PLUGIN),
    (re.compile(rf"NET/Plugin ?: {_TEXT}(?:{_LACKS}){_TEXT}"), _BUILT),
    (re.compile(rf"NET/Plugin ?: {_TEXT}No plugin found|NET/Plugin ?: Could not find{_TEXT}"), _PLUGIN),
)
FIX = "look at NCCL's log, the check fabric-libraries and NCCL_NET, NCCL_IB_DISABLE, NCCL_IB_HCA"
_CHOSEN = "unset NCCL_IB_DISABLE and NCCL_NET (environment, /etc/nccl.conf, ~/.nccl.conf)"


def active_ports(devices: Path = DEVICES) -> list[Measured]:
    """Return this node's active ports, as {device, port, layer, vendor, rate (Gb/s, None if unread)}."""
    return [
        {
            "device": port.parents[1].name,
            "port": port.name,
            "layer": _word(port / "link_layer"),
            "vendor": _word(port.parents[1] / "device/vendor"),
            "rate": float(rate[1]) if (rate := _RATE.match(_word(port / "rate"))) else None,
        }
        for port in sorted(devices.glob("*/ports/*"))
        if "ACTIVE" in _word(port / "state") and _networked(port)
    ]


def _networked(port: Path) -> bool:
    """Return whether other nodes can be reached through a port by RDMA.

    Not through NVLink 5's bridges to its switches (siderolabs/extensions#893), as root reads off them, nor through the
    Ethernet of a guest on Azure, which carries no RoCE (Azure/aks-rdma-infiniband#11, skypilot-org/skypilot#4448).
    """
    azure = _word(port / "link_layer") == "Ethernet" and _HYPER_V.search(str(port.resolve()))
    return not azure and "SW_MNG" not in _word(port.parents[1] / "device/vpd")


def verdict(ports: list[Measured]) -> Verdict:
    """Return failed for the rails of a training node, warned where few Ethernet ports may be an ordinary card's."""
    amazon = any(port.get("vendor") == AMAZON for port in ports)
    rails = amazon or len(ports) >= RAILS or any(port.get("layer") == "InfiniBand" for port in ports)
    return failed if rails else warned


def _word(path: Path) -> str:
    return control_group.text(path).strip()


def parse(text: str) -> Measured:
    """Return what a log says of the network: {devices ("mlx5_0:1/IB"), rails, provider (of libfabric), trouble, fix}.

    `rails` are the devices between two ranks ({"0>1": ["mlx5_0:1/IB"]}), where NCCL joined none of them into one.
    `trouble` is the line that tells most of why a network was not used, None where there is none.
    """
    used, providers = _USED.findall(text), _PROVIDER.findall(text)
    found = ((match[0].strip(), fix) for pattern, fix in _TROUBLE if (match := pattern.search(text)))
    trouble, fix = next(found, (None, None))
    devices = [f"{name}:{port}/{layer}" for name, port, layer in _DEVICE.findall(used[-1])] if used else []
    rails: dict[str, list[str]] = {}
    for sender, receiver, number in _RAIL.findall(text) if used and "{" not in used[-1] else ():
        names = rails.setdefault(f"{int(sender)}>{int(receiver)}", [])
        names += [name for name in devices[int(number) : int(number) + 1] if name not in names]
    provider = providers[-1] if providers else None
    return {"devices": devices, "rails": rails, "provider": provider, "trouble": trouble, "fix": fix}


def hosts(ranks: Ranks) -> dict[Any, Ranks]:
    """Return the ranks of each host."""
    found: dict[Any, Ranks] = {}
    for entry in ranks:
        found.setdefault(entry.get("host"), []).append(entry)
    return found


def sockets(view: View, ranks: Ranks) -> list[Outcome]:
    """Return the finding for each node that talks to others over sockets beside an active RDMA port of its own."""
    nodes = hosts(ranks)
    if view.mode != "gpu" or len(nodes) == 1:
        return []
    homes = _homes(nodes)
    ways = {way for entry in ranks for way in _ways(entry.get("nccl") or {}, homes)}
    if ways and not any(way.startswith("NET/") for way in ways):
        return []  # NVLink between hosts
    return [
        _finding(str(node), ports, entry["nccl"])
        for node, entries in nodes.items()
        if (ports := _ports(view, entries))
        for entry in [entry for entry in entries if _socket(entry.get("nccl") or {}, homes)][:1]
    ]


def _socket(log: Measured, homes: Mapping[str, Any]) -> bool:
    ways = _ways(log, homes)
    if (log.get("fabric") or {}).get("provider") in _TCP:
        return True
    return "NET/Socket" in ways if ways else log.get("network") == "Socket"


def _homes(nodes: Mapping[Any, Ranks]) -> dict[str, Any]:
    return {str(entry["rank"]): node for node, entries in nodes.items() for entry in entries}


def _ways(log: Measured, homes: Mapping[str, Any]) -> set[str]:
    """Return the ways between ranks of different hosts that a log names."""
    ends = ((*str(edge).partition(">")[::2], ways) for edge, ways in (log.get("edges") or {}).items())
    return {str(way) for a, b, ways in ends if homes.get(a) != homes.get(b) for way in ways}


def _ports(view: View, entries: Ranks) -> list[Measured]:
    """Return the active ports of a node as its ranks read them; those of the snapshot where none did."""
    read = [log["ports"] for entry in entries if isinstance((log := entry.get("nccl") or {}).get("ports"), list)]
    listed = read[0] if read else view.snapshot.signal("ib.ports").value or []
    return [port for port in listed if port.get("state", "ACTIVE") == "ACTIVE"]


def _finding(node: str, ports: list[Measured], log: Measured) -> Outcome:
    fabric, settings = log.get("fabric") or {}, log.get("settings") or {}
    declined = settings.get("NCCL_IB_DISABLE") == "1" or settings.get("NCCL_NET", "").lower() == "socket"
    names = ", ".join(str(port["device"]) for port in ports[:4]) + (", …" if len(ports) > 4 else "")  # noqa: PLR2004
    line = fabric.get("trouble") or f"Using network {log.get('network')}"
    beside = f"{node}: NCCL goes to other hosts over sockets beside {counted(len(ports), 'active RDMA port')} ({names})"
    made: dict[str, Any] = {"value": 1, "limit": LIMIT, "culprit": node, "line": line}
    if declined and all(port.get("layer") == "Ethernet" for port in ports):
        text = f"{beside}, as NCCL_IB_DISABLE or NCCL_NET says"
        return warned(text, fix=_CHOSEN, code="transport.sockets-chosen", **made)
    fix = _CHOSEN if declined else fabric.get("fix") or FIX
    return failed(f'{beside}: "{line}"', fix=fix, code="transport.sockets", **made)


def between(view: View, ranks: Ranks) -> tuple[Measured | None, str]:
    """Return the limits of an all-reduce between these hosts, from what a node's ports carry; or why none is known.

    A ring crosses each port once in each direction, so its bus bandwidth is at most their rate; where switches add,
    at most 2 (n - 1) / n of it (NVIDIA/nccl-tests, doc/PERFORMANCE.md). GPUs that have no NVLink may be slower within
    the node: they are not judged.
    """
    from envcheck.checks import limits
    from envcheck.checks.collectives import transports

    by_host = hosts(ranks)
    nodes, homes = list(by_host.values()), _homes(by_host)
    ways = {way for entry in ranks for way in _ways(entry.get("nccl") or {}, homes)}
    used = [_carried(view, entries) for entries in nodes]
    fabrics = {fabric for fabric, _, _ in used}
    inside = transports.rate(view)
    rate = min(rate for _, rate, _ in used)
    judged = len(fabrics) == 1 and bool(rate) and all(way.startswith("NET/") for way in ways)
    if not judged or inside is None or not transports.linked(view) or rate > inside:
        return None, "no limit known between hosts"
    note = f"{used[0][2]} on each of {len(nodes)} nodes, {rate:g} GB/s"
    row = limits.of_rate(ROW, rate, note, transport=fabrics.pop())
    if row is None:
        return None, "no limit known between hosts of this fabric"
    # What all active ports of a node carry one way, in Gb/s.
    most = max(sum(float(port.get("rate") or 0) for port in _ports(view, entries)) for entries in nodes)
    ceiling = most / 8 * 2 * (len(ranks) - 1) / len(ranks)
    return {**row, "ceiling": ceiling}, ""


def _carried(view: View, entries: Ranks) -> tuple[str, float, str]:
    """Return fabric, GB/s one way and ports, by number and rate, that these ranks of a node use; 0 if unknown.

    Fewer ranks than the node has GPUs use the ports near them, which are as many a GPU as there are.
    """
    log = entries[0].get("nccl") or {}
    fabric, ports = _used(log, _ports(view, entries))
    rates = [float(port["rate"]) for port in ports if process_group.positive(port.get("rate"))]
    if not ports or len(rates) != len(ports):
        return fabric, 0.0, ""
    near = len(entries) * max(1, len(ports) // max(1, len(view.snapshot.gpus)))
    share = min(1.0, near / len(ports))
    return fabric, sum(rates) / 8 * share, f"{len(ports)} x {rates[0]:g} Gb/s {fabric}"


def _used(log: Measured, ports: list[Measured]) -> tuple[str, list[Measured]]:
    """Return the fabric ("IB", "RoCE", "EFA") and the ports that NCCL's log names; no port if one is unknown."""
    said = log.get("fabric") or {}
    if said.get("provider") == "efa":
        return "EFA", [port for port in ports if port.get("vendor") == AMAZON]
    devices = [str(device) for device in said.get("devices") or []]
    by_name = {f"{port['device']}:{port.get('port', 1)}": port for port in ports}
    named = [by_name.get(device.partition("/")[0]) for device in devices]
    layers = {device.partition("/")[2] for device in devices}
    sound = len(layers) == 1 and all(named) and str(log.get("network")).startswith("IB")
    return "/".join(sorted(layers)), [port for port in named if port] if sound else []
