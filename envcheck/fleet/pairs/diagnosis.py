"""Which node, GPU or link is at fault: `diagnosis` of a large fleet by groups, `tournament` by every pair once.

The diagnosis: a group passes where all its nodes and all links between them are sound. So a list of nodes that does not
pass has a shortest beginning that does not, and the last node of that beginning is at fault, or its link to an earlier
one. The search for it costs a logarithm of tests, and a node is named only after it failed twice with a partner that
passed elsewhere. A link between two nodes of different groups that are not their representatives is never measured:
the tournament measures every pair.
"""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Final

from envcheck.fleet.pairs.results import (
    Blame,
    Diagnosis,
    GroupResult,
    GroupTest,
    MeasuredGroup,
    RollCall,
    Round,
    UnclearNodes,
    compared,
    measure,
    measure_alike,
    name_of,
    roll_call,
    usual_speed,
)

# How much of what is left the next test takes. Of two domains that fail together either may be at fault, which takes
# more tests than to blame the third or fourth: so domains are added in smaller steps.
_CUT: Final = 0.5
_CUT_OF_DOMAINS: Final = 0.4
PAIR: Final = 2
# A link is named after so many failures: a node that fails each second time may look like a bad link after two.
_SURE: Final = 3
Steps = Generator[Round, Sequence[GroupResult], None]


