"""From the results so far to the tests that come next, or the diagnosis: a pure function, so a killed run goes on."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Literal, NamedTuple

from envcheck.fleet.pairs.model import ROLL_CALL, Diagnosis, GroupResult, GroupTest
from envcheck.fleet.pairs.planner.diagnosis import Domains, diagnosis
from envcheck.fleet.pairs.planner.measured import Round
from envcheck.fleet.pairs.planner.tournament import tournament

PairsMode = Literal["tournament", "diagnose"]
# Up to here a tournament takes no more rounds than a diagnosis that finds a fault.
SMALL = 16


class Fleet(NamedTuple):
    """What is to be tested: nodes, their domains if known, and how."""

    nodes: tuple[str, ...]
    domains: Domains
    mode: PairsMode


class NextRound(NamedTuple):
    """Tests to run now, all at the same time, and how many rounds lie before them."""

    tests: tuple[GroupTest, ...]
    done: int


def step(fleet: Fleet, results: Mapping[str, GroupResult]) -> NextRound | Diagnosis:
    """Return the tests of the next round that have no result yet, or the diagnosis. The same results give the same."""
    rounds = planner(fleet)
    number = 0
    try:
        tests = next(rounds)
        while all(test.key in results for test in tests):
            number += bool(tests)
            tests = rounds.send([results[test.key] for test in tests])
    except StopIteration as ended:
        verdict: Diagnosis = ended.value
        return verdict
    return NextRound(tuple(test for test in tests if test.key not in results), number)


def planner(fleet: Fleet) -> Generator[Round, Sequence[GroupResult], Diagnosis]:
    """Return the planner of the fleet's mode."""
    if fleet.mode == "tournament":
        return tournament(fleet.nodes)
    return diagnosis(fleet.nodes, fleet.domains)


class Extent(NamedTuple):
    """How much a plan takes: rounds one after another, and tests (groups that start, the roll-call not counted)."""

    rounds: int
    tests: int


def extent(fleet: Fleet, oracle: Callable[[GroupTest], GroupResult]) -> tuple[Extent, Diagnosis]:
    """Run the plan to its end against an oracle that answers each test; as in `step`, none is measured twice."""
    rounds, results = planner(fleet), dict[str, GroupResult]()
    number = measured = 0
    try:
        tests = next(rounds)
        while True:
            new = [test for test in tests if test.key not in results]
            number += bool(new)
            measured += sum(test.step != ROLL_CALL for test in new)
            results |= {test.key: oracle(test) for test in new}
            tests = rounds.send([results[test.key] for test in tests])
    except StopIteration as ended:
        return Extent(number, measured), ended.value
