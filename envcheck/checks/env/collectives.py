"""An all-reduce can be right while a message of another collective lands in the wrong place.

Seen in the wild: sharded training (FSDP, ZeRO, expert parallel) lives on all-gather, reduce-scatter, all-to-all and
send/recv, which take other kernels and other links than all-reduce does; a peer-to-peer pair that drops writes shows
between those two ranks alone. Every element says in int32 who sent it and which chunk of the message it is of, so that
a wrong one names the rank and the chunk that was delivered in its place.
"""

from __future__ import annotations

from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided
from envcheck.checks.env import _group

CHECK = Check(
    promise="all-gather, reduce-scatter, all-to-all, broadcast and send/recv deliver every element where it belongs",
    level="standard",
    seconds=1.5,
    timeout=120.0,
    ranks=0,
    least_ranks=2,
)

# Not a multiple of anything a collective cuts its buffers into.
COUNT = (1 << 17) + 3
CHUNK = 4099
# rank * 1000 + chunk, and within the chunk where, below 1024: int32 holds it for 2000 ranks.
_WITHIN, _CHUNKS = 1021, 1000
# What every gloo has; reduce-scatter and all-to-all came to it later.
GLOO_HAS = ("all-gather", "broadcast", "send/recv")
LIMIT = Limit(0, "wrong elements", "integers are moved or added without rounding, so nothing may differ", "at most")


def tagged(torch: Any, rank: int, chunk: int, device: Any) -> Any:
    """Return a message whose elements say who sent it, which chunk they are of (from `chunk` on), and where in it."""
    index = torch.arange(COUNT, dtype=torch.int32, device=device)
    chunks = (torch.div(index, CHUNK, rounding_mode="floor") + chunk) % _CHUNKS
    return (rank * _CHUNKS + chunks) * (1 << 10) + index % _WITHIN


def told(element: int) -> str:
    """Return what a tagged element says of itself."""
    return f"rank {(element >> 10) // _CHUNKS}'s chunk {(element >> 10) % _CHUNKS}, place {element & 1023}"


def measure(rank: Rank) -> Measured:
    """Run each collective and compare every element that came; say which was wrong first, and what it is instead."""
    import torch

    device = _group.device_of(rank)
    with _group.group(rank) as dist:
        results = {}
        for name, collective in COLLECTIVES.items() if rank.world > 1 else ():
            try:
                parts = collective(torch, dist, rank, device)
            except (RuntimeError, ValueError) as error:
                if rank.backend == "gloo" and "support" in str(error):
                    results[name] = {"unsupported": str(error).splitlines()[0]}
                    continue
                raise
            results[name] = _compared(torch, parts)
        probe = torch.zeros(1, device=device)
        return {**_group.standing(rank, probe, dist.get_backend()), "results": results}


def _all_gather(torch: Any, dist: Any, rank: Rank, device: Any) -> list[tuple[str, Any, Any]]:
    parts = [torch.zeros(COUNT, dtype=torch.int32, device=device) for _ in range(rank.world)]
    dist.all_gather(parts, tagged(torch, rank.rank, 0, device))
    return [(f"from rank {r}", part, tagged(torch, r, 0, device)) for r, part in enumerate(parts)]


def _reduce_scatter(torch: Any, dist: Any, rank: Rank, device: Any) -> list[tuple[str, Any, Any]]:
    got = torch.zeros(COUNT, dtype=torch.int32, device=device)
    dist.reduce_scatter(got, [tagged(torch, rank.rank, to, device) for to in range(rank.world)])
    expected = torch.zeros_like(got)
    for r in range(rank.world):
        expected += tagged(torch, r, rank.rank, device)
    return [("summed over all ranks", got, expected)]


def _all_to_all(torch: Any, dist: Any, rank: Rank, device: Any) -> list[tuple[str, Any, Any]]:
    sent = torch.cat([tagged(torch, rank.rank, to, device) for to in range(rank.world)])
    got = torch.zeros_like(sent)
    dist.all_to_all_single(got, sent)
    parts = got.chunk(rank.world)
    return [(f"from rank {r}", part, tagged(torch, r, rank.rank, device)) for r, part in enumerate(parts)]


