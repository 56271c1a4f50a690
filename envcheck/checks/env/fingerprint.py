"""Silent data corruption: the same step, and now and then another result.

A deterministic training and large products are repeated, and their digests compared between repeats of a rank (a fault
that comes and goes), between ranks (one that stays), and between the rounds of a repeated run. Products are made in
fp32 and in 16 bits, as those are other units of a GPU. The same bits may be wrong ones, which kernels tells.
"""

from __future__ import annotations

from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, worst
from envcheck.checks.support import exact_data, process_group, training
from envcheck.counting import counted, numbered

CHECK = Check(
    promise="the same deterministic work gives the same bits, again and again and on every rank",
    level="full",
    seconds=5.0,
    cpu_seconds=0.2,
    timeout=300.0,
    ranks=0,
    imports=("torch._dynamo",),  # by the first optimizer
)

STEPS = 6
REPEATS = {"cuda": 40, "cpu": 3}
SIZE = {"cuda": 4096, "cpu": 384}
# The same in every round and on every rank, so that their bits can be compared.
SEED = 12
LIMIT = Limit(0, "digests that differ", "deterministic algorithms on the same bits give the same bits", "at most")
_FIX = "take this GPU out and test it alone (`dcgmi diag -r 4`); the same rank again after a reset means replace it"


def measure(rank: Rank) -> Measured:
    """Repeat the same work and digest what each repeat leaves behind."""
    import torch

    training.make(torch)
    device = process_group.device_of(rank)
    torch.set_num_threads(1)
    digests = []
    repeats = REPEATS[device.type]
    left = exact_data.data(torch, SIZE[device.type], SIZE[device.type], device, SEED)
    # Every GPU has fp16 units, and every CPU torch bfloat16: which it is makes no difference to the bits.
    operands = left, left.to(torch.float16 if device.type == "cuda" else torch.bfloat16)
    for _ in range(repeats):
        work = training.Training(torch, device, seed=11)
        work.run(0, STEPS)
        digests.append(training.digest(torch, [*work.model.parameters(), _sums(torch, operands)])[:16])
    model = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    probe = next(work.model.parameters())
    return {**process_group.standing(rank, probe), "model": model, "repeats": repeats, "digests": digests}


def _sums(torch: Any, operands: tuple[Any, Any]) -> Any:
    """Return sums over the bits of large products: each element weighs its place, so that no two swap unseen."""
    wide, short = operands
    products = ((wide @ wide.t()).view(torch.int32), (short @ short.t()).view(torch.int16))
    places = torch.arange(wide.numel(), device=wide.device) % 65521 + 1
    return torch.stack([(bits.long().flatten() * places).sum() for bits in products])


@process_group.sound(backend=False)
def judge(view: View, ranks: Ranks) -> Outcome:  # noqa: ARG001 (a judge's signature)
    """Fail on each rank whose repeats differ, or that differs from others of its model."""
    findings = [finding for entry in ranks for finding in _repeated(entry)]
    blamed = {finding.culprit for finding in findings}
    findings += _between([entry for entry in ranks if process_group.name(entry) not in blamed])
    same = passed(
        f"{counted(len(ranks), 'rank')} gave the same bits {ranks[0].get('repeats')} times",
        value=0,
        limit=LIMIT,
        bits={str(entry["rank"]): (entry.get("digests") or [""])[0] for entry in ranks},
    )
    return worst(findings, otherwise=same)


def _repeated(entry: Measured) -> list[Outcome]:
    digests, repeats = entry.get("digests") or [], entry.get("repeats")
    if len(digests) < 2 or len(digests) != repeats or not all(digests):  # noqa: PLR2004 (two to compare)
        who = process_group.name(entry)
        return [undecided(f"{who} repeated nothing", code="fingerprint.missing", culprit=who)]
    odd = [number for number, digest in enumerate(digests) if digests.count(digest) * 2 <= len(digests)]
    if not odd:
        return []
    return [_apart(f"{process_group.name(entry)}: repeats {odd[:8]} gave other bits", [entry])]


def _between(ranks: Ranks) -> list[Outcome]:
    findings = []
    for model in sorted({str(entry.get("model")) for entry in ranks}):
        peers = [entry for entry in ranks if str(entry.get("model")) == model]
        first = [(entry.get("digests") or [""])[0] for entry in peers]
        odd = [peer for peer, digest in zip(peers, first) if first.count(digest) * 2 <= len(first)]
        if len(set(first)) > 1:
            names = numbered("rank", [f"{peer['rank']} ({peer['device']})" for peer in odd])
            whom = "one another" if len(odd) == len(peers) else "the rest"
            findings.append(_apart(f"{names} gave other bits than {whom}, every time", odd))
    return findings


def _apart(summary: str, odd: Ranks) -> Outcome:
    return failed(
        summary,
        fix=_FIX,
        value=sum(len(set(entry["digests"])) for entry in odd),
        limit=LIMIT,
        code="fingerprint.bits",
        culprit=", ".join(map(process_group.name, odd)),
        ranks=[entry["rank"] for entry in odd],
        digests={str(entry["rank"]): entry["digests"] for entry in odd},
    )
