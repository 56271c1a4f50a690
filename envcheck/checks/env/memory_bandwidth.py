"""Memory on the card or the way to it at half speed: every kernel and every batch waits, and nothing is broken.

Seen in the wild: HBM whose channels were remapped, a riser that negotiated PCIe x8 or Gen3, a batch pinned on the far
socket's memory, an IOMMU that translates each page. Copies on the card count read and write (2 * bytes), as AMD Primus
does; copies to and from pinned memory run one GPU after the other, so that they do not share the host's lanes, and from
every NUMA node in turn: the node that the GPU hangs on is judged, the others are reported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from envcheck.checks import PASS, Check, Measured, Outcome, Rank, Ranks, View, failed, worst
from envcheck.checks.collectives import exact_numbers
from envcheck.checks.support import gpu_speed, process_group, seeded_numbers
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
WARMUP, ITERATIONS = 3, 20
_INTERVAL = 0.05
PATHS = {"HBM copy": "hbm-copy", "host to GPU": "host-to-gpu", "GPU to host": "gpu-to-host"}
_ACROSS = ("host to GPU", "GPU to host")
_FIX = (
    "look at PCIe generation and width under load, remapped rows and ECC (nvidia-smi -q); bind the rank to its GPU's "
    "NUMA node"
)


def measure(rank: Rank) -> Measured:
    """Copy on the card, to it and from it; the median GB/s (1e9) of each, and whether the bytes arrived."""
    import torch

    device = process_group.device_of(rank)
    with process_group.group(rank) as dist:
        probe = torch.zeros(1, device=device)
        seed = seeded_numbers.seed(rank.rank)
        words = seeded_numbers.Words(torch, seed)
        values, right = {}, {}
        free = int(torch.cuda.mem_get_info(device)[0] * _FREE_SHARE)
        values["HBM copy"], right["HBM copy"] = _on_card(words, device, min(ON_CARD, free // 3))
        for turn in range(rank.world):
            if turn == rank.rank:
                with hardware_sampler.Sampler(
                    str(process_group.standing(rank, probe)["device"]), rank.local_rank, _INTERVAL
                ) as sampler:
                    across, refused = _by_node(words, device, min(ACROSS, free // 3))
                values |= _best(across)
                right |= {path: all(rates["right"] for rates in across.values()) for path in _best(across)}
            dist.all_reduce(probe)
            torch.cuda.synchronize()
        name = torch.cuda.get_device_name(device)
        entry = {
            **process_group.standing(rank, probe, dist.get_backend()),
            "name": name,
            "seed": seed,
            "values": values,
            "right": right,
        }
        return {**entry, "across": across, "refused": refused, "link": link(sampler.measured())}


def link(load: Measured) -> Measured:
    """Return the PCIe generation and lanes that were seen while copies ran; empty where the GPU has no such link."""
    generation, lanes = gpu_speed.spread(load, "pcie_gen"), gpu_speed.spread(load, "pcie_width")
    return {"generation": int(generation[2]), "lanes": int(lanes[2])} if generation and lanes else {}


def _on_card(words: seeded_numbers.Words, device: Any, size: int) -> tuple[float, bool]:
    sources = gpu_speed.numbers(words, size, device)
    target = words.torch.zeros_like(sources[0])
    took, became = _copies(words, target, sources, _on_device(words, target, sources))
    return 2 * 4 * target.numel() / took / 1e9, became["wrong"] == 0


def _on_device(words: seeded_numbers.Words, target: Any, sources: Any) -> Callable[[int], Any]:
    """Return what counts the elements of the target that are not the source's whose turn it is."""
    return lambda turn: exact_numbers.compared(words.torch, target, sources[turn])


