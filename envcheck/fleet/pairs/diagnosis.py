"""Which node, GPU or link is at fault: by groups of a large fleet, or by every pair once.

A group passes where all its nodes and all links between them are sound. docs/fleet-pairs.md has the steps.
"""

import collections
import itertools
import math
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import Final

from msgspec import structs

from envcheck.fleet.pairs.results import (
    Blame,
    Diagnosis,
    GroupResult,
    GroupTest,
    MeasuredGroup,
    Round,
    Rounds,
    UnclearNodes,
    at_fault,
    compared,
    disjoint,
    joined,
    measured,
    name_of,
    roll_call,
    usual_speed,
)

# Up to here a tournament takes no more rounds than a diagnosis that finds a fault.
SMALL: Final = 16
# Fewer nodes make no two groups of two.
_LEAST: Final = 4
# A node with so many failing pairs, some of which pass when they are repeated, fails now and then itself.
_SEVERAL: Final = 3
_MOST_NAMED: Final = 10
PAIR: Final = 2
Plan = Generator[Round, Sequence[GroupResult], Diagnosis]
Steps = Generator[Round, Sequence[GroupResult], None]


def diagnosis(nodes: Sequence[str], *, every_pair: bool = False) -> Plan:
    """Find what is at fault among the nodes that answer the roll-call, by groups and by pairs in those that fail.

    `every_pair` is a tournament: each pair is measured once, and again where it does not pass.
    """
    call = yield from roll_call(nodes)
    return joined([structs.replace(call, good=()), *(yield from _found(call.good, every_pair=every_pair))])


def _found(nodes: tuple[str, ...], *, every_pair: bool) -> Generator[Round, Sequence[GroupResult], list[Diagnosis]]:
    groups = [] if every_pair or len(nodes) < _LEAST else grouped(nodes)
    screened = yield from measured([[GroupTest("group", group) for group in groups if len(group) > 1]])
    if not any(one.passed for one in screened):
        if every_pair or len(nodes) <= SMALL:
            return [judged(nodes, (yield from measured(pair_rounds(nodes))))]
        why = f"not one of {len(screened)} groups passed, so that there is no known-good partner: {screened[0].reason}"
        return [Diagnosis(not_isolated=(UnclearNodes(nodes, why, tuple(one.name for one in screened)),))]
    search = _Search(groups, screened)
    yield from search.with_partners([node for node in nodes if node not in search.good])
    yield from search.inside([one for one in screened if not one.passed])
    yield from search.across()
    return [*search.parts, Diagnosis(good=tuple(node for node in nodes if node in search.good))]


class _Search:
    """What is known so far: `good` are the nodes to use, `parts` what each step found."""

    def __init__(self, groups: Sequence[tuple[str, ...]], screened: Sequence[MeasuredGroup]) -> None:
        self._groups = groups
        self._usual = usual_speed((one.results[0] for one in screened), [len(one.nodes) for one in screened])
        self.good = {node for one in screened if one.passed for node in one.nodes}
        self.parts: list[Diagnosis] = []
        # A permanent fault shows each time its group is measured.
        self._unsteady = {node for one in screened if one.certainty == "unsteady" for node in one.nodes}

    def _take(self, part: Diagnosis, nodes: Iterable[str]) -> None:
        """Keep what a step found about these nodes: those that it has not cleared are not to be used."""
        self.good = self.good - {*nodes} | {*part.good}
        self.parts.append(structs.replace(part, good=()))

    def with_partners(self, suspects: Sequence[str]) -> Steps:
        """Measure each suspect with two nodes that passed in their groups, of two groups where there are two."""
        by_group = ([node for node in group if node in self.good] for group in self._groups)
        partners = itertools.cycle(filter(None, itertools.chain.from_iterable(itertools.zip_longest(*by_group))))
        pairs = [GroupTest("partner", (node, next(partners))) for node in suspects for _ in range(2)]
        found = yield from measured(disjoint(pairs), self._usual)
        self._take((yield from self._judged(suspects, found)), suspects)

    def inside(self, failed: Sequence[MeasuredGroup]) -> Steps:
        """Measure again what the partners left of groups that failed, and every pair of what still fails."""
        left = [(one, tuple(node for node in one.nodes if node in self.good)) for one in failed]
        tests = [GroupTest("rest", nodes) for one, nodes in left if 1 < len(nodes) < len(one.nodes)]
        again = yield from measured([tests], self._usual)
        for one in [*again, *(one for one, nodes in left if nodes == one.nodes)]:
            if pairs := (yield from self._pairs_of(one)):
                self._take((yield from self._judged(one.nodes, pairs)), one.nodes)

    def across(self) -> Steps:
        """Measure one node of each group together: what is right in its group and fails with others has a bad link."""
        group_of = {node: group for group in self._groups for node in group if node in self.good}
        nodes = tuple({group: node for node, group in reversed(group_of.items())}.values())[::-1]
        if len(nodes) < PAIR:
            return
        [one] = yield from measured([[GroupTest("across", nodes)]], self._usual)
        pairs = yield from self._pairs_of(one)
        if not pairs:
            return
        part = yield from self._judged(nodes, pairs)
        unsteady = {pair.name for pair in pairs if pair.certainty == "unsteady"}
        blamed = []
        for blame in part.blamed:
            if blame.kind == "node" and len(group := group_of[blame.who]) > 1 and unsteady.isdisjoint(blame.by):
                self.good.difference_update(group)
                blamed.append(structs.replace(blame, kind="link", who=f"{name_of(group)} to other groups"))
            else:
                blamed.append(blame)
        self._take(structs.replace(part, blamed=tuple(blamed)), nodes)

    def _judged(self, nodes: Collection[str], pairs: Sequence[MeasuredGroup]) -> Plan:
        """Judge pairs; a link is named after a third failure, because a node that fails now and then looks like one."""
        links = {blame.by for blame in judged(nodes, pairs, self.good).blamed if blame.kind == "link"}
        passed = {one.nodes for one in pairs if (one.name,) in links and not self._unsteady.isdisjoint(one.nodes)}
        for tests in disjoint(GroupTest("pair", one.nodes, 3) for one in pairs if (one.name,) in links):
            results = yield tests
            passed |= {
                t.nodes for t, r in zip(tests, results, strict=True) if compared(r, self._usual).status != "fail"
            }
        sure = [one._replace(certainty="unsteady") if one.nodes in passed else one for one in pairs]
        return judged(nodes, sure, self.good)

    def _pairs_of(self, whole: MeasuredGroup) -> Rounds:
        """Measure every pair of nodes that fail together; none are returned where the fault cannot be isolated."""
        pairs = yield from measured([] if whole.passed else pair_rounds(whole.nodes), self._usual)
        if whole.passed or not all(pair.passed for pair in pairs):
            return pairs
        self.good.difference_update(whole.nodes)
        row = (UnclearNodes(whole.nodes, f"{whole.reason}; each pair of them passes", (whole.name,)),)
        unformed = whole.certainty == "undetermined"
        self.parts.append(Diagnosis(undetermined=row) if unformed else Diagnosis(not_isolated=row))
        return []


