"""How many rounds, tests and minutes the tests of a fleet take, found by running its plan against made-up results."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Final, NamedTuple

from envcheck.counting import counted
from envcheck.fleet.pairs.model import ROLL_CALL, GroupResult, GroupTest, NodeAnswer
from envcheck.fleet.pairs.session import Extent, Fleet, extent

# Minutes for a round of tests, launch included, until some have been measured.
ASSUMED_MINUTES: Final = 2.0


class PairsPlan(NamedTuple):
    """The extent where all is sound, and where one node is at fault; `minutes` is for a round."""

    sound: Extent
    one_fault: Extent
    all_pairs: int
    minutes: float
    measured: bool

    def lines(self, fleet: Fleet) -> list[str]:
        """Return the plan in words."""
        low, high = (
            f"{counted(one.rounds, 'round')}, {counted(one.tests, 'test')}" for one in (self.sound, self.one_fault)
        )
        minutes = [one.rounds * self.minutes for one in (self.sound, self.one_fault)]
        source = "as measured so far" if self.measured else "assumed"
        return [
            f"{counted(len(fleet.nodes), 'node')}, mode {fleet.mode}: a roll-call, then groups that measure together",
            f"all sound: {low}; one node at fault: about {high}; every pair once is {counted(self.all_pairs, 'test')}",
            f"{minutes[0]:.0f} to {minutes[1]:.0f} minutes, at {self.minutes:.1f} minutes a round ({source})",
        ]


def plan(fleet: Fleet, results: Iterable[GroupResult] = ()) -> PairsPlan:
    """Return how much there is to do; minutes come from results that exist."""
    faulty = fleet.nodes[len(fleet.nodes) // 2]
    sound, _ = extent(fleet, lambda test: _answered(test, None))
    one_fault, _ = extent(fleet, lambda test: _answered(test, faulty))
    seconds = [result.seconds for result in results if result.seconds > 0]
    minutes = statistics.mean(seconds) / 60 if seconds else ASSUMED_MINUTES
    count = len(fleet.nodes)
    return PairsPlan(sound, one_fault, count * (count - 1) // 2, minutes, bool(seconds))


def _answered(test: GroupTest, faulty: str | None) -> GroupResult:
    if test.step == ROLL_CALL:
        return GroupResult("pass", answers=tuple(NodeAnswer(node, "pass") for node in test.nodes))
    return GroupResult("fail" if faulty in test.nodes else "pass", reason="slow")
