"""The tournament: every pair of nodes once, N/2 pairs at a time. It finds any link between two nodes."""

from __future__ import annotations

import collections
from collections.abc import Generator, Mapping, Sequence
from typing import Final

from envcheck.fleet.pairs.measured import MeasuredGroup, RollCall, Round, compared, roll_call, usual_speed
from envcheck.fleet.pairs.model import Blame, Diagnosis, GroupResult, GroupTest, UnclearNodes

Pair = tuple[str, str]
# A node with so many failing pairs, some of which pass when they are repeated, fails now and then itself.
_SEVERAL: Final = 3
_MOST_NAMED: Final = 10


def tournament(nodes: Sequence[str]) -> Generator[Round, Sequence[GroupResult], Diagnosis]:
    """Measure every pair of the nodes that answer the roll-call, those that do not pass twice, and name who is slow."""
    call = yield from roll_call(nodes)
    results: dict[GroupTest, GroupResult] = {}
    for pairs in pair_rounds(call.present):
        tests = [GroupTest("pair", pair) for pair in pairs]
        results |= zip(tests, (yield tests), strict=True)
    usual = usual_speed(results.values())
    doubtful = [
        (one, other) for (_, (one, other), _), result in results.items() if compared(result, usual).status != "pass"
    ]
    repeated: dict[GroupTest, GroupResult] = {}
    for pairs in disjoint(doubtful):
        tests = [GroupTest("pair", pair, 2) for pair in pairs]
        repeated |= zip(tests, (yield tests), strict=True)
    measured = [
        MeasuredGroup.of(
            test, [compared(one, usual) for one in (result, repeated.get(test._replace(attempt=2))) if one]
        )
        for test, result in results.items()
    ]
    return judge(call, measured)


def pair_rounds(nodes: Sequence[str]) -> list[list[Pair]]:
    """Return a round-robin schedule (circle method): each pair once, and in each round each node at most once."""
    ring: list[str | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    rounds = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        met = zip(ring[:half], reversed(ring[half:]), strict=True)
        rounds.append([(one, other) for one, other in met if one is not None and other is not None])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return rounds


def disjoint(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Return the pairs in few rounds in which no node is in two of them."""
    rounds: list[list[Pair]] = []
    for pair in pairs:
        for members in rounds:
            if not any(node in other for other in members for node in pair):
                members.append(pair)
                break
        else:
            rounds.append([pair])
    return rounds


def judge(call: RollCall, measured: Sequence[MeasuredGroup]) -> Diagnosis:
    """Name nodes that fail with most of their partners, then the links that fail between nodes that do not."""
    met = collections.Counter(node for one in measured if one.certainty != "undetermined" for node in one.nodes)
    lost = [one for one in measured if one.certainty in ("fail", "unsteady")]
    blamed, unclear = [*call.blamed], [*call.not_isolated]
    while worst := _worst(lost, met):
        by = [one for one in lost if worst in one.nodes]
        blamed.append(_node(worst, met[worst], by))
        lost = [one for one in lost if one not in by]
    for one in lost:
        if one.certainty == "unsteady":
            unclear.append(
                UnclearNodes(one.nodes, f"failed once and passed once: {one.results[0].reason}", (one.name,))
            )
        elif all(met[node] == 1 for node in one.nodes):
            unclear.append(UnclearNodes(one.nodes, f"they met no other node: {one.reason}", (one.name,)))
        else:
            blamed.append(Blame("link", one.name, f"both pass with others: {one.reason}", (one.name,)))
    passed = {node for one in measured if one.passed for node in one.nodes}
    good = [node for node in call.present if node in passed and not _named(node, blamed)]
    undetermined = (*call.undetermined, *_never_met(call, measured, passed))
    return Diagnosis(tuple(blamed), tuple(unclear), undetermined, tuple(good), tuple(call.notes))


def _worst(lost: Sequence[MeasuredGroup], met: Mapping[str, int]) -> str | None:
    """Return the node with the most failing pairs, if those are too many for its links; None for no such node.

    A node whose pairs fail now and then shows in fewer of them than one that always fails.
    """
    losses = collections.Counter(node for one in lost for node in one.nodes)
    for node, count in losses.most_common(1):
        unsteady = any(one.certainty == "unsteady" and node in one.nodes for one in lost)
        if met[node] > 1 and (count * 2 > met[node] or (unsteady and count >= _SEVERAL and count * 5 > met[node])):
            return node
    return None


def _node(node: str, met: int, by: Sequence[MeasuredGroup]) -> Blame:
    gpus = [{gpu for result in one.results for gpu in result.faulty_gpus if gpu.startswith(f"{node} ")} for one in by]
    same = set.intersection(*gpus)
    unsteady = sum(one.certainty == "unsteady" for one in by)
    sometimes = f", {unsteady} of them not each time" if unsteady else ""
    reason = f"fails with {len(by)} of {met} partners{sometimes}: {by[0].reason}"
    names = tuple(one.name for one in by[:_MOST_NAMED])
    return Blame("gpu", same.pop(), reason, names) if len(same) == 1 else Blame("node", node, reason, names)


def _named(node: str, blamed: Sequence[Blame]) -> bool:
    return any(one.kind != "link" and one.who.partition(" ")[0] == node for one in blamed)


def _never_met(call: RollCall, measured: Sequence[MeasuredGroup], passed: set[str]) -> list[UnclearNodes]:
    """Return the nodes whose groups never formed, and of the others the pairs that did not."""
    unformed = [one for one in measured if one.certainty == "undetermined"]
    failed = {node for one in measured if one.certainty in ("fail", "unsteady") for node in one.nodes}
    alone = [node for node in call.present if node not in passed | failed]
    by = {node: [one for one in unformed if node in one.nodes] for node in alone}
    rows = [
        UnclearNodes(
            (node,), by[node][0].reason if by[node] else "it met no other node", tuple(one.name for one in by[node])
        )
        for node in alone
    ]
    pairs = [one for one in unformed if not set(one.nodes) & set(alone)]
    return rows + [UnclearNodes(one.nodes, one.reason, (one.name,)) for one in pairs]
