"""What ranks talk over: proven by NCCL's own log where it was read, else what NVML shows that they could."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from envcheck.checks import Measured, Ranks, View
from envcheck.checks.collectives import nccl_log
from envcheck.checks.support import gpu_speed, process_group

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
    ways = sorted(set().union(*nccl_log.edges(logs).values()))
    proven = (*ways, "NVLS") if nccl_log.nvls(logs)["used"] else tuple(ways)
    hosts = {entry.get("host") for entry in ranks}
    if view.mode != "gpu":
        return Links("", (), backend, len(ranks), None)
    return Links(_judged(view, proven), proven, backend, len(ranks), _rate(view) if len(hosts) == 1 else None)


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


def roundabout(view: View, pairs: nccl_log.Pairs, pair: tuple[int, int], devices: Mapping[int, str]) -> bool:
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
    if between in ("nvlink", "nvswitch") or _meshed(view):
        return True
    return not between and not any(way.startswith("P2P/") for ways_used in pairs.values() for way in ways_used)


def _meshed(view: View) -> bool:
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


def _rate(view: View) -> float | None:
    rates = [rate for gpu in view.snapshot.gpus if (rate := _of_one(gpu)) is not None]
    return max(rates) if rates and len(rates) == len(view.snapshot.gpus) else None


def _of_one(gpu: Any) -> float | None:
    """Return what a GPU's NVLinks together, or else its PCIe slot, carry one way in GB/s; None where NVML cannot tell.

    A virtual machine's slot is what its hypervisor made up.
    """
    read = gpu.signal("nvlinks_active")
    links, speed, gen, width = (
        gpu.signal(name).value for name in ("nvlinks_active", "nvlink_speed", "pcie_gen_max", "pcie_width_max")
    )
    if process_group.finite(links) and links > 0:
        return links * speed / 1000 if process_group.finite(speed) and speed > 0 else None
    unlinked = links == 0 or read.why == "unsupported"
    if not unlinked or gpu.signal("virtualization").value != "none":
        return None
    return _PCIE_LANE[gen] * width if gen in _PCIE_LANE and process_group.finite(width) and width > 0 else None
