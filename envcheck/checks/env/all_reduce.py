"""An all-reduce that NCCL or gloo returns is not an all-reduce that is right.

A sum of ones would hide swapped chunks and dropped writes. Rank r fills x[i] = (h(i) + 3r + seed) mod 8, where h(i) is
the top three bits of i * 2654435761 mod 2^32: lower bits of that product repeat every 65536 elements. Sums up to 7n are
exact in every dtype whatever the order of adding, so the result must be equal to the bit.
"""

from __future__ import annotations

from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided
from envcheck.checks.support import exact_data, process_group
from envcheck.counting import numbered

CHECK = Check(
    promise="an all-reduce is exact to the bit, in every dtype, on every rank",
    level="standard",
    seconds=1.0,
    cpu_seconds=0.5,
    timeout=120.0,
    ranks=0,
    least_ranks=2,
)

# Not a multiple of anything a collective cuts its buffers into.
COUNT = (1 << 20) + 3
# The largest integer up to which all are exact.
EXACT_UP_TO = {"float32": 1 << 24, "float16": 1 << 11, "bfloat16": 1 << 8}
LARGEST_TERM = 7
LIMIT = Limit(0, "wrong elements", "integers of this size are exact in the dtype, in any order of adding", "at most")


def pattern(index: Any) -> Any:
    """Return h(i) of an integer or a tensor of them: 0 to 7, unlike itself at any distance below 2^29."""
    return (index * 2654435761 % (1 << 32)) >> 29


def required(world: int, backend: str) -> list[str]:
    """Return the dtypes that must be exact: gloo promises fp32 alone, and enough ranks outgrow a dtype's integers."""
    dtypes = EXACT_UP_TO if backend == "nccl" else {"float32": EXACT_UP_TO["float32"]}
    return [dtype for dtype, largest in dtypes.items() if LARGEST_TERM * world <= largest]


def measure(rank: Rank) -> Measured:
    """Reduce the pattern in each dtype and compare every element; say which was wrong first, and by which bits."""
    import torch

    device = process_group.device_of(rank)
    with process_group.group(rank) as dist:
        hashed = pattern(torch.arange(COUNT, device=device))
        results = {
            dtype: _reduce(torch, dist, rank, hashed, dtype)
            for dtype, largest in EXACT_UP_TO.items()
            if LARGEST_TERM * rank.world <= largest
        }
        return {**process_group.standing(rank, hashed, dist.get_backend()), "results": results}


def _reduce(torch: Any, dist: Any, rank: Rank, hashed: Any, dtype: str) -> Measured:
    comparison: Measured = {"wrong": 0}
    for seed in (0, 5):
        expected = sum((hashed + 3 * r + seed) % 8 for r in range(rank.world)).to(getattr(torch, dtype))
        tensor = ((hashed + 3 * rank.rank + seed) % 8).to(getattr(torch, dtype))
        try:
            dist.all_reduce(tensor)
        except RuntimeError as error:
            if process_group.gloo_lacks(rank.backend, error):
                return {"unsupported": process_group.quoted(error)}
            raise
        # A rank that stopped at its first difference would leave the others in the next collective.
        if not comparison["wrong"] and int(exact_data.compared(torch, tensor, expected)):
            comparison = _difference(torch, tensor, expected, dtype)
    return comparison


def _difference(torch: Any, actual: Any, expected: Any, dtype: str) -> Measured:
    bits = getattr(torch, {"float32": "int32", "float16": "int16", "bfloat16": "int16"}[dtype])
    pairs = list(enumerate(zip(actual.view(bits).tolist(), expected.view(bits).tolist())))
    wrong = [(index, mine ^ right) for index, (mine, right) in pairs if mine != right] or [(0, 0)]
    first, xor = wrong[0][0], wrong[0][1] & 0xFFFFFFFF
    return {
        "wrong": len(wrong),
        "index": first,
        "got": float(actual[first]),
        "expected": float(expected[first]),
        "xor": f"{xor:#x}",
    }


@process_group.sound(alone="one rank reduces with nobody")
def judge(view: View, ranks: Ranks) -> Outcome:  # noqa: ARG001 (a judge's signature)
    """Fail on the first wrong element, naming rank, index and bits; a dtype that was not reduced is no pass."""
    for entry in ranks:
        for dtype in required(len(ranks), entry["backend"]):
            if not process_group.counts((entry.get("results") or {}).get(dtype, {}).get("wrong")):
                who = f"rank {entry['rank']}"
                return undecided(f"{who} reduced no {dtype}", code="all-reduce.unmeasured", culprit=who)
    wrong = [
        (entry["rank"], dtype, result)
        for entry in ranks
        for dtype, result in entry["results"].items()
        if result.get("wrong")
    ]
    if wrong:
        return _wrong(ranks, wrong)
    exact = sorted(dtype for dtype, result in ranks[0]["results"].items() if result.get("wrong") == 0)
    summary = f"{', '.join(exact)}: all {COUNT} elements exact on {len(ranks)} ranks over {ranks[0]['backend']}"
    return passed(summary, value=0, limit=LIMIT, results=ranks[0]["results"])


def _wrong(ranks: Ranks, wrong: list[tuple[int, str, Measured]]) -> Outcome:
    rank, dtype, first = wrong[0]
    culprits = sorted({number for number, _, _ in wrong})
    everywhere = "on every rank" if len(culprits) == len(ranks) else f"on {numbered('rank', culprits)} alone"
    return failed(
        f"{dtype} sum is wrong {everywhere}: rank {rank}, index {first['index']}: {first['got']}, "
        f"not {first['expected']} (bits {first['xor']})",
        fix="try NCCL_P2P_DISABLE=1: right then, peer-to-peer is broken (ACS, bridge, link); else try NCCL_ALGO=Ring",
        value=first["wrong"],
        limit=LIMIT,
        ranks=culprits,
        first=first,
        code="data.wrong",
        culprit=f"rank {rank}",
    )
