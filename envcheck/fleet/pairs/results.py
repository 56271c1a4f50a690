"""A test of nodes, what it came to, the roll-call of all nodes, and the diagnosis that tests lead to."""

import collections
import itertools
import statistics
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import structs

from envcheck.counting import counted, printable
from envcheck.fleet.hostlist import fold
from envcheck.node.collect import now
from envcheck.struct_types import know_types

ResultStatus = Literal["pass", "fail", "undetermined"]
# A group this much slower than others of its size has a fault in it. All-reduce goes at the speed of its slowest link;
# a link at half its width or one of two ports down halves it, and groups of sound nodes differ by a few percent.
SLOW: Final = 0.8


class GroupTest(NamedTuple):
    """One test: these nodes start together and measure; `attempt` 2 repeats it, `step` says what for."""

    step: str
    nodes: tuple[str, ...]
    attempt: int = 1

    @property
    def key(self) -> str:
        """Return what identifies the test's result: the same nodes are not measured twice for two purposes."""
        kind = ROLL_CALL if self.step == ROLL_CALL else "group"
        return f"{kind} {self.attempt} {fold(self.nodes)}"


ROLL_CALL: Final = "roll-call"


class NodeAnswer(msgspec.Struct, frozen=True):
    """What one node reports. `gpus` is a number, `clock` seconds ahead of the launching machine's clock, or None."""

    node: str
    status: ResultStatus
    reason: str = ""
    gpus: int | None = None
    driver: str = ""
    kernel: str = ""
    clock: float | None = None
    faulty_gpus: tuple[str, ...] = ()


class GroupResult(msgspec.Struct, frozen=True):
    """What a test came to: `speed` in GB/s; `faulty_gpus` as "node GPU-uuid"; `answers` are the nodes' own."""

    status: ResultStatus
    speed: float | None = None
    reason: str = ""
    faulty_gpus: tuple[str, ...] = ()
    answers: tuple[NodeAnswer, ...] = ()


class Blame(msgspec.Struct, frozen=True):
    """A node, GPU or link at fault. `by` are the tests that say so, `reason` what they measured."""

    kind: Literal["node", "link", "gpu"]
    who: str
    reason: str
    by: tuple[str, ...] = ()


class UnclearNodes(msgspec.Struct, frozen=True):
    """Nodes about which nothing certain was found: a fault that could not be isolated, or groups that never formed."""

    nodes: tuple[str, ...]
    reason: str
    by: tuple[str, ...] = ()


class Diagnosis(msgspec.Struct, frozen=True):
    """What all tests together say. `good` are the nodes that passed in a group; `notes` change no verdict."""

    blamed: tuple[Blame, ...] = ()
    not_isolated: tuple[UnclearNodes, ...] = ()
    undetermined: tuple[UnclearNodes, ...] = ()
    good: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """Return 1 where a fault was found, 3 where something is undetermined, else 0."""
        if self.blamed or self.not_isolated:
            return 1
        return 3 if self.undetermined or not self.good else 0

    @property
    def sentence(self) -> str:
        """Return the verdict in one line."""
        counts = [
            counted(len(self.blamed), "fault") if self.blamed else "",
            f"{len(self.not_isolated)} not isolated" if self.not_isolated else "",
            f"{counted(len(self.undetermined), 'question')} open" if self.undetermined else "",
        ]
        word = {0: "PASS", 1: "FAIL", 3: "UNDETERMINED"}[self.exit_code]
        return f"{word}: {', '.join(filter(None, counts)) or counted(len(self.good), 'node') + ' passed in a group'}"


know_types(GroupResult, Diagnosis)


def joined(parts: Sequence[Diagnosis]) -> Diagnosis:
    """Return what all parts say."""
    return Diagnosis(
        *(tuple(row for part in parts for row in getattr(part, name)) for name in Diagnosis.__struct_fields__)
    )


def at_fault(node: str, gpus: set[str], reason: str, by: tuple[str, ...]) -> Blame:
    """Blame the one GPU that every failure names, else the node."""
    return Blame("gpu", gpus.pop(), reason, by) if len(gpus) == 1 else Blame("node", node, reason, by)


def lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the verdict first, then each finding with its evidence, then the nodes to use now."""
    yield diagnosis.sentence
    rows = [(f"{one.kind} {one.who}", one.reason, one.by) for one in diagnosis.blamed]
    rows += [(f"not isolated: {fold(one.nodes)}", one.reason, one.by) for one in diagnosis.not_isolated]
    alike = itertools.groupby(diagnosis.undetermined, lambda one: (one.reason, one.by))
    rows += [(f"undetermined: {fold(node for one in same for node in one.nodes)}", *why) for why, same in alike]
    for what, reason, by in rows:
        yield printable(f"{what}: {reason}")
        yield printable(f"    by: {', '.join(by) or 'no test'}")
    yield from (printable(f"note: {note}") for note in diagnosis.notes)
    yield f"use now: {fold(diagnosis.good) or 'no node'}"


def document(diagnosis: Diagnosis, mode: str, nodes: str, tests: int) -> dict[str, Any]:
    """Return the diagnosis as a JSON document; `tests` counts repetitions and the roll-call too."""
    return {
        "schema": "envcheck/fleet-pairs/1",
        "at": now(),
        "mode": mode,
        "nodes": nodes,
        "tests": tests,
        "verdict": {
            "status": {0: "pass", 1: "fail", 3: "error"}[diagnosis.exit_code],
            "exit_code": diagnosis.exit_code,
            "sentence": diagnosis.sentence,
            "good": fold(diagnosis.good),
            "blame": diagnosis.blamed,
            "not_isolated": diagnosis.not_isolated,
            "undetermined": diagnosis.undetermined,
        },
        "notes": diagnosis.notes,
    }


# Fewer speeds than this do not say what is usual; of groups of which one has more than twice the nodes of another, more
# are needed, because speed falls with the size.
_LEAST_SPEEDS = 2
_LEAST_OF_OTHER_SIZES = 4
Certainty = Literal["pass", "unsteady", "fail", "undetermined"]
_CERTAINTY: Final[dict[tuple[ResultStatus, ...], Certainty]] = {
    ("pass",): "pass",
    ("undetermined", "pass"): "pass",
    ("fail", "pass"): "unsteady",
    ("fail", "fail"): "fail",
}
Round = Sequence[GroupTest]


class MeasuredGroup(NamedTuple):
    """A test with what its one or two measurements say together: "unsteady" failed once and passed once."""

    nodes: tuple[str, ...]
    certainty: Certainty
    results: tuple[GroupResult, ...]

    @property
    def name(self) -> str:
        """Return how the test is called in evidence."""
        return name_of(self.nodes)

    @property
    def passed(self) -> bool:
        """Tell whether nothing at all speaks against these nodes."""
        return self.certainty == "pass"

    @property
    def reason(self) -> str:
        """Return what the last failing measurement says."""
        return next((result.reason for result in reversed(self.results) if result.reason), "")


# A planner yields the tests of a round, which may run at the same time, and receives their results in that order.
Rounds = Generator[Round, Sequence[GroupResult], list[MeasuredGroup]]


def measured(rounds: Iterable[Round], usual: float | None = None) -> Rounds:
    """Run rounds of tests, then again what did not pass; far slower than `usual` (GB/s), or these, is a failure."""
    first: dict[GroupTest, GroupResult] = {}
    for tests in filter(None, rounds):
        first |= zip(tests, (yield tests), strict=True)
    usual = usual_speed(first.values(), [len(test.nodes) for test in first]) if usual is None else usual
    results = {test: [compared(result, usual)] for test, result in first.items()}
    for tests in disjoint([test for test, [result] in results.items() if result.status != "pass"]):
        second = yield [test._replace(attempt=2) for test in tests]
        for test, result in zip(tests, second, strict=True):
            results[test].append(compared(result, usual))
    return [
        MeasuredGroup(test.nodes, _CERTAINTY.get(tuple(r.status for r in own), "undetermined"), tuple(own))
        for test, own in results.items()
    ]


def disjoint(tests: Iterable[GroupTest]) -> list[list[GroupTest]]:
    """Return the tests in few rounds in which no node is in two of them."""
    rounds: list[tuple[set[str], list[GroupTest]]] = []
    for test in tests:
        taken, members = next((one for one in rounds if one[0].isdisjoint(test.nodes)), (set[str](), []))
        if not members:
            rounds.append((taken, members))
        taken.update(test.nodes)
        members.append(test)
    return [members for _, members in rounds]


def usual_speed(results: Iterable[GroupResult], sizes: Sequence[int] = ()) -> float | None:
    """Return the upper quartile of the speeds in GB/s, which three of four groups may miss; None of too few."""
    least = _LEAST_OF_OTHER_SIZES if sizes and max(sizes) > 2 * min(sizes) else _LEAST_SPEEDS
    speeds = sorted(result.speed for result in results if result.speed is not None)
    return statistics.quantiles(speeds, n=4, method="inclusive")[2] if len(speeds) >= least else None


def compared(result: GroupResult, usual: float | None) -> GroupResult:
    """Return the result, failed if it is slow beside other groups, undetermined if it alone has no speed."""
    if result.status != "pass" or usual is None:
        return result
    if result.speed is None:
        reason = "no speed was measured, and other groups have one"
        return structs.replace(result, status="undetermined", reason=reason)
    if result.speed >= SLOW * usual:
        return result
    reason = f"{result.speed:.3g} GB/s, {result.speed / usual:.0%} of what other groups reach"
    return structs.replace(result, status="fail", reason=reason)


def name_of(nodes: Sequence[str]) -> str:
    """Return how a test is called in evidence: a pair by its nodes, a group by its first and last and its size."""
    if len(nodes) <= 2:  # noqa: PLR2004 (a pair)
        return "-".join(nodes)
    return f"{nodes[0]}..{nodes[-1]} ({len(nodes)} nodes)"


# Seconds. Kerberos refuses a clock that is five minutes off, and logs of nodes that differ by one cannot be merged.
CLOCK_TOLERANCE: Final = 60.0
# More nodes than this share of a fleet are a second kind of node, not a mistake on some.
_ODD_SHARE: Final = 0.1
_BY: Final = ("roll-call",)


def roll_call(nodes: Sequence[str]) -> Generator[Round, Sequence[GroupResult], Diagnosis]:
    """Ask every node, then each that did not pass alone: where one is down, a launcher may start none of them.

    `good` may join groups; a node that is missing twice is undetermined.
    """
    answers: dict[str, list[NodeAnswer]] = {node: [] for node in nodes}
    asked = [*nodes]
    for attempt in (1, 2):
        if asked:
            tests = [tuple(asked)] if attempt == 1 else [(node,) for node in asked]
            results = yield [GroupTest(ROLL_CALL, test, attempt) for test in tests]
            for test, result in zip(tests, results, strict=True):
                came = {answer.node: answer for answer in result.answers}
                why = result.reason or "no report of it arrived"
                for node in test:
                    answers[node].append(came.get(node) or NodeAnswer(node, "undetermined", why))
            asked = [node for node in asked if answers[node][-1].status != "pass"]
    odd, notes = _odd([replies[-1] for replies in answers.values()])
    return joined([*(_called(node, own, odd.get(node)) for node, own in answers.items()), Diagnosis(notes=notes)])


def _called(node: str, replies: Sequence[NodeAnswer], odd: str | None) -> Diagnosis:
    """Return what a node's one or two answers say, and why it is unlike the others."""
    first, last = replies[0], replies[-1]
    if (first.status, last.status) == ("fail", "fail"):
        return Diagnosis((at_fault(node, {*first.faulty_gpus} & {*last.faulty_gpus}, last.reason, _BY),))
    if (first.status, last.status) == ("fail", "pass"):
        why = f"failed once and passed once: {first.reason}"
        return Diagnosis(not_isolated=(UnclearNodes((node,), why, _BY),))
    if last.status != "pass":
        return Diagnosis(undetermined=(UnclearNodes((node,), last.reason or first.reason, _BY),))
    return Diagnosis((Blame("node", node, odd, _BY),)) if odd else Diagnosis(good=(node,))