def grouped(nodes: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the nodes in ceil(sqrt(N)) groups of one size or sizes that differ by one."""
    count = math.isqrt(len(nodes) - 1) + 1
    ends = [len(nodes) * number // count for number in range(count + 1)]
    return [tuple(nodes[start:end]) for start, end in itertools.pairwise(ends)]


def pair_rounds(nodes: Sequence[str]) -> list[list[GroupTest]]:
    """Return a round-robin schedule (circle method): each pair once, and in each round each node at most once."""
    ring: list[str | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    rounds = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        met = zip(ring[:half], reversed(ring[half:]), strict=True)
        rounds.append([GroupTest("pair", (one, other)) for one, other in met if one is not None and other is not None])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return rounds


def judged(nodes: Collection[str], measured: Sequence[MeasuredGroup], cleared: Collection[str] = ()) -> Diagnosis:
    """Name the nodes that fail with most of their partners, then links; `cleared` passed in other tests."""
    met = collections.Counter(node for one in measured if one.certainty != "undetermined" for node in one.nodes)
    lost = [one for one in measured if one.certainty in ("fail", "unsteady")]
    blamed: list[Blame] = []
    unclear: list[UnclearNodes] = []
    out: set[str] = set()
    while worst := _worst(nodes, lost, met):
        by = [one for one in lost if worst in one.nodes]
        blamed.append(_node_at_fault(worst, met[worst], by))
        out.add(worst)
        lost = [one for one in lost if one not in by]
    passed = {node for one in measured if one.passed for node in one.nodes}
    sound = {*passed, *cleared}
    for one in lost:
        # Either end may stay in use, but not both in one group.
        out.add([node for node in one.nodes if node in nodes][-1])
        if one.certainty == "unsteady":
            why = f"fails now and then: {one.results[0].reason}"
            unclear.append(UnclearNodes(one.nodes, why, (one.name,)))
        elif not sound.issuperset(one.nodes):
            unclear.append(UnclearNodes(one.nodes, f"not both passed with another: {one.reason}", (one.name,)))
            out.update({*one.nodes} - sound)
        else:
            blamed.append(Blame("link", one.name, f"both pass with others: {one.reason}", (one.name,)))
    good = tuple(node for node in nodes if node in sound and node not in out)
    never = _never_met([node for node in nodes if node not in cleared], measured, passed)
    return Diagnosis(tuple(blamed), tuple(unclear), tuple(never), good)


def _worst(nodes: Collection[str], lost: Sequence[MeasuredGroup], met: Mapping[str, int]) -> str | None:
    """Return the node with the most failing pairs, if those are too many for its links."""
    losses = collections.Counter(node for one in lost for node in one.nodes if node in nodes)
    for node, count in losses.most_common(1):
        unsteady = any(one.certainty == "unsteady" and node in one.nodes for one in lost)
        if met[node] > 1 and (count * 2 > met[node] or (unsteady and count >= _SEVERAL and count * 5 > met[node])):
            return node
    return None


def _node_at_fault(node: str, met: int, by: Sequence[MeasuredGroup]) -> Blame:
    gpus = [{gpu for result in one.results for gpu in result.faulty_gpus if gpu.startswith(f"{node} ")} for one in by]
    same = set.intersection(*gpus)
    unsteady = sum(one.certainty == "unsteady" for one in by)
    sometimes = f", {unsteady} of them not each time" if unsteady else ""
    reason = f"fails with {len(by)} of {met} partners{sometimes}: {by[0].reason}"
    return at_fault(node, same, reason, tuple(one.name for one in by[:_MOST_NAMED]))


def _never_met(nodes: Sequence[str], measured: Sequence[MeasuredGroup], passed: set[str]) -> list[UnclearNodes]:
    unformed = [one for one in measured if one.certainty == "undetermined"]
    failed = {node for one in measured if one.certainty in ("fail", "unsteady") for node in one.nodes}
    alone = [node for node in nodes if node not in passed | failed]
    by = {node: [one for one in unformed if node in one.nodes] for node in alone}
    rows = [
        UnclearNodes((node,), own[0].reason if own else "it met no other node", tuple(one.name for one in own))
        for node, own in by.items()
    ]
    pairs = [one for one in unformed if not set(one.nodes) & set(alone)]
    return rows + [UnclearNodes(one.nodes, one.reason, (one.name,)) for one in pairs]
