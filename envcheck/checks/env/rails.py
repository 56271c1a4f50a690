"""A rail that is up and slow, or that NCCL cannot use at all, shows only when a second node is there: not here.

GPUs of one node are joined by NVLink, so that its InfiniBand ports carry nothing until a job spans nodes. With
peer-to-peer and shared memory off NCCL goes through them within the node too (Azure/azurehpc-health-checks,
check_nccl_allreduce_ib_loopback). One all-reduce over all of them; then one GPU sends to the next, one pair at a time,
which tells the rails apart: each port is as fast as the best of the pairs that use it.
"""

from __future__ import annotations

import os
import statistics
from typing import Any

from envcheck import checks
from envcheck.checks import Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided, worst
from envcheck.checks.collectives import bandwidth_curves, fabrics, timed_collectives, transports
from envcheck.checks.support import process_group
from envcheck.counting import counted

CHECK = checks.Check(
    promise="NCCL reaches every InfiniBand and RoCE port of this node, and each carries what its rate says",
    level="full",
    seconds=15.0,
    cpu_seconds=0.1,
    timeout=240.0,
    gpus=2,
    ranks=0,
    least_ranks=2,
    performance=True,
    limits=("rails-all-reduce", "rail"),
)

# NCCL has no way within the node left but its network.
ONLY_NETWORK = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}
SIZE, TURNS = 1 << 30, (2, 5)
_FIX = "compare this port with its like (`ib_write_bw`, `ibstat`, check infiniband); look at PCIe, ACS, peer-memory"


def measure(rank: Rank) -> Measured:
    """Time an all-reduce over the network of this node, then what each rank sends to the next, one after the other."""
    import torch

    device, ports = process_group.device_of(rank), fabrics.active_ports()
    if rank.backend == "nccl" and ports:
        os.environ.update(ONLY_NETWORK)
    transports.ask(rank)
    with process_group.group(rank) as dist:
        # Without a port nothing is timed, and a single collective still says which devices there were.
        dist.all_reduce(torch.zeros(1, device=device))
        timed = _timed(torch, dist, rank, device) if device.type == "cuda" and ports else {}
        where = process_group.standing(rank, torch.zeros(1, device=device), dist.get_backend())
        return {**where, **timed, "ports": ports, "nccl": transports.read(rank)}


