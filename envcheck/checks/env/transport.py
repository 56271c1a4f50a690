"""GPUs with NVLink that talk through the host's memory: right, ten times slower, and without a message.

NVLS that is off costs a quarter on 8xH200 (365 instead of 480 GB/s, stas00/ml-engineering), sockets beside InfiniBand
nearly all of it. Told by NCCL's own log, after collectives and a message between every two ranks made it connect;
NVIDIA/aicr proves its transport by it too.
"""

from __future__ import annotations

import re
from typing import Any

from envcheck import checks
from envcheck.checks import Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided, warned, worst
from envcheck.checks.collectives import fabrics, timed_collectives, transports
from envcheck.checks.support import exact_data, process_group, training
from envcheck.counting import numbered

CHECK = checks.Check(
    promise="NCCL's own log shows every two GPUs using the best link they have, and hosts their RDMA ports",
    level="standard",
    seconds=3.0,
    timeout=120.0,
    gpus=2,
    ranks=0,
    least_ranks=2,
)

# NVLS is for large messages.
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter")
SIZE = 256 << 20
PAIRED = 1 << 18
LIMIT = checks.Limit(
    0, "pairs off their link", "ours: GPUs with NVLink between them have no reason to go round it", "at most"
)
_UNREAD = "see the check's log; does another NCCL than the wheel's take part (NCCL_DEBUG_FILE is written since 2.2)?"
_FIX = (
    "unset NCCL_P2P_DISABLE, NCCL_P2P_LEVEL and NCCL_SHM_DISABLE (environment, /etc/nccl.conf, ~/.nccl.conf); give the "
    "container all GPUs, --ipc=host and enough /dev/shm; look at the nvlink check"
)
_NVLS_FIX = "reset the GPUs after the fabric manager was restarted; its version is the driver's, and that 530 or newer"
_DIRECT_FIX = (
    "install MLNX_OFED or DOCA first and the driver after it, then `modprobe nvidia-peermem`, or use the open kernel "
    "module (DMA-BUF); NCCL before 2.23 knows nvidia-peermem by its old name alone: take a newer one"
)
# NVIDIA offers no GPUDirect RDMA for these models.
_NEVER_DIRECT = re.compile(r"GeForce|TITAN|GB10|Thor|Orin")
_NAMED = 8


def measure(rank: Rank) -> Measured:
    """Have NCCL connect for large collectives and between every two ranks; return what it logged."""
    import torch

    device, seed = process_group.device_of(rank), training.seed_of(rank)
    transports.ask(rank, calls=True)
    with process_group.group(rank) as dist:
        wrong = [name for name in COLLECTIVES if rank.world > 1 and _sent_wrongly(torch, dist, rank, device, name)]
        wrong += _between_pairs(torch, dist, rank, device, seed)
        standing = process_group.standing(rank, torch.zeros(1, device=device), dist.get_backend())
        return {**standing, "seed": seed, "nccl": transports.read(rank), "wrong": wrong}


def _between_pairs(torch: Any, dist: Any, rank: Rank, device: Any, seed: int) -> list[str]:
    """Send seeded words between every two ranks, other ones for each pair; return the messages that are not them."""
    words, wrong = exact_data.Words(torch, seed), list[str]()
    base = words.tensor(PAIRED, device)
    for distance in range(1, rank.world):
        sender, receiver = (rank.rank - distance) % rank.world, (rank.rank + distance) % rank.world
        mine, theirs = _mask(seed, rank.rank, receiver), _mask(seed, sender, rank.rank)
        sent, actual = base.bitwise_xor(mine), torch.zeros_like(base)
        timed_collectives.around(dist, rank, sent, actual, distance)
        # Plain Python compares, and each of the two was made of the words that it read back.
        if words.wrong(actual, theirs) or words.wrong(sent, mine):
            wrong.append(f"a message from rank {sender}")
    return wrong


def _mask(seed: int, sender: int, receiver: int) -> int:
    return exact_data.source((seed << 40) + (sender << 20) + receiver).getrandbits(31)


def _sent_wrongly(torch: Any, dist: Any, rank: Rank, device: Any, name: str) -> bool:
    made = timed_collectives.Message(torch, dist, rank, device, name, SIZE)
    made.fill()
    made.run()
    made.verify()
    return bool(made.verdict()["wrong"])


@process_group.sound()
def judge(view: View, ranks: Ranks) -> Outcome:
    """Warn where the log shows a slower link than the GPUs have, naming the pairs; an empty log proves nothing."""
    if view.mode != "gpu":
        return skipped("gloo goes through the host's memory; nothing of NCCL was looked at", code="transport.not-nccl")
    if len(ranks) == 1:
        return skipped("one rank talks to nobody", code="rank.not-enough")
    logs = {entry["rank"]: entry.get("nccl") or {} for entry in ranks}
    pairs = transports.edges(logs)
    unread = _unread(logs, pairs)
    details = {} if unread else _details(pairs, logs)
    outcome = (
        undecided(unread, fix=_UNREAD, code="transport.unread")
        if unread
        else _slower(view, ranks, pairs, details) or _switched(view, ranks, details)
    )
    wrong = [_wrong(entry) for entry in ranks if entry.get("wrong") or not isinstance(entry.get("wrong"), list)]
    worse = [*wrong, *fabrics.sockets(view, ranks), *_indirect(view, logs, pairs)]
    return worst([*worse, outcome], otherwise=outcome) if worse else outcome


