"""Memory on the card or the way to it at half speed: every kernel and every batch waits, and nothing is broken.

Seen in the wild: HBM whose channels were remapped, a riser that negotiated PCIe x8 or Gen3, a batch pinned on the far
socket's memory, an IOMMU that translates each page. Copies on the card count read and write (2 * bytes), as AMD Primus
does; copies to and from pinned memory run one GPU after the other, so that they do not share the host's lanes, and from
every NUMA node in turn: the node that the GPU hangs on is judged, the others are told.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from envcheck.checks import Check, Measured, Outcome, Rank, Ranks, View, failed
from envcheck.checks.env import _group, _numa, _speed

CHECK = Check(
    promise="copies in the GPU's memory, and to and from the host, reach what this GPU model does, where that is known",
    level="standard",
    seconds=8.0,
    timeout=180.0,
    gpus=1,
    ranks=0,
    performance=True,
)

ON_CARD, ACROSS = 1 << 30, 512 * _speed.MIB
_FREE_SHARE = 0.25
WARMUP, ITERATIONS = 3, 20
PATHS = {"HBM copy": "hbm-copy", "host to GPU": "host-to-gpu", "GPU to host": "gpu-to-host"}
_ACROSS = ("host to GPU", "GPU to host")
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
                across, refused = _by_node(torch, device, min(ACROSS, free))
                values |= _best(across)
                right |= {path: all(told["right"] for told in across.values()) for path in _best(across)}
            dist.all_reduce(probe)
            torch.cuda.synchronize()
        name = torch.cuda.get_device_name(device)
        entry = {**_group.standing(rank, probe, dist.get_backend()), "name": name, "values": values, "right": right}
        return {**entry, "across": across, "refused": refused}


def _on_card(torch: Any, device: Any, size: int) -> tuple[float, bool]:
    source = torch.randint(-128, 127, (size,), dtype=torch.int8, device=device)
    target = torch.zeros_like(source)
    rate = 2 * size / _median(torch, target, source) / 1e9
    return rate, bool(torch.equal(source, target))


def _by_node(torch: Any, device: Any, size: int) -> tuple[dict[str, Measured], dict[str, str]]:
    """Copy from and to each NUMA node's memory; say which nodes this process may not run on, and why."""
    nodes = _numa.nodes() or {"here": os.sched_getaffinity(0)}
    kept: list[Any] = []
    found = {node: _bound(torch, device, size // len(nodes), cpus, kept) for node, cpus in nodes.items()}
    refused = {node: told for node, told in found.items() if isinstance(told, str)}
    return {node: told for node, told in found.items() if not isinstance(told, str)}, refused


def _bound(torch: Any, device: Any, size: int, cpus: set[int], kept: list[Any]) -> Measured | str:
    try:
        with _numa.on(cpus):
            return _across(torch, device, size, kept)
    except OSError as error:
        return str(error.strerror)


def _across(torch: Any, device: Any, size: int, kept: list[Any]) -> Measured:
    """Return the rate of each way, and whether the bytes arrived. What is pinned is `kept`: torch would hand it on."""
    host = torch.randint(-128, 127, (size,), dtype=torch.int8).pin_memory()
    card, back = torch.zeros_like(host, device=device), torch.zeros_like(host).pin_memory()
    kept += [host, back]
    down, up = size / _median(torch, card, host) / 1e9, size / _median(torch, back, card) / 1e9
    return {"host to GPU": down, "GPU to host": up, "right": bool(torch.equal(back, host))}


def _median(torch: Any, target: Any, source: Any) -> float:
    return _speed.seconds(torch, lambda: target.copy_(source, non_blocking=True), lambda: None, WARMUP, ITERATIONS)


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail where bytes did not arrive; then judge each GPU's GB/s by its model's limits."""
    found = _group.problem(view, ranks)
    if found is not None:
        return found
    for entry in ranks:
        lost = _lost(entry)
        if lost:
            return failed(
                f"rank {entry['rank']} on {entry['device']}: {lost} did not bring every byte",
                fix="take the GPU out and test its memory; try it in another slot",
                rank=entry["rank"],
            )
    near = [_near(view, entry) for entry in ranks]
    outcome = _speed.judge(view, near, PATHS, "GB/s", _FIX)
    numa = {str(entry["rank"]): {"node": entry.get("node"), "across": entry.get("across")} for entry in near}
    return dataclasses.replace(
        outcome, summary=f"{outcome.summary}{_far(near)}", details={**outcome.details, "numa": numa}
    )


def _lost(entry: Measured) -> str:
    """Return what lost bytes: a path, or the way to a NUMA node; or nothing."""
    right, across = entry.get("right") or {}, entry.get("across") or {}
    paths = [path for path in entry.get("values") or {} if right.get(path) is not True]
    return ", ".join([*paths, *(f"NUMA node {node}" for node, told in across.items() if told.get("right") is not True)])


def _near(view: View, entry: Measured) -> Measured:
    """Return the entry with the rates from the GPU's own NUMA node; from the best one where its own is not known.

    A report from before there were nodes has its rates already.
    """
    across = entry.get("across") or {}
    node = _numa.nearest(view, entry["device"])
    if node not in across:
        node = max(across, key=lambda one: sum(_rates(across[one]).values()), default=None)
    known = {path: rate for path, rate in (entry.get("values") or {}).items() if not across or path not in _ACROSS}
    return {**entry, "node": node, "values": {**known, **_rates(across.get(node) or {})}}


def _best(across: Mapping[str, Measured]) -> dict[str, float]:
    """Return each way's rate from the node that it is fastest from."""
    told = [_rates(rates) for rates in across.values()]
    return {path: max(rates[path] for rates in told) for path in _ACROSS if told and all(path in r for r in told)}


def _rates(told: Measured) -> dict[str, float]:
    return {path: float(told[path]) for path in _ACROSS if _group.finite(told.get(path))}


def _far(near: Ranks) -> str:
    """Return what the nodes that no GPU hangs on come to at least, and which could not be used; or nothing."""
    told = [
        rate for e in near for n, rates in (e.get("across") or {}).items() if n != e["node"] for rate in [_rates(rates)]
    ]
    slowest = {path: min(rates[path] for rates in told) for path in _ACROSS if told and all(path in r for r in told)}
    far = ", ".join(f"{path} {rate:.4g}" for path, rate in slowest.items())
    refused = sorted({node for entry in near for node in entry.get("refused") or {}})
    closed = f"; NUMA node {', '.join(refused)} is closed to this process" if refused else ""
    return (f"; from another NUMA node at least {far}" if far else "") + closed
