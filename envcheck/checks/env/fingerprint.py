"""Silent data corruption: the same step, and now and then another result.

Seen in the wild: Meta counted six in 54 days of Llama 3 on 16 thousand H100s. Few of them make a NaN: only the bits
tell. A deterministic training and large products are repeated, and their digests compared between repeats of a rank (a
fault that comes and goes) and between ranks (one that stays); a soak compares them between its rounds too. Products are
made in fp32 and in 16 bits, as those are other units of a GPU. A run that passes proves no absence.
"""

from __future__ import annotations

from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided
from envcheck.checks.env import _deterministic, _group, _replicas

CHECK = Check(
    promise="the same deterministic work gives the same bits, again and again and on every rank",
    level="full",
    seconds=5.0,
    timeout=300.0,
    ranks=0,
    imports=("torch._dynamo",),  # by the first optimizer
)

STEPS = 6
REPEATS = {"cuda": 40, "cpu": 3}
SIZE = {"cuda": 4096, "cpu": 384}
LIMIT = Limit(0, "digests that differ", "deterministic algorithms on the same bits give the same bits", "at most")
_FIX = "take this GPU out and test it alone (dcgmi diag -r 4); the same rank again after a reset means replace it"


def measure(rank: Rank) -> Measured:
    """Repeat the same work and digest what each repeat leaves behind."""
    import torch

    _deterministic.make(torch)
    device = _group.device_of(rank)
    torch.set_num_threads(1)
    digests = []
    repeats = REPEATS[device.type]
    for _ in range(repeats):
        training = _deterministic.Training(torch, device, seed=11)
        training.run(0, STEPS)
        digests.append(_replicas.digest(torch, [*training.model.parameters(), _product(torch, device)])[:16])
    model = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    probe = next(training.model.parameters())
    return {**_group.standing(rank, probe), "model": model, "repeats": repeats, "digests": digests}


def _product(torch: Any, device: Any) -> Any:
    """Return sums over the bits of large products: each element weighs its place, so that no two swap unseen."""
    size = SIZE[device.type]
    generator = torch.Generator().manual_seed(12)
    left = torch.randn(size, size, generator=generator).to(device)
    # Every GPU has fp16 units, and every CPU torch bfloat16: which it is makes no difference to the bits.
    short = left.to(torch.float16 if device.type == "cuda" else torch.bfloat16)
    products = ((left @ left.t()).view(torch.int32), (short @ short.t()).view(torch.int16))
    places = torch.arange(size * size, device=device) % 65521 + 1
    return torch.stack([(bits.long().flatten() * places).sum() for bits in products])


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail naming the rank whose repeats differ, or that differs from the others of its model."""
    found = _group.problem(view, ranks, backend=False)
    if found is not None:
        return found
    for entry in ranks:
        digests, repeats = entry.get("digests") or [], entry.get("repeats")
        if len(digests) < 2 or len(digests) != repeats or not all(digests):  # noqa: PLR2004 (two to compare)
            return undecided(f"rank {entry['rank']} repeated nothing", fix="see the check's log")
        odd = [number for number, digest in enumerate(digests) if digests.count(digest) * 2 <= len(digests)]
        if odd:
            return _apart(f"rank {entry['rank']} on {entry['device']}: repeats {odd[:8]} gave other bits", [entry])
    return _between(ranks) or passed(
        f"{len(ranks)} rank(s) gave the same bits {ranks[0]['repeats']} times",
        value=0,
        unit=LIMIT.unit,
        limit=LIMIT,
        bits={str(entry["rank"]): entry["digests"][0] for entry in ranks},
    )


def _between(ranks: Ranks) -> _group.Problem:
    """Return the failure naming the ranks that differ from the others of their model, or None."""
    for model in sorted({str(entry.get("model")) for entry in ranks}):
        peers = [entry for entry in ranks if str(entry.get("model")) == model]
        first = [entry["digests"][0] for entry in peers]
        odd = [peer for peer, digest in zip(peers, first) if first.count(digest) * 2 <= len(first)]
        if len(set(first)) > 1:
            names = ", ".join(f"{peer['rank']} ({peer['device']})" for peer in odd)
            whom = "one another" if len(odd) == len(peers) else "the rest"
            return _apart(f"rank(s) {names} gave other bits than {whom}, every time", odd)
    return None


def _apart(said: str, odd: Ranks) -> Outcome:
    return failed(
        said,
        fix=_FIX,
        value=sum(len(set(entry["digests"])) for entry in odd),
        unit=LIMIT.unit,
        limit=LIMIT,
        ranks=[entry["rank"] for entry in odd],
        digests={str(entry["rank"]): entry["digests"] for entry in odd},
    )