class Search:
    """What is known of the nodes so far: `good` passed in a group; the lists are what was found.

    `apart`: the groups are domains with a network of their own, whose speed cannot be compared with that between them.
    """

    def __init__(self, groups: Sequence[tuple[str, ...]], usual: float | None, *, apart: bool) -> None:
        self._groups, self._usual, self._apart = groups, usual, apart
        self._group_of = {node: group for group in groups for node in group}
        self.good: set[str] = set()
        self.blamed: list[Blame] = []
        self.not_isolated: list[UnclearNodes] = []
        self.undetermined: list[UnclearNodes] = []
        self._out: set[str] = set()
        # A link that fails once and passes once is not what a permanent fault looks like.
        self._unsteady = False

    def learn(self, measured: Iterable[MeasuredGroup]) -> None:
        """Take the nodes of tests that passed for good."""
        self.good |= {node for one in measured if one.passed for node in one.nodes}

    def inside(self, group: MeasuredGroup) -> Steps:
        """Find the first fault in a group; its nodes that no test has cleared take part in the test across."""
        yield from self._first_fault(group)

    def across(self) -> Steps:
        """Test one good node of each group with all nodes not yet cleared, until what is left passes together."""
        while len(nodes := self._representatives()) > 1:
            one = yield from self._measured("across", nodes)
            before = len(self._out)
            if not one.passed:
                yield from self._first_fault(one)
            if one.passed or len(self._out) == before:
                return

    def _representatives(self) -> tuple[str, ...]:
        uncleared = [node for node in self._group_of if node not in self.good and node not in self._out]
        good = [next((n for n in group if n in self.good and n not in self._out), None) for group in self._groups]
        return (*filter(None, good), *uncleared)

    def _first_fault(self, full_group: MeasuredGroup) -> Steps:
        """Find the shortest beginning of a list that does not pass; its last node or a link of it is at fault."""
        nodes = full_group.nodes
        self._unsteady = full_group.certainty == "unsteady"
        end, shortest = yield from self._shortest(nodes, (), 1, full_group)
        last, before = nodes[end - 1], nodes[: end - 1]
        suspects: tuple[str, ...] = (last, *before) if len(before) == 1 else (last,)
        if self._apart and len(before) == 1 and len(nodes) > end:
            suspects = yield from self._one_of_two(before[0], last, nodes[end:])
        for suspect in suspects:
            cleared = yield from self._with_partners(suspect, full_group, shortest)
            if not cleared:
                return
        if len(before) > 1:
            earlier = [node for node in self._partners(last, ()) if node in before][:1]
            ordered = (*earlier, *(node for node in before if node not in earlier))
            end, shortest = yield from self._shortest(ordered, (last,), 1, shortest)
            before = ordered[end - 1 : end]
        yield from self._link(before[0], last, full_group)

    def _one_of_two(
        self, one: str, other: str, rest: tuple[str, ...]
    ) -> Generator[Round, Sequence[GroupResult], tuple[str, ...]]:
        """Return which of two nodes that fail together to suspect: the one without which the others pass."""
        for suspect, cleared in ((other, one), (one, other)):
            without = yield from self._part((cleared, *rest))
            if without.passed:
                return (suspect,)
        return (other, one)

    def _shortest(
        self, nodes: Sequence[str], extra: tuple[str, ...], low: int, full_group: MeasuredGroup
    ) -> Generator[Round, Sequence[GroupResult], tuple[int, MeasuredGroup]]:
        """Return the least number of nodes that do not pass with `extra`, and their test; `low` of them do."""
        high, cut = len(nodes), _CUT_OF_DOMAINS if self._between_domains(nodes) else _CUT
        while high - low > 1:
            middle = low + max(1, round(cut * (high - low)))
            one = yield from self._part((*nodes[:middle], *extra))
            if one.passed:
                low = middle
            else:
                high, full_group = middle, one
        return high, full_group

    def _with_partners(
        self, suspect: str, full_group: MeasuredGroup, shortest: MeasuredGroup
    ) -> Generator[Round, Sequence[GroupResult], bool]:
        """Measure a node with two partners that passed elsewhere; return True if it passes with the first."""
        partners = self._partners(suspect, shortest.nodes if len(shortest.nodes) == PAIR else ())
        if not partners:
            return self._unclear(full_group, "there is no known-good partner")
        pairs = [(suspect, partner) for partner in partners]
        results: list[GroupResult] = []
        for pair in pairs:
            result = yield from self._once(pair, 1)
            if not results and result.status == "pass":
                self.good.add(suspect)
                return True
            results.append(result)
        statuses = [result.status for result in results]
        if statuses == ["fail", "fail"]:
            yield from self._blame(suspect, pairs, [*results, *shortest.results])
        elif statuses == ["fail", "pass"]:
            steady = yield from self._fails_again(pairs[0], 2)
            self.good.add(suspect)
            if steady:
                self._name_link(pairs[0][1], suspect, results[0].reason, [name_of(pair) for pair in pairs])
            else:
                self._unclear(full_group, "the fault comes and goes: a pair does not fail each time")
        elif "fail" not in statuses:
            reason = "groups with it do not form: " + results[0].reason
            self.undetermined.append(UnclearNodes((suspect,), reason, tuple(map(name_of, pairs))))
            self._out.add(suspect)
        else:
            self._unclear(full_group, results[0].reason)
        return False

    def _blame(self, suspect: str, pairs: Sequence[tuple[str, str]], results: Sequence[GroupResult]) -> Steps:
        """Blame a node that fails with two partners: its GPU where each report names that one, or its group's link."""
        by = [name_of(pair) for pair in pairs]
        reason = next(result.reason for result in results if result.reason)
        self._out.add(suspect)
        own = [{gpu for gpu in r.faulty_gpus if gpu.startswith(f"{suspect} ")} for r in results if r.status == "fail"]
        gpus = set.intersection(*own)
        outside = next((other for _, other in pairs if other not in self._group_of[suspect]), None)
        beside = next((n for n in self._group_of[suspect] if n in self.good and n not in self._out), None)
        if suspect in self.good and outside and beside:
            # The suspect failed twice: a second node of its group is enough to tell the group's link from the node.
            one = yield from self._once((beside, outside), 1)
            if one.status == "fail":
                group = name_of(self._group_of[suspect])
                self._out.update(self._group_of[suspect])
                by.append(name_of((beside, outside)))
                self.blamed.append(Blame("link", f"{group} to other groups", reason, tuple(by)))
                return
        self.good.discard(suspect)
        self.blamed.append(
            Blame("gpu", gpus.pop(), reason, tuple(by)) if len(gpus) == 1 else Blame("node", suspect, reason, tuple(by))
        )

    def _link(self, one: str, other: str, full_group: MeasuredGroup) -> Steps:
        """Blame the link between two nodes that pass with others, if they fail together each time."""
        groups = self._group_of[one], self._group_of[other]
        pair = yield from self._measured("link", (one, other))
        if pair.certainty != "fail" or not (yield from self._fails_again(pair.nodes, 3)):
            self._unclear(full_group, "the fault comes and goes: its parts and pairs do not fail each time")
            return
        beside = [n for group in groups for n in [m for m in group if m in self.good and m not in pair.nodes][:1]]
        by, who = [pair.name], pair.name
        self._out.add(other)
        if groups[0] != groups[1] and len(beside) == PAIR:
            # Where the groups pass together without that node, nothing is wrong between the groups.
            without = yield from self._measured("across", self._representatives())
            second = without if without.passed else (yield from self._measured("link of the groups", beside))
            if second.certainty == "fail":
                by, who = [*by, second.name], " to ".join(map(name_of, groups))
        self._name_link(one, other, pair.reason, by, who)

    def _name_link(self, one: str, other: str, reason: str, by: Sequence[str], who: str = "") -> None:
        if self._apart and {one, other} == {*self._group_of[one]}:
            why = f"{reason}; their domain has no third node that tells which of them is at fault"
            self.not_isolated.append(UnclearNodes((one, other), why, tuple(by)))
            self._out |= {one, other}
            return
        self.blamed.append(
            Blame("link", who or name_of((one, other)), f"both ends pass with others: {reason}", tuple(by))
        )
        # Either end may stay in use, but not both in one group.
        self._out.add(other)

    def _unclear(self, full_group: MeasuredGroup, reason: str) -> bool:
        certain = {"undetermined": self.undetermined}.get(full_group.certainty, self.not_isolated)
        certain.append(UnclearNodes(full_group.nodes, f"{full_group.reason}; {reason}", (full_group.name,)))
        self._out.update(node for node in full_group.nodes if node not in self.good)
        return False

    def usable(self, node: str) -> bool:
        """Tell whether a node passed in a group and nothing speaks against it."""
        return node in self.good and node not in self._out

    def _partners(self, suspect: str, doubtful: Sequence[str]) -> list[str]:
        """Return up to two good nodes to test with: of the suspect's own group, else of two groups without doubt.

        A node that passed in its own group is under suspicion for its link to others: its own group says nothing.
        """
        own = self._group_of[suspect]
        near = [] if suspect in self.good else [node for node in own if self.usable(node) and node != suspect]
        avoided = {own, *(self._group_of[node] for node in doubtful)}
        groups = [group for group in self._groups if group not in avoided]
        far = filter(None, (next(filter(self.usable, group), None) for group in groups))
        return [*near, *far][:2]

    def _measured(self, step: str, nodes: Sequence[str]) -> Generator[Round, Sequence[GroupResult], MeasuredGroup]:
        [one] = yield from measure([GroupTest(step, tuple(nodes))], self._comparable(nodes))
        self.learn([one])
        self._unsteady |= one.certainty == "unsteady"
        return one

    def _part(self, nodes: Sequence[str]) -> Generator[Round, Sequence[GroupResult], MeasuredGroup]:
        """Measure a part of nodes that failed twice. What fails is not repeated: the last pairs measure it again."""
        result = yield from self._once(nodes, 1)
        if result.status == "undetermined":
            return (yield from self._measured("part", nodes))
        one = MeasuredGroup(tuple(nodes), result.status, (result,), name_of(nodes))
        self.learn([one])
        return one

    def _fails_again(self, pair: Sequence[str], attempt: int) -> Generator[Round, Sequence[GroupResult], bool]:
        """Measure a pair that failed until it has failed three times; return False as soon as it does not."""
        for number in range(attempt, _SURE + 1):
            result = yield from self._once(pair, number)
            if result.status != "fail":
                return False
        return not self._unsteady

    def _once(self, nodes: Sequence[str], attempt: int) -> Generator[Round, Sequence[GroupResult], GroupResult]:
        [result] = yield [GroupTest("part", tuple(nodes), attempt)]
        return compared(result, self._comparable(nodes))

    def _comparable(self, nodes: Sequence[str]) -> float | None:
        """Return the usual speed for a test of these nodes, None where their network is another."""
        return None if self._between_domains(nodes) else self._usual

    def _between_domains(self, nodes: Sequence[str]) -> bool:
        return self._apart and len({self._group_of[node] for node in nodes}) > 1


