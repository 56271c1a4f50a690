"""One GPU writes into another's memory, and it hangs, or something else arrives.

It hangs behind PCIe bridges with ACS or an IOMMU that translates (NVIDIA/nccl#2079, #631, #257). Tried in one process
before any group of ranks, with words of plain Python that reached both GPUs through the host and were read back; by the
copy engine, and by a kernel that writes into the peer as NCCL's do (a strided copy is one in PyTorch). Every transfer
is compared on the GPU, and the first of each way in plain Python too.
"""

from __future__ import annotations

import itertools
from typing import Any

from envcheck import checks
from envcheck.checks import Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided, worst
from envcheck.checks.support import exact_data, gpu_speed, process_group
from envcheck.counting import counted

CHECK = checks.Check(
    promise="every bit that a GPU writes to another one that it can reach arrives, in both directions",
    level="quick",
    seconds=4.0,
    timeout=90.0,  # on a busy CPU, the data alone take 40 s
    gpus=2,
    probe=True,
)

VALUES = (8 << 20) + 3  # of 32 bits, and no multiple of anything
# Each way this often, both ways, with the pattern under another mask each time.
TRANSFERS = 8
_MASKS = (0, -1, 0x55555555, 0x0F0F0F0F, 0x33333333, 0x00FF00FF, 0x01234567, 0x7FFFFFFF)
# Blocks of the first transfer that plain Python reads: the first and the last.
_LOOKED = 2
_LIMIT = checks.Limit(0, "wrong values", "a copy is exact", "equal")
_FIX = (
    "on bare metal disable ACS on the PCIe bridges and set the IOMMU to pass through (iommu=pt); look at NVLink "
    "errors; exchange one of the two GPUs; until then NCCL_P2P_DISABLE=1"
)


def measure(rank: Rank) -> Measured:
    """Write seeded words from each GPU to each other one that CUDA lets it reach, and compare every one of them."""
    import torch

    devices = gpu_speed.devices(torch, rank)
    names = [gpu_speed.name(torch, device, index) for index, device in enumerate(devices)]
    seed = exact_data.seed()
    words = exact_data.Words(torch, seed)
    pattern = words.tensor(VALUES)
    copies = [pattern.to(device, copy=True) for device in devices]
    gpu_speed.synchronize(torch, *devices)
    for one in copies:
        words.confirm(one)
    pairs: list[Measured] = []
    for source, target in gpu_speed.ordered(len(devices)):
        why = gpu_speed.unreachable(torch, devices[source], devices[target])
        if why is None:
            gpu_speed.doing(rank, f"{names[source]} -> {names[target]}")
        result = {"unreachable": why} if why else {"wrong": _wrong(words, copies[source], copies[target])}
        pairs.append({"source": source, "target": target, **result})
    measured = {"gpus": names, "pairs": pairs, "broken": any(pair.get("wrong") for pair in pairs), "seed": seed}
    return {**process_group.standing(rank, copies[0]), **measured}


def _wrong(words: exact_data.Words, source: Any, reference: Any) -> dict[str, Measured]:
    """Return what arrived wrong beside `reference`, by the way it took: TRANSFERS times, each with other bits."""
    wrong: dict[str, Measured] = {}
    ways = (("copy engine", [slice(None)]), ("kernel", [slice(0, None, 2), slice(1, None, 2)]))
    for turn, (way, steps) in itertools.product(range(TRANSFERS), ways):
        if way in wrong:
            continue
        sent, right = (pattern.bitwise_xor(_MASKS[turn % len(_MASKS)]) for pattern in (source, reference))
        target = right.bitwise_not()
        for step in steps:
            target[step].copy_(sent[step])
        gpu_speed.synchronize(words.torch, source.device, target.device)
        count = int(exact_data.compared(words.torch, target, right))
        # A device that sees no difference where there is one would hide all of them.
        count = max(count, 0 if turn else words.wrong(target, looked=_LOOKED))
        if count:
            first = exact_data.first_difference(*(exact_data.content(tensor) for tensor in (target, right)))
            index, bits = first or (None, 0)
            wrong[way] = {"count": count, "index": index, "xor": hex(bits), "transfer": turn}
    return wrong


@process_group.sound(backend=False)
def judge(view: View, ranks: Ranks) -> Outcome:  # noqa: ARG001 (a judge's signature)
    """Fail on one wrong bit, naming both GPUs; GPUs that cannot reach each other are listed and do not fail."""
    names, pairs = ranks[0].get("gpus") or [], ranks[0].get("pairs") or []
    tried = [pair for pair in pairs if not pair.get("unreachable")]
    listed = sorted((pair.get("source"), pair.get("target")) for pair in pairs)
    if listed != gpu_speed.ordered(len(names)) or not all(isinstance(pair.get("wrong"), dict) for pair in tried):
        summary = f"{counted(len(listed), 'pair')} of {counted(len(names), 'GPU')} were reported"
        return undecided(summary, code="p2p.unmeasured")
    if not pairs:
        return undecided("no pair of GPUs was tried", code="p2p.unmeasured")
    broken = [_broken(names, pair) for pair in tried if pair["wrong"]]
    if broken:
        return worst(broken, otherwise=broken[0])
    if not tried:
        why = f"no GPU here can reach another ({pairs[0]['unreachable']}): NCCL goes through the host's memory"
        return skipped(why, code="peer-to-peer.none")
    apart = len(pairs) - len(tried)
    notes = f"; out of reach of each other: {counted(apart, 'pair')}" if apart else ""
    summary = f"{len(tried)} ordered pairs, {VALUES} values each way they are written: exact{notes}"
    return passed(summary, value=0, limit=_LIMIT)


def _broken(names: list[str], pair: Measured) -> Outcome:
    source, target = (names[pair[end]] for end in ("source", "target"))
    way, first = next(iter(pair["wrong"].items()))
    count = counted(first["count"], "value")
    return failed(
        f"P2P broken: {source} -> {target}: {count} wrong by {way}, first at {first['index']} (xor {first['xor']})",
        fix=_FIX,
        value=first["count"],
        limit=_LIMIT,
        gpus=[gpu_speed.uuid(source), gpu_speed.uuid(target)],
        pair=pair,
        code="p2p.data",
        culprit=f"{source} -> {target}",
    )