def _timed(torch: Any, dist: Any, rank: Rank, device: Any) -> Measured:
    """Return the all-reduce's {bytes, seconds, right}, and in `sent` those of each rank's message to the next."""
    free = timed_collectives.least(torch, dist, device, int(torch.cuda.mem_get_info(device)[0]))
    size = min(SIZE, int(free * timed_collectives.FREE_SHARE) >> 20 << 20)
    made = timed_collectives.Message(torch, dist, rank, device, "all-reduce", size)
    seconds = [timed_collectives.timed(torch, dist, made, device, turns) for turns in TURNS][-1]
    whole = {"bytes": made.size, "seconds": statistics.median(seconds), **made.verdict()}
    words = torch.arange(size // 8, dtype=torch.int64, device=device)
    return {"whole": whole, "sent": [_sent(torch, dist, rank, words, source) for source in range(rank.world)]}


def _sent(torch: Any, dist: Any, rank: Rank, words: Any, source: int) -> Measured | None:
    """Have one rank send to the next; return {bytes, seconds, right} as the receiver sees it, None on other ranks."""
    target, got, seconds = (source + 1) % rank.world, torch.zeros_like(words), list[float]()
    message = words + source
    for _ in range(sum(TURNS)):
        dist.barrier()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        if rank.rank == source:
            _now(dist, dist.P2POp(dist.isend, message, target))
        elif rank.rank == target:
            _now(dist, dist.P2POp(dist.irecv, got, source))
        end.record()
        torch.cuda.synchronize()
        seconds.append(start.elapsed_time(end) / 1000)
    if rank.rank != target:
        return None
    right = bool(torch.equal(got, message))
    return {"bytes": words.numel() * 8, "seconds": statistics.median(seconds[TURNS[0] :]), "right": right}


def _now(dist: Any, operation: Any) -> None:
    for work in dist.batch_isend_irecv([operation]):
        work.wait()


@process_group.sound(alone="one GPU sends to no other")
def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail where NCCL does not use the ports; judge the all-reduce, and each rail, by the ports' rate."""
    ports = ranks[0].get("ports")
    if view.mode != "gpu" or ports == []:
        return skipped("no RDMA port is up beside GPUs here", code="rails.none")
    if not isinstance(ports, list) or not all(isinstance(entry.get("sent"), list) for entry in ranks):
        return undecided("nothing went over the ports", code="rails.unmeasured")
    unused = _unused(ranks, ports)
    if unused is not None:
        return unused
    sent = [entry["sent"][(entry["rank"] - 1) % len(ranks)] for entry in ranks]
    wrong = [_wrong(entry) for entry, one in zip(ranks, sent) if not (one["right"] and entry["whole"]["right"])]
    times = [entry["whole"].get("seconds") for entry in ranks] + [one.get("seconds") for one in sent]
    if not all(map(process_group.positive, times)):
        return undecided("a time was zero or no number", fix="run it again", code="speed.missing")
    return worst([*wrong, *_slow(view, ranks, ports)], otherwise=_sound(ranks, ports))


def _unused(ranks: Ranks, ports: list[Measured]) -> Outcome | None:
    """Return the failure of NCCL to use the ports, by its log; an error where the log does not say."""
    networks = {entry["rank"]: (entry.get("nccl") or {}).get("network") for entry in ranks}
    if None in networks.values():
        fix = "see the check's log; does another NCCL than the wheel's take part?"
        return undecided("NCCL's log names no network", fix=fix, code="transport.unread")
    off = [rank for rank, network in networks.items() if network == "Socket"]
    if not off:
        return None
    log = ranks[off[0]]["nccl"]
    said = log.get("fabric") or {}
    line = said.get("trouble") or "Using network Socket"
    text = f'NCCL takes sockets beside {counted(len(ports), "active RDMA port")}: "{line}"'
    fix, verdict = said.get("fix") or fabrics.FIX, fabrics.verdict(ports)
    return verdict(text, fix=fix, code="rails.sockets", culprit=f"rank {off[0]}")


def _wrong(entry: Measured) -> Outcome:
    fix = "run the collectives and transport checks, which say what arrived instead"
    who = process_group.name(entry)
    return failed(f"{who}: what came over the network is wrong", fix=fix, code="data.wrong", culprit=who)


def _whole(ranks: Ranks) -> float:
    seconds = statistics.fmean(entry["whole"]["seconds"] for entry in ranks)
    return bandwidth_curves.busbw("all-reduce", ranks[0]["whole"]["bytes"], seconds, len(ranks))


def _rails(ranks: Ranks) -> dict[str, float]:
    """Return GB/s of each port, the best of the pairs that it serves; of pairs where no log names their ports."""
    found: dict[str, float] = {}
    for entry in ranks:
        source = (entry["rank"] - 1) % len(ranks)
        one = entry["sent"][source]
        edge = f"{source}>{entry['rank']}"
        logs = [ranks[number].get("nccl") or {} for number in (source, entry["rank"])]
        named = {name for log in logs for name in ((log.get("fabric") or {}).get("rails") or {}).get(edge) or []}
        for name in named or {f"rank {source} to rank {entry['rank']}"}:
            found[name] = max(found.get(name, 0.0), one["bytes"] / one["seconds"] / 1e9)
    return found


def _slow(view: View, ranks: Ranks, ports: list[Measured]) -> list[Outcome]:
    """Return what falls short of the ports' rate, of GPUs with NVLink; others may be slower than their network."""
    from envcheck.checks import limits

    rates = {f"{port['device']}:{port['port']}": float(port["rate"]) / 8 for port in ports if port.get("rate")}
    if not transports.linked(view) or len(rates) != len(ports):
        return []
    least = min(rates.values())
    # GPUs that share a port share its rate in a ring, in which all of them send at once.
    shares = [("rails-all-reduce", "all-reduce", _whole(ranks), least * min(1.0, len(ports) / len(ranks)))]
    shares += [("rail", name, value, rates.get(name.partition("/")[0], least)) for name, value in _rails(ranks).items()]
    findings = []
    for check, name, value, rate in shares:
        row, text = limits.of_rate(check, rate), f"{name}: {value:.4g} GB/s over the network, of its port's {rate:g}"
        short = row and limits.short(row, value, text, fix=_FIX, culprit=name)
        findings += [short] if short else []
    return findings


def _sound(ranks: Ranks, ports: list[Measured]) -> Outcome:
    rails = _rails(ranks)
    least = min(rails.values())
    text = f"{counted(len(ports), 'port')}: all-reduce {_whole(ranks):.4g} GB/s, each alone at least {least:.4g}"
    return passed(text, value=least, unit="GB/s", rails=rails)