Domains = Mapping[str, str]


def diagnosis(nodes: Sequence[str], domains: Domains) -> Generator[Round, Sequence[GroupResult], Diagnosis]:
    """Find what is at fault among these nodes; `domains` names the NVLink domain or switch of a node, if known."""
    call = yield from roll_call(nodes)
    groups = grouped(call.present, domains)
    screened = yield from measure_alike([GroupTest("group", group) for group in groups if len(group) > 1])
    usual = usual_speed((one.results[0] for one in screened), [len(one.nodes) for one in screened])
    search = Search(groups, usual, apart=bool(domains))
    search.learn(screened)
    if screened and not search.good:
        return _no_group_passed(call, [one.name for one in screened], screened[0].reason)
    for one in screened:
        if not one.passed:
            yield from search.inside(one)
    yield from search.across()
    return Diagnosis(
        (*call.blamed, *search.blamed),
        (*call.not_isolated, *search.not_isolated),
        (*call.undetermined, *search.undetermined),
        tuple(node for node in call.present if search.usable(node)),
        tuple(call.notes),
    )


def _no_group_passed(call: RollCall, names: Sequence[str], reason: str) -> Diagnosis:
    why = f"not one of {len(names)} groups passed, so that there is no known-good partner: {reason}"
    unclear = UnclearNodes(tuple(call.present), why, tuple(names))
    return Diagnosis(
        tuple(call.blamed), (*call.not_isolated, unclear), tuple(call.undetermined), notes=tuple(call.notes)
    )


