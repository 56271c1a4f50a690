"""Memory on the card or the way to it at half speed: every kernel and every batch waits, and nothing is broken.

Copies on the card count read and write (2 * bytes), as AMD Primus does; copies to and from pinned memory run one GPU
after the other, so that they do not share the host's lanes, and from the NUMA node that the GPU hangs on.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from envcheck.checks import PASS, Check, Measured, Outcome, Rank, Ranks, View, failed, worst
from envcheck.checks.env import pcie_under_load
from envcheck.checks.support import exact_data, gpu_speed, process_group
from envcheck.checks.support import sampler as hardware_sampler

CHECK = Check(
    promise="copies in the GPU's memory, and to and from the host, reach what this GPU model does, where that is known",
    level="standard",
    seconds=5.0,
    timeout=180.0,
    gpus=1,
    ranks=0,
    performance=True,
    limits=("gpu-to-host", "hbm-copy", "host-to-gpu"),
)

ON_CARD, ACROSS = 1 << 30, 512 * gpu_speed.MIB
_FREE_SHARE = 0.25
TURNS = (3, 20)
_INTERVAL = 0.05
PATHS = {"HBM copy": "hbm-copy", "host to GPU": "host-to-gpu", "GPU to host": "gpu-to-host"}
_FIX = (
    "look at PCIe generation and width under load, remapped rows and ECC (`nvidia-smi -q`); bind the rank to its GPU's "
    "NUMA node"
)


def measure(rank: Rank) -> Measured:
    """Copy on the card, to it and from it; the median GB/s (1e9) of each, and whether the bytes arrived."""
    import torch

    device = process_group.device_of(rank)
    with process_group.group(rank) as dist:
        probe = torch.zeros(1, device=device)
        seed = exact_data.seed(rank.rank)
        words = exact_data.Words(torch, seed)
        values, right = {}, {}
        free = int(torch.cuda.mem_get_info(device)[0] * _FREE_SHARE)
        values["HBM copy"], right["HBM copy"] = _on_card(words, device, min(ON_CARD, free // 3))
        entry: Measured = {**process_group.standing(rank, probe, dist.get_backend()), "seed": seed}
        node, cpus = near(device.index)
        for turn in range(rank.world):
            if turn == rank.rank:
                with hardware_sampler.Sampler(entry["device"], rank.local_rank, _INTERVAL) as sampler:
                    for place in [cpus] if node else _places(cpus):
                        with on(place):
                            across, arrived = _across(words, device, min(ACROSS, free // 3))
                        values |= {path: max(rate, values.get(path, rate)) for path, rate in across.items()}
                        right |= {path: arrived and right.get(path, True) for path in across}
            dist.all_reduce(probe)
            torch.cuda.synchronize()
        entry |= {"name": torch.cuda.get_device_name(device), "values": values, "right": right}
        return {**entry, "numa_node": node, "link": link(sampler.measured())}


def link(load: Measured) -> Measured:
    """Return the PCIe generation and lanes that were seen while copies ran; empty where the GPU has no such link."""
    generation, lanes = gpu_speed.spread(load, "pcie_gen"), gpu_speed.spread(load, "pcie_width")
    return {"generation": int(generation[2]), "lanes": int(lanes[2])} if generation and lanes else {}


def _on_card(words: exact_data.Words, device: Any, size: int) -> tuple[float, bool]:
    sources = gpu_speed.numbers(words, size, device)
    target = words.torch.zeros_like(sources[0])
    took, became = gpu_speed.copied(words, target, sources, _on_device(words, target, sources), TURNS)
    return 2 * 4 * target.numel() / took / 1e9, became["wrong"] == 0


def _on_device(words: exact_data.Words, target: Any, sources: Any) -> Callable[[int], Any]:
    """Return what counts the elements of the target that are not the source's whose turn it is."""
    return lambda turn: exact_data.compared(words.torch, target, sources[turn])


def _across(words: exact_data.Words, device: Any, size: int) -> tuple[dict[str, float], bool]:
    """Return each way's rate, and whether the bytes arrived: the host's are compared on the card, which is quicker."""
    host = [pattern.pin_memory() for pattern in gpu_speed.numbers(words, size)]
    on_card = [pattern.to(device, copy=True) for pattern in host]
    card, back = words.torch.zeros_like(on_card[0]), words.torch.zeros_like(host[0]).pin_memory()

    def returned(turn: int) -> Any:
        card.copy_(back, non_blocking=True)
        return exact_data.compared(words.torch, card, on_card[turn])

    down, upward = gpu_speed.copied(words, card, host, _on_device(words, card, on_card), TURNS)
    up, went = gpu_speed.copied(words, back, on_card, returned, TURNS)
    size = 4 * card.numel()
    rates = {"host to GPU": size / down / 1e9, "GPU to host": size / up / 1e9}
    return rates, upward["wrong"] == 0 and went["wrong"] == 0


@process_group.sound()
def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail where bytes did not arrive; then judge each GPU's GB/s by its model's limits."""
    findings = []
    for entry in ranks:
        right = entry.get("right") or {}
        lost = [path for path in entry.get("values") or {} if right.get(path) is not True]
        if lost:
            summary = f"{process_group.name(entry)}: {', '.join(lost)} did not bring every byte"
            fix = "take the GPU out and test its memory; try it in another slot"
            findings.append(failed(summary, fix=fix, code="data.wrong", **gpu_speed.about(entry)))
    speed = gpu_speed.judge(view, ranks, PATHS, "GB/s", _FIX)
    return worst([*findings, *([speed] if speed.status != PASS else [])], otherwise=speed)


NODES = Path("/sys/devices/system/node")


def near(ordinal: int) -> tuple[str | None, set[int]]:
    """Return the NUMA node of the slot of CUDA's `ordinal`-th device and its CPUs; all CPUs where it is not told."""
    allowed = os.sched_getaffinity(0)
    try:
        slot = pcie_under_load.DEVICES / pcie_under_load.address(ordinal)
        node = (slot / "numa_node").read_text(encoding="ascii").strip()
        cpus = cpus_of((NODES / f"node{node}" / "cpulist").read_text(encoding="ascii")) & allowed
    except (OSError, ValueError):  # a hypervisor or a container hides it
        return None, allowed
    return (node, cpus) if cpus else (None, allowed)


def _places(cpus: set[int]) -> list[set[int]]:
    try:
        lists = [path.read_text(encoding="ascii") for path in sorted(NODES.glob("node*/cpulist"))]
        return [place for text in lists if (place := cpus_of(text) & cpus)] or [cpus]
    except (OSError, ValueError):  # a container hides it
        return [cpus]


def cpus_of(text: str) -> set[int]:
    """Return the CPUs of a kernel list such as "0-3,8". Raises ValueError on anything else."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


@contextlib.contextmanager
def on(cpus: set[int]) -> Iterator[None]:
    """Run on these CPUs only, so that memory is taken from their node."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
