"""Rounds of tests: each that does not pass is repeated once, and both results decide."""

from __future__ import annotations

import statistics
from collections.abc import Generator, Iterable, Sequence
from typing import Literal, NamedTuple

from envcheck.fleet.pairs.model import SLOW, GroupResult, GroupTest

# Fewer speeds than this do not say what is usual; of groups of which one has more than twice the nodes of another, more
# are needed, because speed falls with the size.
_LEAST_SPEEDS = 2
_LEAST_OF_OTHER_SIZES = 4
Certainty = Literal["pass", "unsteady", "fail", "undetermined"]
Round = Sequence[GroupTest]
# A planner yields the tests of a round, which may run at the same time, and receives their results in that order.
Rounds = Generator[Round, Sequence[GroupResult], "list[MeasuredGroup]"]


class MeasuredGroup(NamedTuple):
    """A test with what its one or two measurements say together: "unsteady" failed once and passed once."""

    nodes: tuple[str, ...]
    certainty: Certainty
    results: tuple[GroupResult, ...]
    name: str

    @classmethod
    def of(cls, test: GroupTest, results: Sequence[GroupResult]) -> MeasuredGroup:
        """Return what one or two results of a test say together."""
        return cls(test.nodes, _certainty([result.status for result in results]), tuple(results), name_of(test.nodes))

    @property
    def passed(self) -> bool:
        """Tell whether nothing at all speaks against these nodes."""
        return self.certainty == "pass"

    @property
    def reason(self) -> str:
        """Return what the last failing measurement says."""
        return next((result.reason for result in reversed(self.results) if result.reason), "")


def measure(tests: Round, usual: float | None = None) -> Rounds:
    """Run a round, then repeat what did not pass. `usual` is the speed in GB/s to compare with, None for none."""
    first = yield tests
    judged = [compared(result, usual) for result in first]
    repeated = [test for test, result in zip(tests, judged, strict=True) if result.status != "pass"]
    second: Sequence[GroupResult] = (yield [test._replace(attempt=2) for test in repeated]) if repeated else ()
    repeated_results = dict(zip(repeated, (compared(result, usual) for result in second), strict=True))
    return [
        MeasuredGroup.of(test, [one for one in (result, repeated_results.get(test)) if one])
        for test, result in zip(tests, judged, strict=True)
    ]


def measure_alike(tests: Round) -> Rounds:
    """Run a round of groups of one size: those far slower than most of them fail, whatever their own limits say."""
    first = yield tests
    return (yield from _after(tests, first, usual_speed(first, [len(test.nodes) for test in tests])))


def _after(tests: Round, first: Sequence[GroupResult], usual: float | None) -> Rounds:
    """Go on with a round whose first results are known."""
    rounds = measure(tests, usual)
    next(rounds)
    try:
        following = rounds.send(first)
        while True:
            following = rounds.send((yield following))
    except StopIteration as ended:
        measured: list[MeasuredGroup] = ended.value
        return measured


def usual_speed(results: Iterable[GroupResult], sizes: Sequence[int] = ()) -> float | None:
    """Return the upper quartile of the speeds in GB/s; None where too few were measured to say what is usual.

    A fault in up to three quarters of the groups then leaves the sound ones as the measure. `sizes` of the groups.
    """
    least = _LEAST_OF_OTHER_SIZES if sizes and max(sizes) > 2 * min(sizes) else _LEAST_SPEEDS
    speeds = sorted(result.speed for result in results if result.speed is not None)
    return statistics.quantiles(speeds, n=4, method="inclusive")[2] if len(speeds) >= least else None


def compared(result: GroupResult, usual: float | None) -> GroupResult:
    """Return the result, failed if it passed its own limits and is slow beside other groups.

    A group without a speed, where others have one, is undetermined: it may be slow.
    """
    if result.status != "pass" or usual is None:
        return result
    if result.speed is None:
        reason = "no speed was measured, and other groups have one"
        return GroupResult("undetermined", None, reason, result.faulty_gpus, result.answers, result.seconds)
    if result.speed >= SLOW * usual:
        return result
    reason = f"{result.speed:.1f} GB/s, {result.speed / usual:.0%} of what other groups reach"
    return GroupResult("fail", result.speed, reason, result.faulty_gpus, result.answers, result.seconds)


def _certainty(statuses: list[str]) -> Certainty:
    if statuses in (["pass"], ["undetermined", "pass"]):
        return "pass"
    if statuses == ["fail", "pass"]:
        return "unsteady"
    return "fail" if statuses == ["fail", "fail"] else "undetermined"


def name_of(nodes: Sequence[str]) -> str:
    """Return how a test is called in evidence: a pair by its nodes, a group by its first and last and its size."""
    if len(nodes) <= 2:  # noqa: PLR2004 (a pair)
        return "-".join(nodes)
    return f"{nodes[0]}..{nodes[-1]} ({len(nodes)} nodes)"
