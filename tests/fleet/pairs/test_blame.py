"""Whom `fleet pairs` blames in simulated fleets, and in how many tests. benchmarks/fleet_blame.py runs many more."""

from __future__ import annotations

import math

import pytest

from envcheck.fleet.pairs.session import Extent, Fleet, extent
from tests.fleet.blame_score import Score, score
from tests.fleet.simulated_fleet import FAULT_KINDS, FaultKind, SimulatedFleet

SINGLE = [kind for kind in FAULT_KINDS if kind not in ("two-nodes", "intermittent")]
SIZES = (16, 64, 256, 1024)


def diagnose(simulated: SimulatedFleet, *, tournament: bool = False) -> tuple[Score, Extent]:
    """Return how right the diagnosis of a simulated fleet is, and what it took."""
    domains = simulated.domains if simulated.faults.kind == "bad-uplink" else {}
    fleet = Fleet(simulated.nodes, domains, "tournament" if tournament else "diagnose")
    took, diagnosis = extent(fleet, simulated)
    return score(diagnosis, simulated.faults), took


@pytest.mark.parametrize("kind", SINGLE)
def test_a_single_fault_is_named_and_nothing_else(kind: FaultKind) -> None:
    for size in SIZES:
        for seed in range(3):
            actual, _ = diagnose(SimulatedFleet(size, kind, seed))
            assert (actual.missed, actual.wrong) == (0, 0), (size, seed)


@pytest.mark.parametrize("kind", ["slow-node", "bad-link", "bad-uplink"])
def test_a_fault_takes_about_as_many_tests_as_there_are_groups(kind: FaultKind) -> None:
    for size in SIZES[1:]:
        took = [diagnose(SimulatedFleet(size, kind, seed))[1].tests for seed in range(10)]
        goal = 2 * math.log2(size) + math.sqrt(size)
        assert sum(took) / len(took) <= goal, (size, took)


def test_two_faulty_nodes_are_both_named() -> None:
    scores = [diagnose(SimulatedFleet(size, "two-nodes", seed))[0] for size in SIZES for seed in range(5)]
    assert Score.total(scores) == Score(40, 0, 0)


def test_a_node_that_fails_now_and_then_costs_no_other_node_its_name() -> None:
    scores = [diagnose(SimulatedFleet(64, "intermittent", seed))[0] for seed in range(60)]
    # A link of that node may be named; never two nodes that are both sound.
    assert Score.total(scores).wrong <= 3


@pytest.mark.parametrize("kind", ["slow-node", "bad-link", "intermittent"])
def test_the_tournament_names_a_single_fault(kind: FaultKind) -> None:
    scores = [diagnose(SimulatedFleet(16, kind, seed), tournament=True)[0] for seed in range(8)]
    assert Score.total(scores) == Score(8, 0, 0)


@pytest.mark.parametrize("size", [16, 17, 256])
def test_a_sound_fleet_takes_one_test_a_group_and_one_across(size: int) -> None:
    _, took = diagnose(SimulatedFleet(size, "none", 0))
    assert took == Extent(rounds=3, tests=math.isqrt(size - 1) + 2)
