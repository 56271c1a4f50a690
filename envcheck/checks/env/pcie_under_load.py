"""An idle GPU lets its PCIe link drop to Gen1, so that a link which never comes up again looks like any other.

So it is read while pinned memory is copied over it. A link at half its rate or less is a failure on boards for data
centres; elsewhere it may be the mainboard's design.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

from envcheck import checks
from envcheck.checks import Measured, Outcome, Rank, Ranks, View, passed, skipped, too_slow, undecided, warned, worst
from envcheck.checks.support import gpu_speed, process_group
from envcheck.counting import counted

CHECK = checks.Check(
    promise="under load each GPU's PCIe link has the generation and the lanes that it can have in this system",
    level="standard",
    seconds=2.0,
    timeout=60.0,
    gpus=1,
    ranks=0,
    performance=True,
)

SECONDS = 1.0  # a link needs milliseconds to come up, the driver some more to ask for it
SIZE = 64 * gpu_speed.MIB
_HALF = 0.5
# So many of the readings at least are of a link that is still coming up.
_RAMP = 10
_ALL = checks.Limit(1.0, "of its rate", "NVML: the most that this GPU can have in this system", "at least")
# Boards for desktops, whose mainboards split sixteen lanes between two slots by design.
_DESKTOPS = ("GeForce", "TITAN", "Quadro", "RTX A", "RTX PRO", "RTX 4000", "RTX 5000", "RTX 6000")
_FIX = (
    "reseat the board or its riser and look at the slot's BIOS settings (generation, bifurcation); exchange it with a "
    "good one to see whether slot or board is at fault"
)


def measure(rank: Rank) -> Measured:
    """Copy from pinned memory for a second and read the link meanwhile: each reading's generation and lanes."""
    import torch

    device = process_group.device_of(rank)
    card = torch.zeros(SIZE // 4, dtype=torch.int32, device=device)
    entry = {**process_group.standing(rank, card), "name": torch.cuda.get_device_name(device)}
    try:
        bus_id = address(device.index)
        return {**entry, "bus_id": bus_id, "readings": _readings(torch, card, bus_id)}
    except (OSError, ValueError) as error:
        return {**entry, "unreadable": str(error)}


def _readings(torch: Any, card: Any, bus_id: str) -> list[list[int]]:
    """Return what the link shows while copies are under way; memory-bandwidth tells whether they are right."""
    host = torch.zeros_like(card, device="cpu").pin_memory()
    readings, until = [], time.monotonic() + SECONDS
    while time.monotonic() < until:
        for _ in range(4):
            card.copy_(host, non_blocking=True)
        readings.append(list(link(bus_id)))
        torch.cuda.synchronize()
    return readings


@process_group.sound(backend=False)
def judge(view: View, ranks: Ranks) -> Outcome:
    """Name the GPU whose link stays below what NVML says it can have: a failure of a link that is half or less."""
    if all(entry.get("unreadable") for entry in ranks):
        hidden = f"the kernel does not show the GPUs' links here: {ranks[0]['unreadable']}"
        return skipped(hidden, code="pcie.link-hidden")
    results = [_one(view, entry) for entry in ranks]
    bad = [outcome for outcome in results if isinstance(outcome, Outcome)]
    if bad:
        return worst(bad, otherwise=bad[0])
    links = sorted({f"Gen{link.generation} x{link.lanes}" for link in results if isinstance(link, Link)})
    unknown = sum(_most(view, entry) is None for entry in ranks)
    unread_note = f"; of {unknown} NVML does not say what they could have" if unknown else ""
    summary = f"{counted(len(ranks), 'GPU')} under load: {', '.join(links)}{unread_note}"
    return passed(summary, value=len(ranks), unit="GPUs")


def usual(readings: list[list[int]]) -> Link:
    """Return the link that at least half of the readings show or exceed, without those while it came up."""
    settled = readings[max(1, len(readings) // _RAMP) :] or readings
    return Link(*statistics.median_low([tuple(reading) for reading in settled]))


def _one(view: View, entry: Measured) -> Any:
    where = f"{process_group.name(entry)} ({entry.get('name')})"
    readings = entry.get("readings") or []
    if not readings or not all(
        isinstance(one, list) and len(one) == len(Link._fields) and all(isinstance(n, int) and n > 0 for n in one)
        for one in readings
    ):
        why = entry.get("unreadable") or "the readings have an unexpected type"
        summary = f"{where}: no link was read: {why}"
        return undecided(summary, code="pcie.unread", culprit=process_group.name(entry))
    best, most = usual(readings), _most(view, entry)
    if most is None or (best.generation >= most.generation and best.lanes >= most.lanes):
        return best
    # Each generation doubles the rate of a lane.
    share = best.lanes * 2.0**best.generation / (most.lanes * 2.0**most.generation)
    possible = f"Gen{most.generation} x{most.lanes} is possible"
    summary = f"{where} under load: Gen{best.generation} x{best.lanes}, where {possible}"
    details: dict[str, Any] = {"value": round(share, 3), "unit": "of its rate", **gpu_speed.about(entry)}
    tell = too_slow if share <= _HALF and not any(word in str(entry.get("name")) for word in _DESKTOPS) else warned
    if view.snapshot.signal("host.hypervisor").value is True:
        tell, summary = warned, f"{summary}; a virtual machine may show another link"
    return tell(summary, fix=_FIX, limit=_ALL, code="pcie.link-below-its-rate", **details)


def _most(view: View, entry: Measured) -> Link | None:
    """Return what NVML says this GPU can have; nothing on Arm, where the CPU is reached over another link."""
    if view.snapshot.signal("host.arch").value not in ("x86_64", None):
        return None
    for gpu in view.snapshot.gpus:
        generation, lanes = gpu.signal("pcie_gen_max").value, gpu.signal("pcie_width_max").value
        if gpu.uuid == entry["device"] and generation and lanes:
            return Link(int(generation), int(lanes))
    return None


DEVICES = Path("/sys/bus/pci/devices")
# GT/s of each generation: PCI Express Base Specification.
GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_ADDRESS_LENGTH = 32


class Link(NamedTuple):
    """Generation and lanes of a link."""

    generation: int
    lanes: int


def address(ordinal: int, library: Any = None) -> str:
    """Return the bus address of CUDA's `ordinal`-th device, "0000:1b:00.0". Raises OSError where CUDA tells none."""
    cuda = ctypes.CDLL("libcuda.so.1") if library is None else library
    device, text = ctypes.c_int(), ctypes.create_string_buffer(_ADDRESS_LENGTH)
    if cuda.cuDeviceGet(ctypes.byref(device), ordinal) or cuda.cuDeviceGetPCIBusId(text, _ADDRESS_LENGTH, device):
        message = f"CUDA tells no bus address of its device {ordinal}"
        raise OSError(message)
    return text.value.decode().lower()


def link(bus_id: str, devices: Path = DEVICES) -> Link:
    """Return the link of the device at this address. Raises OSError or ValueError where the kernel does not tell it."""
    device = devices / bus_id
    speed = (device / "current_link_speed").read_text(encoding="ascii").split()[:1]
    lanes = (device / "current_link_width").read_text(encoding="ascii").strip()
    if not speed or speed[0] == "Unknown" or not lanes.isdecimal():
        message = f"{device} tells no speed of its link"
        raise ValueError(message)
    rate = float(speed[0])
    if rate not in GENERATIONS:
        message = f"{device} tells {rate:g} GT/s, which is no generation"
        raise ValueError(message)
    return Link(GENERATIONS[rate], int(lanes))
