"""One link between two nodes is slow or damages data, and an all-reduce over all nodes does not show which.

The first rank of each node sends to that of each other one, at one distance after the other, so that each node sends
and receives at the same time. Every message is verified by the receiver, element by element. From 65 nodes on only
distances that are powers of two are measured, which every node takes part in.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from typing import Any

from envcheck import checks
from envcheck.checks import Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, too_slow, undecided, worst
from envcheck.checks.support import exact_data, process_group
from envcheck.counting import counted

CHECK = checks.Check(
    promise="every message between two nodes arrives as it was sent, and no link is far slower than the others",
    level="standard",
    seconds=5.0,
    cpu_seconds=1.0,
    timeout=180.0,
    ranks=0,
    least_ranks=2,
    performance=True,
)

MIB = 1 << 20
SIZES = {"cuda": (MIB, 16 * MIB, 256 * MIB), "cpu": (64 << 10, MIB, 4 * MIB)}
SMALL, SMALL_TURNS, TURNS = 8, 20, 4
EVERY_DISTANCE = 64
# Links of a fleet that are sound differ by a few percent; one of two ports down, or half the rate, halves a link.
SLOW = checks.Limit(
    0.7, "of the middle link's bandwidth", "ours: sound links differ by a few percent, a lost port halves", "at least"
)
_LEAST_LINKS = 6  # of three nodes: with fewer, nothing says which of two is the slow one
_EXACT = checks.Limit(0, "wrong messages", "a message is moved, not computed", "equal")
_MANY, _SEEN = 1_000_003, 4
_FIX = (
    "exchange the cable, or the ports of the two nodes with others, and see whether the fault moves with them; nodes "
    "behind another switch than the rest share its uplinks (NVIDIA/nccl#1453)"
)


def distances(nodes: int) -> list[int]:
    """Return at which distances nodes send to each other: all, or powers of two where there are many nodes."""
    if nodes <= EVERY_DISTANCE:
        return [*range(1, nodes)]
    return [1 << power for power in range(nodes.bit_length()) if 1 << power < nodes]


def measure(rank: Rank) -> Measured:
    """Exchange verified messages with each other node; return for each node that sent to this one what arrived."""
    import torch

    device = process_group.device_of(rank)
    with process_group.group(rank) as dist:
        mine = torch.tensor([rank.node], dtype=torch.int64, device=device)
        numbers = [torch.zeros_like(mine) for _ in range(rank.world)]
        dist.all_gather(numbers, mine)
        of_rank = [int(number) for number in numbers]
        first = {node: of_rank.index(node) for node in sorted(set(of_rank))}
        links: list[Measured] = []
        if first.get(rank.node) == rank.rank and len(first) == rank.nodes:
            for distance in distances(rank.nodes):
                there, before = ((rank.node + step) % rank.nodes for step in (distance, -distance))
                link = _Link(torch, dist, device, (rank.node, there, before), (first[there], first[before]))
                links.append({"source": before, **link.measured()})
        dist.barrier()
        return {
            **process_group.standing(rank, mine, dist.get_backend()),
            "node": rank.node,
            "nodes": rank.nodes,
            "links": links,
        }


class _Link:
    """Messages to one node while others come from another one: `nodes` are ours, and those two; `ranks` their ranks."""

    def __init__(self, torch: Any, dist: Any, device: Any, nodes: tuple[int, int, int], ranks: tuple[int, int]) -> None:
        self.torch, self.dist, self.device = torch, dist, device
        self.mine, self.to, self.source = nodes
        self.to_rank, self.source_rank = ranks
        self.turn = self.wrong = 0
        self.first: int | None = None

    def measured(self) -> Measured:
        """Return {latency (seconds), curve, messages, wrong, first (the first wrong one)}."""
        small = [self._exchanged(SMALL) for _ in range(SMALL_TURNS)]
        curve = [
            {"bytes": size, "seconds": statistics.median([self._exchanged(size) for _ in range(TURNS)][1:])}
            for size in SIZES[self.device.type]
        ]
        wrong = {"messages": self.turn, "wrong": self.wrong, "first": self.first}
        return {"latency": statistics.median(small[1:]), "curve": curve, **wrong}

    def _exchanged(self, size: int) -> float:
        count = size // 4
        sent, due = self._words(count, self.mine, self.to), self._words(count, self.source, self.mine)
        got = due.bitwise_not()
        self._finish()
        began = time.monotonic()
        operations = [
            self.dist.P2POp(self.dist.isend, sent, self.to_rank),
            self.dist.P2POp(self.dist.irecv, got, self.source_rank),
        ]
        for work in self.dist.batch_isend_irecv(operations):
            work.wait()
        self._finish()
        seconds = time.monotonic() - began
        places = sorted({0, count - 1, *(count * part // _SEEN for part in range(_SEEN))})
        right = [_word(place, self.source, self.mine, self.turn) for place in places]
        # A device that sees no difference where there is one would hide all of them: plain Python looks, too.
        if int(exact_data.compared(self.torch, got, due)) or [int(got[place]) for place in places] != right:
            self.wrong += 1
            self.first = self.turn if self.first is None else self.first
        self.turn += 1
        return seconds

    def _words(self, count: int, source: int, target: int) -> Any:
        index = self.torch.arange(count, dtype=self.torch.int64, device=self.device)
        return ((index + _word(0, source, target, self.turn)) % _MANY).to(self.torch.int32)

    def _finish(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()


def _word(place: int, source: int, target: int, turn: int) -> int:
    """Return what stands at a place of a message: a run of numbers that starts elsewhere for each pair and turn."""
    return (place + source * 7919 + target * 104_729 + turn * 15_485_863) % _MANY


@process_group.sound()
def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on a wrong message, and on a GPU on a link far below the middle one, naming the node or the link."""
    nodes: Any = ranks[0].get("nodes")
    if not process_group.counts(nodes) or nodes < 2:  # noqa: PLR2004 (a link)
        return skipped("all ranks are on one node", code="node-links.one-node")
    unmeasured = _unmeasured(nodes, ranks)
    wrong = _wrong(ranks)
    if unmeasured:
        return worst([*wrong, *unmeasured], otherwise=unmeasured[0])
    names = {entry["node"]: str(entry.get("host")) for entry in ranks}
    links = {(source, target): link for target, source, link in _links(ranks)}
    speeds = {
        ends: round(max(float(point["bytes"] / point["seconds"]) for point in link["curve"]) / 1e9, 4)
        for ends, link in links.items()
    }
    latencies = {ends: link["latency"] for ends, link in links.items()}
    details = {
        "nodes": [names[node] for node in range(nodes)],
        "gigabytes_per_second": [[speeds.get((a, b)) for b in range(nodes)] for a in range(nodes)],
        "latency_seconds": [[latencies.get((a, b)) for b in range(nodes)] for a in range(nodes)],
    }
    slow = _slow(names, speeds) if view.mode == "gpu" else []
    slowest = min(speeds, key=lambda link: speeds[link])
    summary = f"{counted(len(speeds), 'link')} between {nodes} nodes: every message right; the slowest is "
    fine = passed(
        f"{summary}{names[slowest[0]]} -> {names[slowest[1]]}, {speeds[slowest]:.2f} GB/s",
        value=speeds[slowest],
        unit="GB/s",
    )
    outcome = worst([*wrong, *slow], otherwise=fine)
    return dataclasses.replace(outcome, details={**outcome.details, **details})


