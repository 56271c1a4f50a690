"""What ranks talk over: told by NCCL's own log where it was read, else what NVML shows that they could.

NCCL_DEBUG_FILE keeps what NCCL connected out of the check's output (NVIDIA NCCL user guide, Environment variables). The
lines are those of src/transport/{p2p,shm,net,nvls}.cc and src/enqueue.cc from 2.8 to 2.30. Since 2.22 a connection is
made when a collective first needs it, so collectives have to be run before the log says much.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envcheck.checks import Measured, Rank, Ranks, View
from envcheck.checks.collectives import fabrics
from envcheck.checks.support import gpu_speed, process_group

Logs = Mapping[int, Any]  # what `parse` made of each rank's
Pairs = dict[tuple[int, int], set[str]]  # the ways between two ranks

# TUNING names the algorithm of each call; a line per call has no place in a measurement of microseconds.
SUBSYSTEMS = "INIT,ENV,GRAPH,P2P,SHM,NET,NVLS"
MOST = 8 << 20  # more of a log than 64 ranks write
_MANY = 4096
_EDGE = re.compile(
    r"Channel \d+(?:/\d+)? : (\d{1,6})\[\w+\] -> (\d{1,6})\[\w+\](?: \[(?:send|receive)\])? "
    r"via (P2P|SHM|NET)/([^/(\r\n]{1,40})"
)
_VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)")
_NETWORK = re.compile(r"NCCL INFO Using network ([^\r\n]{1,60})")
_ASSIGNED = re.compile(r"Assigned NET plugin (\S{1,60}) to comm")
_AVAILABLE = re.compile(r"NVLS multicast support is (not )?available")
_USED = re.compile(r"NVLS comm (?:0x)?[0-9a-fA-F]+ headRank")
_SETTING = re.compile(r"NCCL INFO (NCCL_[A-Z0-9_]{1,40}) set by environment to ([^\r\n]{1,60})")
_CALL = re.compile(r"(?:(\w{1,20}): )?(\d{1,15}) Bytes -> Algo (\w{1,20}) proto")
_TROUBLE = re.compile(r"nvls\.cc:\d+ NCCL WARN [^\r\n]*|NCCL WARN [^\r\n]*(?:NVLS|[Mm]ulticast)[^\r\n]*")
# Sockets and plugins have a line of their own, beside the card's (NVIDIA/nccl#901, #1519).
_INDIRECT = re.compile(r"NET/IB\w* : GPU Direct RDMA Disabled for HCA \d+ '([^'\r\n]{1,40})'")
# Settings that choose what ranks talk over.
CHOICES = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_NVLS_ENABLE", "NCCL_ALGO", "NCCL_NET")
WAYS = ("P2P/", "SHM/", "NET/")
# NCCL_ALGO_* of src/include/nccl_tuner.h, as logs before 2.26 have them.
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")


def ask(rank: Rank, *, calls: bool = False) -> None:
    """Have NCCL log into a rank's scratch, `calls` with algorithms; before the group, as it reads this once."""
    if rank.backend != "nccl":
        return
    os.environ["NCCL_DEBUG"] = "INFO"
    os.environ["NCCL_DEBUG_SUBSYS"] = f"{SUBSYSTEMS},TUNING" if calls else SUBSYSTEMS
    # NCCL expands %h and %p; %% is a percent sign.
    os.environ["NCCL_DEBUG_FILE"] = str(_file(rank)).replace("%", "%%")


def read(rank: Rank) -> Measured:
    """Return what NCCL logged of this rank, as `parse` has it, and the node's RDMA ports; {} without a log."""
    with contextlib.suppress(OSError), _file(rank).open("rb") as log:
        return {**parse(log.read(MOST).decode(errors="replace")), "ports": fabrics.active_ports()}
    return {}


def _file(rank: Rank) -> Path:
    return Path(rank.scratch, f"nccl.rank{rank.rank}.log")


def parse(text: str) -> Measured:
    """Return what a log says: {lines, version, network, fabric, edges, indirect, nvls, algorithms, settings}.

    `edges` is {"0>1": ["P2P/CUMEM"]}, by rank; `indirect` the cards that do not reach GPU memory; `nvls` {available,
    used, trouble}, None where it says nothing; `algorithms` {"AllReduce": "NVLS"}, of the largest message; `settings`
    the NCCL_* that it took from the environment or from nccl.conf.
    """
    edges: dict[str, list[str]] = {}
    for sender, receiver, kind, how in _EDGE.findall(text):
        ways = edges.setdefault(f"{int(sender)}>{int(receiver)}", [])
        way = f"{kind}/{how.strip()}"
        if way not in ways and len(edges) <= _MANY:
            ways.append(way)
    return {
        "lines": text.count("NCCL INFO"),
        "version": _last(_VERSION, text),
        "network": _last(_NETWORK, text) or _last(_ASSIGNED, text),
        "fabric": fabrics.parse(text),
        "edges": edges,
        "indirect": sorted(set(_INDIRECT.findall(text)))[:_MANY],
        "nvls": _nvls(text),
        "algorithms": _algorithms(text),
        "settings": {name: value.strip().rstrip(".") for name, value in _SETTING.findall(text)},
    }


