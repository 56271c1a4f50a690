"""Whom `fleet pairs` blames in simulated fleets, and in how many tests. benchmarks/fleet_blame.py runs many more."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest

from envcheck.fleet.pairs.diagnosis import grouped
from envcheck.fleet.pairs.session import Extent, Fleet, extent
from tests.fleet.blame_score import Score, score
from tests.fleet.simulated_fleet import FAULT_KINDS, FaultKind, Faults, SimulatedFleet

SINGLE = [kind for kind in FAULT_KINDS if kind not in ("two-nodes", "intermittent")]
SIZES = (16, 64, 256, 1024)


def diagnose(simulated: SimulatedFleet, *, tournament: bool = False) -> tuple[Score, Extent]:
    """Return how right the diagnosis of a simulated fleet is, and what it took."""
    domains = simulated.domains if simulated.faults.kind == "bad-uplink" else {}
    fleet = Fleet(simulated.nodes, domains, "tournament" if tournament else "diagnose")
    took, diagnosis = extent(fleet, simulated)
    return score(diagnosis, simulated.faults), took


def test_a_single_fault_is_named_and_nothing_else(subtests: pytest.Subtests) -> None:
    for kind in SINGLE:
        with subtests.test(str(kind)):
            for size in SIZES:
                for seed in range(3):
                    actual, _ = diagnose(SimulatedFleet(size, kind, seed))
                    assert (actual.missed, actual.wrong) == (0, 0), (size, seed)


def test_a_fault_takes_about_as_many_tests_as_there_are_groups(subtests: pytest.Subtests) -> None:
    cases: list[FaultKind] = ["slow-node", "bad-link", "bad-uplink"]
    for kind in cases:
        with subtests.test(str(kind)):
            for size in SIZES[1:]:
                took = [diagnose(SimulatedFleet(size, kind, seed))[1].tests for seed in range(10)]
                goal = 2 * math.log2(size) + math.sqrt(size)
                assert sum(took) / len(took) <= goal, (size, took)


def every_fault(size: int) -> Iterator[Faults]:
    """Yield each node, each link inside a group, and each link between a group and the others."""
    fleet = SimulatedFleet(size, "none", 0)
    groups = grouped(fleet.nodes, {})
    yield from (Faults("slow-node", (node,)) for node in fleet.nodes)
    yield from (Faults("bad-link", pair) for group in groups for pair in itertools.combinations(group, 2))
    yield from (Faults("bad-uplink", group) for group in groups)


def test_no_single_fault_takes_more_tests_than_the_goal(subtests: pytest.Subtests) -> None:
    cases: list[int] = [16, 64]
    for size in cases:
        with subtests.test(str(size)):
            for faults in every_fault(size):
                simulated = SimulatedFleet(size, faults.kind, 0)
                simulated.faults = faults
                actual, took = diagnose(simulated)
                assert (actual.missed, actual.wrong) == (0, 0), faults
                assert took.tests <= 2 * math.log2(size) + math.sqrt(size), faults


def test_a_node_of_a_domain_is_named_only_if_a_third_node_tells(subtests: pytest.Subtests) -> None:
    """Between domains a slow node does not show: in a domain of two, either may be the slow one."""
    cases: list[tuple[int, int]] = [(6, 0), (9, 1)]
    for size, named in cases:
        with subtests.test(str((size, named))):
            simulated = SimulatedFleet(size, "slow-node", 0)
            for node in simulated.nodes:
                simulated.faults = Faults("slow-node", (node,))
                _, diagnosis = extent(Fleet(simulated.nodes, simulated.domains, "diagnose"), simulated)
                assert score(diagnosis, simulated.faults) == Score(named, 1 - named, 0)
                assert node not in diagnosis.good


def test_two_faulty_nodes_are_both_named() -> None:
    scores = [diagnose(SimulatedFleet(size, "two-nodes", seed))[0] for size in SIZES for seed in range(5)]
    assert Score.total(scores) == Score(40, 0, 0)


def test_a_node_that_fails_now_and_then_costs_no_other_node_its_name() -> None:
    scores = [diagnose(SimulatedFleet(64, "intermittent", seed))[0] for seed in range(60)]
    # A link of that node may be named; never two nodes that are both sound.
    assert Score.total(scores).wrong <= 3


def test_the_tournament_names_a_single_fault(subtests: pytest.Subtests) -> None:
    cases: list[FaultKind] = ["slow-node", "bad-link", "intermittent"]
    for kind in cases:
        with subtests.test(str(kind)):
            scores = [diagnose(SimulatedFleet(16, kind, seed), tournament=True)[0] for seed in range(8)]
            assert Score.total(scores) == Score(8, 0, 0)


def test_a_sound_fleet_takes_one_test_a_group_and_one_across(subtests: pytest.Subtests) -> None:
    cases: list[int] = [16, 17, 256]
    for size in cases:
        with subtests.test(str(size)):
            _, took = diagnose(SimulatedFleet(size, "none", 0))
            assert took == Extent(rounds=3, tests=math.isqrt(size - 1) + 2)