def _wrong(entry: Measured) -> Outcome:
    who, fix = process_group.name(entry), "run the collectives check, which says what arrived instead"
    if not isinstance(entry.get("wrong"), list):
        return undecided(f"{who} compared no message", code="data.missing", culprit=who)
    text = f"{who} received wrong data: {', '.join(map(str, entry['wrong']))}"
    return failed(text, fix=fix, code="data.wrong", culprit=who, seed=entry.get("seed"))


def _indirect(view: View, logs: transports.Logs, pairs: transports.Pairs) -> list[Outcome]:
    """Warn of cards in use that GPUs reach through the host's memory alone (NVIDIA/nccl#1676, #1537, #1939)."""
    cards = sorted({str(card) for log in logs.values() for card in log.get("indirect") or []})
    used = any(way.startswith("NET/") for ways in pairs.values() for way in ways)
    if not used or not cards or any(_NEVER_DIRECT.search(str(gpu.signal("name").value)) for gpu in view.snapshot.gpus):
        return []
    return [
        warned(
            f"NCCL copies through the host's memory for {', '.join(cards[:_NAMED])}: GPU Direct RDMA is off",
            fix=_DIRECT_FIX,
            value=len(cards),
            code="transport.indirect",
            culprit=cards[0],
        )
    ]


def _unread(logs: transports.Logs, pairs: transports.Pairs) -> str:
    silent = [rank for rank, log in logs.items() if not (process_group.finite(log.get("lines")) and log["lines"] > 0)]
    if silent:
        return f"NCCL left no log of {numbered('rank', silent)}"
    if not pairs:
        return "NCCL's log names no connection between any two ranks"
    strange = sorted({way for ways in pairs.values() for way in ways if not way.startswith(transports.WAYS)})
    if strange or not all(0 <= a < b < len(logs) for a, b in pairs):
        return f"NCCL's log is not understood: {', '.join(strange) or sorted(pairs)}"[:200]
    return ""


def _details(pairs: transports.Pairs, logs: transports.Logs) -> dict[str, Any]:
    return {
        "pairs": {f"{a}-{b}": sorted(ways) for (a, b), ways in sorted(pairs.items())},
        "nvls": transports.nvls(logs),
        "algorithms": transports.merged(logs, "algorithms"),
        "settings": transports.merged(logs, "settings"),
        **{name: next((log[name] for log in logs.values() if log.get(name)), None) for name in ("version", "network")},
    }


def _slower(view: View, ranks: Ranks, pairs: transports.Pairs, details: dict[str, Any]) -> Outcome | None:
    hosts = {entry["rank"]: entry.get("host") for entry in ranks}
    devices = {entry["rank"]: str(entry.get("device")) for entry in ranks}
    near = [pair for pair in sorted(pairs) if hosts.get(pair[0]) == hosts.get(pair[1])]
    off = [pair for pair in near if transports.roundabout(view, pairs, pair, devices)]
    if not off:
        return None
    ways = sorted({way for pair in off for way in pairs[pair] if not way.startswith("P2P/")})
    more = f" and {len(off) - _NAMED} more" if len(off) > _NAMED else ""
    named = ", ".join(f"{a}-{b}" for a, b in off[:_NAMED]) + more
    summary = f"ranks {named} talk over {', '.join(ways)}{_because(details)}; they have a faster link"
    return warned(summary, fix=_FIX, value=len(off), limit=LIMIT, code="transport.slower-path", **details)


def _switched(view: View, ranks: Ranks, details: dict[str, Any]) -> Outcome:
    """Warn where GPUs behind switches that can add do not have them do it, unless a setting turns that off."""
    missing = transports.nvls_missing(view, len(ranks), details["nvls"])
    if missing and not transports.nvls_declined(details["settings"]):
        return warned(f"no NVLS{_because(details)}: {missing}", fix=_NVLS_FIX, code="transport.no-nvls", **details)
    ways = [
        *(["NVLS"] if details["nvls"]["used"] else []),
        *sorted({w for ws in details["pairs"].values() for w in ws}),
    ]
    summary = f"{len(ranks)} ranks over {', '.join(ways)}{_because(details)}{'; NVLS was declined' if missing else ''}"
    return passed(summary, value=0, limit=LIMIT, **details)


def _because(details: dict[str, Any]) -> str:
    chosen = [f"{name}={value}" for name, value in sorted(details["settings"].items()) if name in transports.CHOICES]
    return f" ({', '.join(chosen)})" if chosen else ""
