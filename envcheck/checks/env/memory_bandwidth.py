"""Memory on the card or the way to it at half speed: every kernel and every batch waits, and nothing is broken.

Seen in the wild: HBM whose channels were remapped, a riser that negotiated PCIe x8 or Gen3, a batch pinned on the far
socket's memory, an IOMMU that translates each page. Copies on the card count read and write (2 * bytes), as AMD Primus
does; copies to and from pinned memory run one GPU after the other, so that they do not share the host's lanes.
"""

from __future__ import annotations

from typing import Any

from envcheck.checks import Check, Measured, Outcome, Rank, Ranks, View, failed
from envcheck.checks.env import _group, _speed

CHECK = Check(
    promise="copies in the GPU's memory, and to and from the host, reach what this GPU model does, where that is known",
    level="standard",
    seconds=4.0,
    timeout=180.0,
    gpus=1,
    ranks=0,
    performance=True,
)

ON_CARD, ACROSS = 1 << 30, 512 * _speed.MIB
_FREE_SHARE = 0.25
WARMUP, ITERATIONS = 3, 20
PATHS = {"HBM copy": "hbm-copy", "host to GPU": "host-to-gpu", "GPU to host": "gpu-to-host"}
_FIX = (
    "look at PCIe generation and width under load, remapped rows and ECC (nvidia-smi -q); bind the rank to its GPU's "
    "NUMA node"
)


def measure(rank: Rank) -> Measured:
    """Copy on the card, to it and from it; the median GB/s (1e9) of each, and whether the bytes arrived."""
    import torch

    device = _group.device_of(rank)
    with _group.group(rank) as dist:
        probe = torch.zeros(1, device=device)
        values, right = {}, {}
        free = int(torch.cuda.mem_get_info(device)[0] * _FREE_SHARE)
        values["HBM copy"], right["HBM copy"] = _on_card(torch, device, min(ON_CARD, free // 2))
        for turn in range(rank.world):
            if turn == rank.rank:
                across = _across(torch, device, min(ACROSS, free))
                values |= {path: rate for path, (rate, _) in across.items()}
                right |= {path: whole for path, (_, whole) in across.items()}
            dist.all_reduce(probe)
            torch.cuda.synchronize()
        name = torch.cuda.get_device_name(device)
        return {**_group.standing(rank, probe, dist.get_backend()), "name": name, "values": values, "right": right}


def _on_card(torch: Any, device: Any, size: int) -> tuple[float, bool]:
    source = torch.randint(-128, 127, (size,), dtype=torch.int8, device=device)
    target = torch.zeros_like(source)
    rate = 2 * size / _median(torch, target, source) / 1e9
    return rate, bool(torch.equal(source, target))


def _across(torch: Any, device: Any, size: int) -> dict[str, tuple[float, bool]]:
    host = torch.randint(-128, 127, (size,), dtype=torch.int8).pin_memory()
    card, back = torch.zeros_like(host, device=device), torch.zeros_like(host).pin_memory()
    down = size / _median(torch, card, host) / 1e9
    up = size / _median(torch, back, card) / 1e9
    whole = bool(torch.equal(back, host))
    return {"host to GPU": (down, whole), "GPU to host": (up, whole)}


def _median(torch: Any, target: Any, source: Any) -> float:
    return _speed.seconds(torch, lambda: target.copy_(source, non_blocking=True), lambda: None, WARMUP, ITERATIONS)


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail where bytes did not arrive; then judge each GPU's GB/s by its model's limits."""
    found = _group.problem(view, ranks)
    if found is not None:
        return found
    for entry in ranks:
        for path in entry.get("values") or {}:
            if (entry.get("right") or {}).get(path) is not True:
                return failed(
                    f"rank {entry['rank']} on {entry['device']}: {path} did not bring every byte",
                    fix="take the GPU out and test its memory; try it in another slot",
                    rank=entry["rank"],
                )
    return _speed.judge(view, ranks, PATHS, "GB/s", _FIX)