def _odd(answers: Iterable[NodeAnswer]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return why a node is unlike the others: GPUs, driver, kernel, clock; and notes of what is a mixed fleet."""
    passed = [answer for answer in answers if answer.status == "pass"]
    odd: dict[str, str] = {}
    notes = []
    for field, name in (("kernel", "kernel"), ("driver", "driver"), ("gpus", "number of GPUs")):
        values = {answer.node: getattr(answer, field) for answer in passed if getattr(answer, field) not in (None, "")}
        counts = collections.Counter(values.values()).most_common()
        others = {node: value for node, value in values.items() if value != counts[0][0]}
        if len(others) > max(1, _ODD_SHARE * len(passed)):
            kinds = ", ".join(f"{value} on {number}" for value, number in counts[:4])
            notes.append(f"a mixed fleet: {name} {kinds}; compare nodes of one kind only")
        else:
            usual = f"where {counts[0][1]} of {len(passed)} nodes have {counts[0][0]}" if counts else ""
            odd |= {node: f"{name} {value}, {usual}" for node, value in others.items()}
    for answer in passed:
        if answer.clock is not None and abs(answer.clock) > CLOCK_TOLERANCE:
            ahead = "ahead" if answer.clock > 0 else "behind"
            odd[answer.node] = f"its clock is {abs(answer.clock):.0f} s {ahead}"
    return odd, tuple(notes)
