"""An idle GPU lets its PCIe link drop to Gen1, so that a link which never comes up again looks like any other.

Seen in the wild: a riser that holds a Gen5 board at Gen3, a link that fell back after errors, lanes lost in a reseat;
all of them found weeks later as "slow data loading". So the link is read while pinned memory is copied over it, and
the best of what it showed is held against what NVML says this GPU can have in this system. A link at half its
rate or less is a failure on boards for data centres; elsewhere it may be the mainboard's design.
"""

from __future__ import annotations

import time
from typing import Any

from envcheck.checks import (
    Check,
    Limit,
    Measured,
    Outcome,
    Rank,
    Ranks,
    View,
    failed,
    passed,
    skipped,
    undecided,
    warned,
)
from envcheck.checks.env import _group, _pcie, _speed

CHECK = Check(
    promise="under load each GPU's PCIe link has the generation and the lanes that it can have in this system",
    level="standard",
    seconds=1.5,
    timeout=60.0,
    gpus=1,
    ranks=0,
    performance=True,
)

SECONDS = 1.0  # a link needs milliseconds to come up, the driver some more to ask for it
SIZE = 64 * _speed.MIB
_HALF = 0.5
_ALL = Limit(1.0, "of its rate", "NVML: the most that this GPU can have in this system", "at least")
# Boards for desktops, whose mainboards split sixteen lanes between two slots by design.
_DESKTOPS = ("GeForce", "TITAN", "Quadro", "RTX A", "RTX PRO", "RTX 4000", "RTX 5000", "RTX 6000")
_FIX = (
    "reseat the board or its riser and look at the slot's BIOS settings (generation, bifurcation); exchange it with a "
    "good one to see whether slot or board is at fault"
)


def measure(rank: Rank) -> Measured:
    """Copy from pinned memory for a second and read the link meanwhile: each reading's generation and lanes."""
    import torch

    device = _group.device_of(rank)
    card = torch.zeros(SIZE, dtype=torch.uint8, device=device)
    entry = {**_group.standing(rank, card), "name": torch.cuda.get_device_name(device)}
    try:
        bus_id = _pcie.address(device.index)
        return {**entry, "bus_id": bus_id, "readings": _loaded(torch, card, bus_id)}
    except (OSError, ValueError) as error:
        return {**entry, "unreadable": str(error)}


def _loaded(torch: Any, card: Any, bus_id: str) -> list[list[int]]:
    host = torch.zeros(SIZE, dtype=torch.uint8).pin_memory()
    readings, until = [], time.monotonic() + SECONDS
    while time.monotonic() < until:
        for _ in range(4):
            card.copy_(host, non_blocking=True)
        readings.append(list(_pcie.link(bus_id)))
        torch.cuda.synchronize()
    return readings


def judge(view: View, ranks: Ranks) -> Outcome:
    """Name the GPU whose link stays below what NVML says it can have: a failure of a link that is half or less."""
    found = _group.problem(view, ranks, backend=False)
    if found is not None:
        return found
    if all(entry.get("unreadable") for entry in ranks):
        return skipped(f"the kernel does not show the GPUs' links here: {ranks[0]['unreadable']}")
    told = [_one(view, entry) for entry in ranks]
    bad = [outcome for outcome in told if isinstance(outcome, Outcome)]
    if bad:
        return min(bad, key=lambda outcome: ("error", "fail", "warn").index(outcome.status))
    links = sorted({f"Gen{link.generation} x{link.lanes}" for link in told if isinstance(link, _pcie.Link)})
    unknown = sum(_most(view, entry) is None for entry in ranks)
    rest = f"; of {unknown} NVML does not say what they could have" if unknown else ""
    return passed(f"{len(ranks)} GPU(s) under load: {', '.join(links)}{rest}", value=len(ranks), unit="GPUs")


def _one(view: View, entry: Measured) -> Any:
    """Return the best that one GPU's link showed, or the outcome where that is too little or was not read."""
    where = f"rank {entry['rank']} ({entry.get('name')}, {entry['device']})"
    readings = entry.get("readings") or []
    if not readings or not all(_sane(reading) for reading in readings):
        return undecided(
            f"{where}: no link was read: {entry.get('unreadable') or 'nonsense'}", fix="see the check's log"
        )
    best, most = _pcie.Link(*max(readings)), _most(view, entry)
    if most is None or (best.generation >= most.generation and best.lanes >= most.lanes):
        return best
    # Each generation doubles the rate of a lane.
    share = best.lanes * 2.0**best.generation / (most.lanes * 2.0**most.generation)
    said = (
        f"{where} under load: Gen{best.generation} x{best.lanes}, where Gen{most.generation} x{most.lanes} is possible"
    )
    known: dict[str, Any] = {"value": round(share, 3), "unit": "of its rate", "device": entry["device"]}
    if view.snapshot.signal("host.hypervisor").value is True:
        return warned(f"{said}; a virtual machine may show another link", fix=_FIX, limit=_ALL, **known)
    modest = any(word in str(entry.get("name")) for word in _DESKTOPS)
    return (failed if share <= _HALF and not modest else warned)(said, fix=_FIX, limit=_ALL, **known)


def _sane(reading: Any) -> bool:
    return isinstance(reading, list) and len(reading) == 2 and all(isinstance(n, int) and n > 0 for n in reading)  # noqa: PLR2004 (generation, lanes)


def _most(view: View, entry: Measured) -> _pcie.Link | None:
    """Return what NVML says this GPU can have; nothing on Arm, where the CPU is reached over another link."""
    if view.snapshot.signal("host.arch").value not in ("x86_64", None):
        return None
    for gpu in view.snapshot.gpus:
        generation, lanes = gpu.signal("pcie_gen_max").value, gpu.signal("pcie_width_max").value
        if gpu.uuid == entry["device"] and generation and lanes:
            return _pcie.Link(int(generation), int(lanes))
    return None
