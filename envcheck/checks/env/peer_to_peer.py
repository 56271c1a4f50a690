"""One GPU writes into another's memory, and it hangs, or something else arrives.

Seen in the wild: the first peer-to-peer transfer hangs for ever behind PCIe bridges with ACS or an IOMMU that
translates (NVIDIA/nccl#2079, #631, #257), and data that is silently wrong, which is why DCGM keeps a write, read and
compare test. Tried in one process before any group of ranks, with a pattern that reached both GPUs through the host;
by the copy engine, and by a kernel that writes into the peer as NCCL's do (a strided copy is one in PyTorch).
"""

from __future__ import annotations

from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided
from envcheck.checks.env import _group, _peers

CHECK = Check(
    promise="every bit that a GPU writes to another one that it can reach arrives, in both directions",
    level="quick",
    seconds=4.0,
    timeout=40.0,
    gpus=2,
    probe=True,
)

VALUES = (8 << 20) + 3  # of 32 bits, and no multiple of anything
_LIMIT = Limit(0, "wrong values", "a copy is exact", "equal")
_FIX = (
    "on bare metal disable ACS on the PCIe bridges and set the IOMMU to pass through (iommu=pt); look at NVLink "
    "errors; exchange one of the two GPUs; until then NCCL_P2P_DISABLE=1"
)


def measure(rank: Rank) -> Measured:
    """Write random bits from each GPU to each other one that CUDA lets it reach, and compare every one of them."""
    import torch

    devices = _peers.devices(torch, rank)
    names = [_peers.name(torch, device, index) for index, device in enumerate(devices)]
    pattern = torch.randint(-(1 << 31), 1 << 31, (VALUES,), dtype=torch.int64).to(torch.int32)
    there = [pattern.to(device, copy=True) for device in devices]
    _peers.synchronize(torch, *devices)
    pairs: list[Measured] = []
    for source, target in _peers.ordered(len(devices)):
        why = _peers.unreachable(torch, devices[source], devices[target])
        if why is None:
            _peers.doing(rank, f"{names[source]} -> {names[target]}")
        found = {"unreachable": why} if why else {"wrong": _wrong(torch, there[source], there[target])}
        pairs.append({"source": source, "target": target, **found})
    broken = any(pair.get("wrong") for pair in pairs)
    return {**_group.standing(rank, there[0]), "gpus": names, "pairs": pairs, "broken": broken}


def _wrong(torch: Any, source: Any, reference: Any) -> dict[str, Measured]:
    """Return what arrived wrong beside `reference`, by the way it took; nothing when all is right."""
    found = {}
    for way, steps in (("copy engine", [slice(None)]), ("kernel", [slice(0, None, 2), slice(1, None, 2)])):
        target = reference.bitwise_not()
        for step in steps:
            target[step].copy_(source[step])
        _peers.synchronize(torch, source.device, target.device)
        differ = (target != reference).nonzero().flatten()
        if len(differ):
            first = int(differ[0])
            bits = (int(target[first]) ^ int(reference[first])) & 0xFFFFFFFF
            found[way] = {"count": len(differ), "index": first, "xor": hex(bits)}
    return found


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on one wrong bit, naming both GPUs; GPUs that cannot reach each other are told, and no fault."""
    found = _group.problem(view, ranks, backend=False)
    if found is not None:
        return found
    names, pairs = ranks[0].get("gpus") or [], ranks[0].get("pairs") or []
    tried = [pair for pair in pairs if not pair.get("unreachable")]
    told = sorted((pair.get("source"), pair.get("target")) for pair in pairs)
    if told != _peers.ordered(len(names)) or not all(isinstance(pair.get("wrong"), dict) for pair in tried):
        return undecided(f"{len(told)} pairs of {len(names)} GPUs were told of", fix="see the check's log")
    if not pairs:
        return undecided("no pair of GPUs was tried", fix="see the check's log")
    broken = _broken(names, tried)
    if broken is not None:
        return broken
    if not tried:
        return skipped(
            f"no GPU here can reach another ({pairs[0]['unreachable']}): NCCL goes through the host's memory"
        )
    rest = f"; {len(pairs) - len(tried)} pairs cannot reach each other" if len(tried) < len(pairs) else ""
    return passed(
        f"{len(tried)} ordered pairs, {VALUES} values each way they are written: exact{rest}",
        value=0,
        unit="wrong values",
        limit=_LIMIT,
    )


def _broken(names: list[str], tried: list[Measured]) -> Outcome | None:
    bad = [pair for pair in tried if pair["wrong"]]
    if not bad:
        return None
    source, target = (names[bad[0][end]] for end in ("source", "target"))
    way, first = next(iter(bad[0]["wrong"].items()))
    others = f"; {len(bad)} of {len(tried)} pairs are broken" if len(bad) > 1 else ""
    return failed(
        f"P2P broken: {source} -> {target}: {first['count']} values wrong by {way}, first at {first['index']} "
        f"(xor {first['xor']}){others}",
        fix=_FIX,
        value=first["count"],
        unit="wrong values",
        limit=_LIMIT,
        gpus=[_peers.uuid(source), _peers.uuid(target)],
        pairs=bad,
    )
