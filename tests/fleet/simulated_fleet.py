"""Fleets with faults planted in them, whose answers are those of the tests of `fleet pairs`.

A fleet follows from its seed. `Faults` says what is wrong; nothing else in a test may know it.
"""

import random
from collections.abc import Callable
from typing import Final, NamedTuple

from envcheck.fleet.pairs.diagnosis import Plan, grouped
from envcheck.fleet.pairs.results import ROLL_CALL, Diagnosis, GroupResult, GroupTest, NodeAnswer, name_of

FaultKind = str
FAULT_KINDS: Final = (
    *("none", "slow-node", "bad-link", "bad-uplink", "cold-gpu", "wrong-kernel", "lying-clock"),
    *("missing", "stale", "two-nodes", "intermittent"),
)
# What a group of sound nodes reaches in GB/s, and by how much such groups differ.
SPEED: Final = 380.0
NOISE: Final = 0.02


class Faults(NamedTuple):
    """What is wrong with a fleet. `who` are nodes; a link has its two ends, an uplink all nodes of a group."""

    kind: FaultKind
    who: tuple[str, ...]


class SimulatedFleet:
    """Nodes with faults. Calling it with a test answers as reports of these nodes would."""

    def __init__(self, size: int, kind: FaultKind, seed: int) -> None:
        self.random = random.Random(f"{size} {kind} {seed}")  # noqa: S311 (a simulation)
        self.nodes = tuple(f"n{number}" for number in range(1, size + 1))
        groups = grouped(self.nodes)
        self.faults = Faults(kind, self._who(kind, groups))
        self.tests = 0

    def _who(self, kind: FaultKind, groups: list[tuple[str, ...]]) -> tuple[str, ...]:
        if kind == "none":
            return ()
        if kind == "bad-uplink":
            return self.random.choice(groups)
        if kind == "bad-link":
            return tuple(self.random.sample(self.random.choice(groups), 2))
        return tuple(self.random.sample(self.nodes, 2 if kind == "two-nodes" else 1))

    def __call__(self, test: GroupTest) -> GroupResult:
        """Answer a test: a fault shows in the speed alone, an uplink's in a limit that the group's reports fail."""
        if test.step == ROLL_CALL:
            return GroupResult("pass", None, "no report", (), tuple(filter(None, map(self._answer, test.nodes))))
        self.tests += 1
        speed = SPEED * self.random.uniform(1 - NOISE, 1 + NOISE)
        if self.faults.kind == "bad-uplink" and self._shows(test):
            return GroupResult("fail", speed / 2, "all-reduce-bandwidth: slow")
        return GroupResult("pass", speed * (0.5 if self._shows(test) else 1.0), "", ())

    def _shows(self, test: GroupTest) -> bool:
        kind, who = self.faults
        members = [node for node in who if node in test.nodes]
        if kind in ("slow-node", "two-nodes"):
            return bool(members)
        if kind == "bad-link":
            return len(members) == 2
        if kind == "bad-uplink":
            return 0 < len(members) < len(test.nodes)
        return kind == "intermittent" and bool(members) and self.random.random() < 0.5

    def _answer(self, node: str) -> NodeAnswer | None:
        kind, who = self.faults
        faulty = node in who
        if faulty and kind in ("missing", "stale"):  # a report of an earlier launch is in another directory
            return None
        if faulty and kind == "cold-gpu":
            gpu = f"{node} GPU-{self.nodes.index(node):08}-0000-4000-8000-000000000005"
            reason = "gemm-throughput: 442.4 TFLOP/s: slow"
            return NodeAnswer(node, "fail", reason, 8, "570.124.06", "5.15.0-1078", 0.0, (gpu,))
        kernel = "5.15.0-1061" if faulty and kind == "wrong-kernel" else "5.15.0-1078"
        clock = -3600.0 if faulty and kind == "lying-clock" else 0.0
        return NodeAnswer(node, "pass", "", 8, "570.124.06", kernel, clock)


def planted(faults: Faults) -> set[frozenset[str]]:
    """Return what a diagnosis has to name: each faulty node, or the two ends of a link."""
    if faults.kind == "bad-uplink":
        return {frozenset({f"{name_of(faults.who)} to other groups"})}
    return {frozenset(faults.who)} if faults.kind == "bad-link" else {frozenset({node}) for node in faults.who}


def named(diagnosis: Diagnosis) -> set[frozenset[str]]:
    """Return what a diagnosis names, a GPU by its node; a node without a report is named as undetermined."""
    rows = {frozenset(row.nodes) for row in diagnosis.undetermined}
    for kind, who in ((blame.kind, blame.who) for blame in diagnosis.blamed):
        ends = (
            who.split("-") if kind == "link" and " " not in who else [who.partition(" ")[0] if kind == "gpu" else who]
        )
        rows.add(frozenset(ends))
    return rows


class Extent(NamedTuple):
    """How much a plan takes: rounds one after another, and tests (groups that start, the roll-call not counted)."""

    rounds: int
    tests: int


def extent(plan: Plan, oracle: Callable[[GroupTest], GroupResult]) -> tuple[Extent, Diagnosis]:
    """Run the plan to its end against an oracle that answers each test; none is measured twice."""
    results = dict[str, GroupResult]()
    number = measured = 0
    try:
        tests = next(plan)
        while True:
            new = [test for test in tests if test.key not in results]
            number += bool(new)
            measured += sum(test.step != ROLL_CALL for test in new)
            results |= {test.key: oracle(test) for test in new}
            tests = plan.send([results[test.key] for test in tests])
    except StopIteration as ended:
        return Extent(number, measured), ended.value