def _links(ranks: Ranks) -> list[tuple[int, int, Measured]]:
    """Return (the node that received, the one that sent, what was measured), for each link."""
    return [(entry["node"], link["source"], link) for entry in ranks for link in entry.get("links") or []]


def _unmeasured(nodes: int, ranks: Ranks) -> list[Outcome]:
    due = {(node, (node - distance) % nodes) for node in range(nodes) for distance in distances(nodes)}
    seen = {
        (entry.get("node"), link.get("source"))
        for entry in ranks
        for link in entry.get("links") or []
        if isinstance(link, dict) and _complete(link)
    }
    lacking = sorted(due - seen)
    if not lacking and all(process_group.counts(entry.get("node")) for entry in ranks):
        return []
    summary = f"{len(lacking)} of {len(due)} links between nodes were not measured"
    return [undecided(summary, code="node-links.unmeasured")]


def _complete(link: Measured) -> bool:
    curve = link.get("curve")
    times = [point.get("seconds") for point in curve if isinstance(point, dict)] if isinstance(curve, list) else []
    counts = process_group.counts(link.get("messages")) and process_group.counts(link.get("wrong"))
    seconds: list[Any] = [*times, link.get("latency")]
    positive = all(process_group.finite(taken) and taken > 0 for taken in seconds)
    return bool(counts and link["messages"] and times and positive)


def _wrong(ranks: Ranks) -> list[Outcome]:
    complete = [entry for entry in ranks if process_group.counts(entry.get("node"))]
    names = {entry["node"]: str(entry.get("host")) for entry in complete}
    links = [(source, target, link) for target, source, link in _links(complete)]
    bad = [row for row in links if process_group.counts(row[2].get("wrong")) and row[2]["wrong"]]
    common = set.intersection(*({source, target} for source, target, _ in bad)) if bad else set()
    about: dict[str, Any] = {"fix": _FIX, "limit": _EXACT, "code": "node-links.data"}
    if len(common) == 1 and len(bad) > 1:
        node, total = common.pop(), sum(link["wrong"] for _, _, link in bad)
        text = f"{names.get(node, node)}: {total} wrong messages, over all of {len(bad)} links that it is an end of"
        return [failed(text, value=total, culprit=f"node {names.get(node, node)}", nodes_blamed=[node], **about)]
    findings = []
    for source, target, link in bad:
        ends = f"{names.get(source, source)} -> {names.get(target, target)}"
        text = f"{ends}: {link['wrong']} of {link['messages']} messages arrived wrong, first number {link['first']}"
        findings.append(failed(text, value=link["wrong"], culprit=ends, nodes_blamed=[source, target], **about))
    return findings


def _slow(names: dict[int, str], speeds: dict[tuple[int, int], float]) -> list[Outcome]:
    if len(speeds) < _LEAST_LINKS:
        return []
    middle = statistics.median(speeds.values())
    slow = {link: speed for link, speed in speeds.items() if speed < SLOW.value * middle}
    nodes = [node for node in names if all(link in slow for link in speeds if node in link)]
    findings = []
    for node in nodes:
        speed = max(speed for link, speed in slow.items() if node in link)
        findings.append(_slower(names[node], f"node {names[node]}", [node], speed / middle))
    for (source, target), speed in slow.items():
        if source not in nodes and target not in nodes:
            link = f"{names[source]} -> {names[target]}"
            findings.append(_slower(link, link, [source, target], speed / middle))
    return findings


def _slower(who: str, culprit: str, nodes: list[int], share: float) -> Outcome:
    text, code = f"{who} reaches {share:.0%} of the middle link's bandwidth", "node-links.slow"
    return too_slow(text, fix=_FIX, value=round(share, 4), limit=SLOW, code=code, culprit=culprit, nodes_blamed=nodes)
