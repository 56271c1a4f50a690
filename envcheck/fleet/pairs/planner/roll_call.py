"""The roll-call: each node by itself, before any group. It names who is missing, failing, or unlike the others."""

from __future__ import annotations

import collections
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from envcheck.fleet.pairs.model import ROLL_CALL, Blame, GroupResult, GroupTest, NodeAnswer, UnclearNodes
from envcheck.fleet.pairs.planner.measured import Round

# Seconds. Kerberos refuses a clock that is five minutes off, and logs of nodes that differ by one cannot be merged.
CLOCK_TOLERANCE: Final = 60.0
# More nodes than this share of a fleet are a second kind of node, not a mistake on some.
_ODD_SHARE: Final = 0.1
_BY: Final = ("roll-call",)


class RollCall(NamedTuple):
    """Who may join groups, and what the roll-call found of the rest."""

    present: list[str]
    blamed: list[Blame]
    not_isolated: list[UnclearNodes]
    undetermined: list[UnclearNodes]
    notes: list[str]


def roll_call(nodes: Sequence[str]) -> Generator[Round, Sequence[GroupResult], RollCall]:
    """Ask every node, and ask those again that did not pass; a node that is missing twice is undetermined."""
    [first] = yield [GroupTest(ROLL_CALL, tuple(nodes))]
    answers = {node: [answer] for node, answer in _by_node(nodes, first).items()}
    doubtful = [node for node, [answer] in answers.items() if answer.status != "pass"]
    if doubtful:
        [second] = yield [GroupTest(ROLL_CALL, tuple(doubtful), 2)]
        for node, answer in _by_node(doubtful, second).items():
            answers[node].append(answer)
    return judge(answers)


def judge(answers: Mapping[str, Sequence[NodeAnswer]]) -> RollCall:
    """Return what the answers say, one or two of each node."""
    call = RollCall([], [], [], [], [])
    latest = {node: replies[-1] for node, replies in answers.items()}
    odd = _odd(latest.values(), call.notes)
    for node, replies in answers.items():
        statuses = [answer.status for answer in replies]
        if statuses == ["fail", "fail"]:
            call.blamed.append(_failed(node, replies))
        elif statuses == ["fail", "pass"]:
            call.not_isolated.append(UnclearNodes((node,), f"failed once and passed once: {replies[0].reason}", _BY))
        elif statuses[-1] != "pass":
            call.undetermined.append(UnclearNodes((node,), replies[-1].reason or replies[0].reason, _BY))
        elif node in odd:
            call.blamed.append(Blame("node", node, odd[node], _BY))
        else:
            call.present.append(node)
    return call


def _by_node(nodes: Iterable[str], result: GroupResult) -> dict[str, NodeAnswer]:
    answers = {answer.node: answer for answer in result.answers}
    why = result.reason or "no report of it arrived"
    return {node: answers.get(node) or NodeAnswer(node, "undetermined", why) for node in nodes}


def _failed(node: str, answers: Sequence[NodeAnswer]) -> Blame:
    same = [gpu for gpu in answers[-1].faulty_gpus if gpu in answers[0].faulty_gpus]
    if len(same) == 1:
        return Blame("gpu", same[0], answers[-1].reason, _BY)
    return Blame("node", node, answers[-1].reason, _BY)


def _odd(answers: Iterable[NodeAnswer], notes: list[str]) -> dict[str, str]:
    """Return why a node is unlike the others: GPUs, driver, kernel, clock. A mixed fleet is a note."""
    passed = [answer for answer in answers if answer.status == "pass"]
    odd: dict[str, str] = {}
    properties: tuple[tuple[str, Callable[[NodeAnswer], object]], ...] = (
        ("kernel", lambda answer: answer.kernel or None),
        ("driver", lambda answer: answer.driver or None),
        ("number of GPUs", lambda answer: answer.gpus),
    )
    for name, read in properties:
        odd |= _unlike(name, {answer.node: read(answer) for answer in passed}, notes)
    for answer in passed:
        if answer.clock is not None and abs(answer.clock) > CLOCK_TOLERANCE:
            ahead = "ahead" if answer.clock > 0 else "behind"
            odd[answer.node] = f"its clock is {abs(answer.clock):.0f} s {ahead}"
    return odd


def _unlike(name: str, values: Mapping[str, object], notes: list[str]) -> dict[str, str]:
    counts = collections.Counter(value for value in values.values() if value is not None)
    if len(counts) < 2:  # noqa: PLR2004 (all alike)
        return {}
    [(usual, count), *_] = counts.most_common(1)
    others = {node: value for node, value in values.items() if value not in (None, usual)}
    if len(others) > max(1, _ODD_SHARE * len(values)):
        kinds = ", ".join(f"{value} on {number}" for value, number in counts.most_common(4))
        notes.append(f"a mixed fleet: {name} {kinds}; compare nodes of one kind only")
        return {}
    return {
        node: f"{name} {value}, where {count} of {len(values)} nodes have {usual}" for node, value in others.items()
    }