def _broadcast(torch: Any, dist: Any, rank: Rank, device: Any) -> list[tuple[str, Any, Any]]:
    parts = []
    for root in range(rank.world):
        got = tagged(torch, rank.rank, root, device)
        dist.broadcast(got, root)
        parts.append((f"from rank {root}", got, tagged(torch, root, root, device)))
    return parts


def _send_recv(torch: Any, dist: Any, rank: Rank, device: Any) -> list[tuple[str, Any, Any]]:
    """Send to each other rank in turn, so that every pair is used both ways."""
    parts = []
    for shift in range(1, rank.world):
        to, source = (rank.rank + shift) % rank.world, (rank.rank - shift) % rank.world
        sent, got = (
            tagged(torch, rank.rank, to, device),
            torch.zeros(COUNT, dtype=torch.int32, device=device),
        )
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, to), dist.P2POp(dist.irecv, got, source)])
        for work in works:
            work.wait()
        parts.append((f"from rank {source}", got, tagged(torch, source, rank.rank, device)))
    return parts


COLLECTIVES = {
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
    "all-to-all": _all_to_all,
    "broadcast": _broadcast,
    "send/recv": _send_recv,
}


def _compared(torch: Any, parts: list[tuple[str, Any, Any]]) -> Measured:
    found: Measured = {"wrong": 0, "elements": sum(expected.numel() for _, _, expected in parts)}
    for which, got, expected in parts:
        if torch.equal(got, expected):
            continue
        wrong = (got != expected).nonzero().flatten()
        if not found["wrong"]:
            first = int(wrong[0])
            found |= {"which": which, "index": first, "got": int(got[first]), "expected": int(expected[first])}
        found["wrong"] += len(wrong)
    return found


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on the first wrong element, naming collective, rank and index; what NCCL did not run is no pass."""
    found = _group.problem(view, ranks)
    if found is not None:
        return found
    if len(ranks) == 1:
        return skipped("one rank sends to nobody")
    owed = GLOO_HAS if view.mode == "cpu" else tuple(COLLECTIVES)
    for entry in ranks:
        for name in COLLECTIVES:
            result = (entry.get("results") or {}).get(name) or {}
            unsupported = bool(result.get("unsupported")) and name not in owed
            counted = all(map(_group.finite, (result.get("wrong"), result.get("elements"))))
            if not unsupported and not (counted and result["wrong"] >= 0 and result["elements"] > 0):
                why = result.get("unsupported") or "see the check's log"
                return undecided(f"rank {entry['rank']} ran no {name}", fix=str(why))
    wrong = [(e["rank"], name, r) for e in ranks for name, r in e["results"].items() if r.get("wrong")]
    return _wrong(ranks, wrong) if wrong else _exact(ranks)


def _exact(ranks: Ranks) -> Outcome:
    results = ranks[0]["results"]
    exact = [name for name, result in results.items() if result.get("wrong") == 0]
    lacking = [name for name in results if name not in exact]
    also = f"; {ranks[0]['backend']} has no {', '.join(lacking)}" if lacking else ""
    summary = f"{', '.join(exact)}: every element in its place on {len(ranks)} ranks over {ranks[0]['backend']}{also}"
    return passed(summary, value=0, unit="wrong elements", limit=LIMIT, results=results)


def _wrong(ranks: Ranks, wrong: list[tuple[int, str, Measured]]) -> Outcome:
    rank, name, first = wrong[0]
    culprits = sorted({number for number, _, _ in wrong})
    everywhere = "on every rank" if len(culprits) == len(ranks) else f"on rank(s) {culprits} alone"
    summed = name == "reduce-scatter"
    got, expected = (str(first[key]) if summed else told(first[key]) for key in ("got", "expected"))
    return failed(
        f"{name} is wrong {everywhere}: rank {rank}, {first['which']}, index {first['index']}: {got}, not {expected}",
        fix="try NCCL_P2P_DISABLE=1: right then, peer-to-peer is broken between these ranks (ACS, bridge, link)",
        value=first["wrong"],
        unit="wrong elements",
        limit=LIMIT,
        ranks=culprits,
        first={"collective": name, "rank": rank, **first},
    )