def _last(pattern: re.Pattern[str], text: str) -> str | None:
    matches = pattern.findall(text)
    return str(matches[-1]).strip() if matches else None


def _nvls(text: str) -> Measured:
    offers = _AVAILABLE.findall(text)
    trouble = _TROUBLE.search(text)
    return {
        "available": None if not offers else not any(offers),
        "used": bool(_USED.search(text)),
        "trouble": trouble.group(0)[:200].strip() if trouble else None,
    }


def _algorithms(text: str) -> dict[str, str]:
    largest: dict[str, tuple[int, str]] = {}
    names = {str(number): name for number, name in enumerate(_ALGORITHMS)}
    for function, size, algorithm in _CALL.findall(text):
        if int(size) >= largest.get(function or "any", (-1, ""))[0]:
            largest[function or "any"] = (int(size), names.get(algorithm, algorithm.upper()))
    return {function: algorithm for function, (_, algorithm) in largest.items()}


def edges(logs: Logs) -> Pairs:
    """Return, for each pair of ranks (lower first), every way that the logs of all ranks name between them."""
    pairs: Pairs = {}
    for log in logs.values():
        for edge, ways in ((log or {}).get("edges") or {}).items():
            sender, _, receiver = str(edge).partition(">")
            pair = (min(int(sender), int(receiver)), max(int(sender), int(receiver)))
            pairs.setdefault(pair, set()).update(map(str, ways))
    return pairs


def nvls(logs: Logs) -> Measured:
    """Return what all ranks' logs say of NVLS: available to all, used for large all-reduces, and the first trouble.

    Used is what calls say, where they were logged; buffers alone prove it only where nobody declined it: they are
    made before an algorithm is chosen.
    """
    nvls = [(log or {}).get("nvls") or {} for log in logs.values()]
    offered = [report["available"] for report in nvls if report.get("available") is not None]
    chosen = merged(logs, "algorithms").get("AllReduce", "")
    made = any(report.get("used") is True for report in nvls) and not nvls_declined(merged(logs, "settings"))
    return {
        "available": all(offered) if offered else None,
        "used": chosen.startswith("NVLS") if chosen else made,
        "trouble": next((report["trouble"] for report in nvls if report.get("trouble")), None),
    }


def merged(logs: Logs, field: str) -> dict[str, str]:
    """Return the `algorithms` or `settings` of all ranks' logs as one."""
    return {str(name): str(value) for log in logs.values() for name, value in ((log or {}).get(field) or {}).items()}


def nvls_declined(settings: Mapping[str, str]) -> bool:
    """Return whether a setting turns NVLS off."""
    algorithms = settings.get("NCCL_ALGO", "").upper()
    excluded = "NVLS" in algorithms if algorithms.startswith("^") else bool(algorithms) and "NVLS" not in algorithms
    return settings.get("NCCL_NVLS_ENABLE") == "0" or excluded


# GB/s of one lane, one way, after its encoding (PCI-SIG).
_PCIE_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}

# With fewer the ring is as fast: 363 GB/s on 4 of 8 H200, where a ring gives 365 (stas00/ml-engineering).
NVLS_FROM = 5
# Hopper, whose switches add.
SWITCHED = (9, 0)


@dataclasses.dataclass(frozen=True)
class Links:
    """Between the ranks of a group: `judged` is pcie, nvlink or nvls, as limits.json has it; "" without GPUs.

    `ways` are what NCCL's logs name ("P2P/CUMEM", "NVLS"), empty where nothing is proven. `rate` is what the fastest
    GPU's links carry one way, in GB/s, None where NVML does not say.
    """

    judged: str
    ways: tuple[str, ...]
    backend: str
    ranks: int
    rate: float | None

    def __str__(self) -> str:
        return f"{self.backend} ({', '.join(self.ways)})" if self.ways else self.backend

    def measured(self) -> Measured:
        """Return it as an outcome's detail."""
        return {"judged_as": self.judged, "proven": list(self.ways), "backend": self.backend}

    def ceiling(self, name: str) -> float | None:
        """Return the bus bandwidth in GB/s that these links cannot pass in a collective, None where none is known.

        Where the switch adds, an all-reduce sends and receives each byte once: rate * 2 (n - 1) / (n + 1).
        """
        if self.rate is None:
            return None
        switched = name == "all-reduce" and self.judged == "nvls"
        return self.rate * max(1.0, 2 * (self.ranks - 1) / (self.ranks + 1)) if switched else self.rate