def _by_node(words: seeded_numbers.Words, device: Any, size: int) -> tuple[dict[str, Measured], dict[str, str]]:
    """Copy from and to each NUMA node's memory; say which nodes this process may not run on, and why."""
    found = nodes() or {"here": os.sched_getaffinity(0)}
    pinned: list[Any] = []
    by_node = {node: _bound(words, device, size // len(found), cpus, pinned) for node, cpus in found.items()}
    refused = {node: refusal for node, refusal in by_node.items() if isinstance(refusal, str)}
    return {node: rates for node, rates in by_node.items() if not isinstance(rates, str)}, refused


def _bound(words: seeded_numbers.Words, device: Any, size: int, cpus: set[int], pinned: list[Any]) -> Measured | str:
    try:
        with on(cpus):
            return _across(words, device, size, pinned)
    except OSError as error:
        return str(error.strerror)


def _across(words: seeded_numbers.Words, device: Any, size: int, pinned: list[Any]) -> Measured:
    """Return the rate of each way, and whether the bytes arrived. What is pinned is `pinned`: torch would hand it on.

    What came back to the host is sent to the card again and compared there, which is quicker than the host is.
    """
    host = [pattern.pin_memory() for pattern in gpu_speed.numbers(words, size)]
    on_card = [pattern.to(device, copy=True) for pattern in host]
    card, back = words.torch.zeros_like(on_card[0]), words.torch.zeros_like(host[0]).pin_memory()
    pinned += [*host, back]

    def returned(turn: int) -> Any:
        card.copy_(back, non_blocking=True)
        return exact_numbers.compared(words.torch, card, on_card[turn])

    down, upward = _copies(words, card, host, _on_device(words, card, on_card))
    up, went = _copies(words, back, on_card, returned)
    size = 4 * card.numel()
    right = upward["wrong"] == 0 and went["wrong"] == 0
    return {"host to GPU": size / down / 1e9, "GPU to host": size / up / 1e9, "right": right, "copies": [upward, went]}


def _copies(words: seeded_numbers.Words, target: Any, sources: Any, wrong: Any) -> tuple[float, Measured]:
    """Copy one source after the other to the target; see `gpu_speed.copied`."""

    def copy(turn: int) -> None:
        target.copy_(sources[turn], non_blocking=True)

    def look(turn: int) -> int:
        return words.wrong(target, gpu_speed.MASKS[turn])

    return gpu_speed.copied(words.torch, gpu_speed.Copy(copy, wrong, look), WARMUP, ITERATIONS)


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail where bytes did not arrive; then judge each GPU's GB/s by its model's limits."""
    problem = process_group.problem(view, ranks)
    if problem is not None:
        return problem
    wrong = [
        failed(
            f"rank {entry['rank']} on {entry['device']}: {lost} did not bring every byte",
            fix="take the GPU out and test its memory; try it in another slot",
            code="data.wrong",
            culprit=gpu_speed.culprit(entry),
            rank=entry["rank"],
        )
        for entry in ranks
        if (lost := _lost(entry))
    ]
    near = [_near(view, entry) for entry in ranks]
    speed = gpu_speed.judge(view, near, PATHS, "GB/s", _FIX)
    outcome = worst([*wrong, *([speed] if speed.status != PASS else [])], otherwise=speed)
    numa = {str(entry["rank"]): {"node": entry.get("node"), "across": entry.get("across")} for entry in near}
    return dataclasses.replace(
        outcome, summary=f"{outcome.summary}{_far(near)}", details={**outcome.details, "numa": numa}
    )


def _lost(entry: Measured) -> str:
    """Return what lost bytes: a path, or the way to a NUMA node; or nothing."""
    right, across = entry.get("right") or {}, entry.get("across") or {}
    paths = [path for path in entry.get("values") or {} if right.get(path) is not True]
    return ", ".join(
        [*paths, *(f"NUMA node {node}" for node, rates in across.items() if rates.get("right") is not True)]
    )


def _near(view: View, entry: Measured) -> Measured:
    """Return the entry with the rates from the GPU's own NUMA node; from the best one where its own is not known.

    A report from before there were nodes has its rates already.
    """
    across = entry.get("across") or {}
    node = nearest(view, entry["device"])
    if node not in across:
        node = max(across, key=lambda name: sum(_rates(across[name]).values()), default=None)
    rates = {path: rate for path, rate in (entry.get("values") or {}).items() if not across or path not in _ACROSS}
    return {**entry, "node": node, "values": {**rates, **_rates(across.get(node) or {})}}


def _best(across: Mapping[str, Measured]) -> dict[str, float]:
    """Return each way's rate from the node that it is fastest from."""
    per_node = [_rates(rates) for rates in across.values()]
    return {
        path: max(rates[path] for rates in per_node)
        for path in _ACROSS
        if per_node and all(path in r for r in per_node)
    }


def _rates(rates: Measured) -> dict[str, float]:
    return {path: float(rates[path]) for path in _ACROSS if process_group.finite(rates.get(path))}


def _far(near: Ranks) -> str:
    """Return what the nodes that no GPU hangs on come to at least, and which could not be used; or nothing."""
    lines = [
        rate for e in near for n, rates in (e.get("across") or {}).items() if n != e["node"] for rate in [_rates(rates)]
    ]
    slowest = {path: min(rates[path] for rates in lines) for path in _ACROSS if lines and all(path in r for r in lines)}
    far = ", ".join(f"{path} {rate:.4g}" for path, rate in slowest.items())
    refused = sorted({node for entry in near for node in entry.get("refused") or {}})
    closed = f"; NUMA node {', '.join(refused)} is closed to this process" if refused else ""
    return (f"; from another NUMA node at least {far}" if far else "") + closed


NODES = Path("/sys/devices/system/node")


def cpus(text: str) -> set[int]:
    """Return the CPUs of a kernel list such as "0-3,8". Raises ValueError on anything else."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def nodes(root: Path = NODES) -> dict[str, set[int]]:
    """Return the CPUs of each NUMA node that has any, by the node's number; {} where the kernel does not say."""
    cpus = {node.name[4:]: _cpus_of(node) for node in sorted(root.glob("node[0-9]*"))}
    return {number: those for number, those in cpus.items() if those}


def _cpus_of(node: Path) -> set[int]:
    try:
        return cpus((node / "cpulist").read_text())
    except (OSError, ValueError):  # a kernel that hides it: not a node to run on
        return set()


@contextlib.contextmanager
def on(those: set[int]) -> Iterator[None]:
    """Run on these CPUs only, so that memory is taken from their node. Raises OSError where they are not allowed."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, those)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def nearest(view: View, uuid: str) -> str | None:
    """Return the NUMA node of this GPU's slot as the node's snapshot has it; None where it does not say."""
    bus = next((gpu.signal("bus_id").value for gpu in view.snapshot.gpus if gpu.uuid == uuid), None)
    slots: Any = view.snapshot.signal("pci.gpus").value
    for slot in slots if isinstance(slots, list) and isinstance(bus, str) else []:
        # NVML writes eight digits of the PCI domain, Linux four.
        if isinstance(slot, dict) and str(slot.get("bus_id")).lower() == str(bus).lower()[-12:]:
            node = slot.get("numa_node")
            return str(node) if isinstance(node, int) and node >= 0 else None
    return None