def grouped(nodes: Sequence[str], domains: Domains) -> list[tuple[str, ...]]:
    """Return the nodes by domain, or in ceil(sqrt(N)) groups of one size or sizes that differ by one."""
    if not nodes:
        return []
    if domains:
        names = dict.fromkeys(domains.get(node, "") for node in nodes)
        return [tuple(node for node in nodes if domains.get(node, "") == name) for name in names]
    count = math.isqrt(len(nodes) - 1) + 1
    ends = [len(nodes) * number // count for number in range(count + 1)]
    return [tuple(nodes[start:end]) for start, end in itertools.pairwise(ends)]


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
    return judged(call, measured)


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


def judged(call: RollCall, measured: Sequence[MeasuredGroup]) -> Diagnosis:
    """Name nodes that fail with most of their partners, then the links that fail between nodes that do not."""
    met = collections.Counter(node for one in measured if one.certainty != "undetermined" for node in one.nodes)
    lost = [one for one in measured if one.certainty in ("fail", "unsteady")]
    blamed, unclear = [*call.blamed], [*call.not_isolated]
    while worst := _worst(lost, met):
        by = [one for one in lost if worst in one.nodes]
        blamed.append(_node_at_fault(worst, met[worst], by))
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
    good = [node for node in call.present if node in passed and not _is_named(node, blamed)]
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


def _node_at_fault(node: str, met: int, by: Sequence[MeasuredGroup]) -> Blame:
    gpus = [{gpu for result in one.results for gpu in result.faulty_gpus if gpu.startswith(f"{node} ")} for one in by]
    same = set.intersection(*gpus)
    unsteady = sum(one.certainty == "unsteady" for one in by)
    sometimes = f", {unsteady} of them not each time" if unsteady else ""
    reason = f"fails with {len(by)} of {met} partners{sometimes}: {by[0].reason}"
    names = tuple(one.name for one in by[:_MOST_NAMED])
    return Blame("gpu", same.pop(), reason, names) if len(same) == 1 else Blame("node", node, reason, names)


def _is_named(node: str, blamed: Sequence[Blame]) -> bool:
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