def of(view: View, ranks: Ranks) -> Links:
    """Return what these ranks talked over."""
    backend = str(ranks[0].get("backend"))
    logs = {entry["rank"]: entry.get("nccl") for entry in ranks}
    ways = sorted(set().union(*edges(logs).values()))
    proven = (*ways, "NVLS") if nvls(logs)["used"] else tuple(ways)
    hosts = {entry.get("host") for entry in ranks}
    if view.mode != "gpu":
        return Links("", (), backend, len(ranks), None)
    return Links(_judged(view, proven), proven, backend, len(ranks), rate(view) if len(hosts) == 1 else None)


def _judged(view: View, proven: tuple[str, ...]) -> str:
    """Return the kind of link to judge by: what GPUs with NVLink talk over that is slower is no excuse for them."""
    if not linked(view):
        return "pcie"
    if proven:
        return "nvls" if "NVLS" in proven else "nvlink"
    environment = view.snapshot.signal("env").value or {}
    switched = all(_capability(gpu) >= SWITCHED for gpu in view.snapshot.gpus)
    return "nvls" if switched and str(environment.get("NCCL_NVLS_ENABLE")) != "0" else "nvlink"


def linked(view: View) -> bool:
    """Return whether every GPU has NVLinks that are up."""
    gpus = view.snapshot.gpus
    return bool(gpus) and all(process_group.finite(n := gpu.signal("nvlinks_active").value) and n > 0 for gpu in gpus)


def roundabout(view: View, pairs: Pairs, pair: tuple[int, int], devices: Mapping[int, str]) -> bool:
    """Return whether two ranks of one host use a slower way than their GPUs have; `devices` are the ranks' UUIDs.

    What is linked, by NVML or as every two GPUs of some boards are, has to use that. Where neither tells, as of bridges
    in an old snapshot, only that no two use it is wrong. Sockets are nobody's best way within a host; a network card
    may be.
    """
    ways = pairs[pair]
    if any(way.lower() == "net/socket" for way in ways):
        return True
    if not linked(view) or all(way.startswith("P2P/") for way in ways):
        return False
    between = gpu_speed.link(view, *(devices.get(rank, "") for rank in pair))
    if between in ("nvlink", "nvswitch") or meshed(view):
        return True
    return not between and not any(way.startswith("P2P/") for ways_used in pairs.values() for way in ways_used)


def meshed(view: View) -> bool:
    """Return whether every two of these GPUs are linked: so are all boards of Ampere and later that need no bridge."""
    from envcheck.checks.node import nvlink

    boards = [nvlink.board(str(gpu.signal("name").value)) for gpu in view.snapshot.gpus]
    return all(boards) and all(_capability(gpu) >= (8, 0) for gpu in view.snapshot.gpus)


def nvls_missing(view: View, ranks: int, nvls: Measured) -> str:
    """Return what is amiss with reduction in the switch where GPUs and switches have it; "" where nothing is."""
    gpus = view.snapshot.gpus
    fabrics = [gpu.signal("fabric").value for gpu in gpus]
    all_completed = all(isinstance(fabric, dict) and fabric.get("state") == "completed" for fabric in fabrics)
    if not (linked(view) and all_completed and all(_capability(gpu) >= SWITCHED for gpu in gpus)):
        return ""
    if nvls["trouble"]:
        return str(nvls["trouble"])
    if nvls["available"] is False:
        return "NCCL finds no multicast, though the GPUs are in a fabric"
    unused = ranks >= NVLS_FROM and not nvls["used"]
    return f"{ranks} GPUs in a fabric, and NCCL did not use it for large messages" if unused else ""


def _capability(gpu: Any) -> tuple[int, ...]:
    words = str(gpu.signal("compute_capability").value).split(".")
    return tuple(map(int, words)) if all(word.isdecimal() and word.isascii() for word in words) else (0,)


def rate(view: View) -> float | None:
    """Return what the fastest GPU's links carry one way in GB/s, None where NVML does not say of each GPU."""
    rates = [rate for gpu in view.snapshot.gpus if (rate := of_one(gpu)) is not None]
    return max(rates) if rates and len(rates) == len(view.snapshot.gpus) else None


def of_one(gpu: Any) -> float | None:
    """Return what a GPU's links carry one way in GB/s; None where NVML cannot tell, as of a virtual machine's slot."""
    read = gpu.signal("nvlinks_active")
    links, speed, gen, width = (
        gpu.signal(name).value for name in ("nvlinks_active", "nvlink_speed", "pcie_gen_max", "pcie_width_max")
    )
    if process_group.finite(links) and links > 0:
        return links * speed / 1000 if process_group.finite(speed) and speed > 0 else None
    if not (links == 0 or read.why == "unsupported") or gpu.signal("virtualization").value != "none":
        return None
    return _PCIE_LANE[gen] * width if gen in _PCIE_LANE and process_group.finite(width) and width > 0 else None
