"""Whom `fleet pairs` blames in simulated fleets, and in how many rounds. benchmarks/fleet_blame.py runs many more."""

import itertools
import math
from collections.abc import Iterator

from envcheck.fleet.pairs.diagnosis import diagnosis, grouped
from envcheck.fleet.pairs.results import GroupResult, GroupTest
from tests.fleet.simulated_fleet import FAULT_KINDS, Extent, FaultKind, Faults, SimulatedFleet, extent, named, planted

SINGLE = [kind for kind in FAULT_KINDS if kind not in ("two-nodes", "intermittent")]
SIZES = (16, 64, 256, 1024)


def diagnose(simulated: SimulatedFleet, *, every_pair: bool = False) -> tuple[set[frozenset[str]], Extent]:
    """Return what is named wrongly or not at all in a simulated fleet, and what it took."""
    took, found = extent(diagnosis(simulated.nodes, every_pair=every_pair), simulated)
    assert not {*simulated.faults.who} & {*found.good} or simulated.faults.kind in ("bad-link", "intermittent")
    return named(found) ^ planted(simulated.faults), took


def test_faults_are_named_and_nothing_else() -> None:
    wrong = {}
    for kind, size, seed in itertools.product([*SINGLE, "two-nodes"], SIZES, range(3)):
        actual, took = diagnose(SimulatedFleet(size, kind, seed))
        most = 9 if kind == "slow-node" else 10 + 2 * math.sqrt(size)
        if actual or took.rounds > most:
            wrong[kind, size, seed] = actual, took
    assert wrong == {}


def every_fault(size: int) -> Iterator[Faults]:
    """Yield each node, each link inside a group, and each link between a group and the others."""
    fleet = SimulatedFleet(size, "none", 0)
    groups = grouped(fleet.nodes)
    yield from (Faults("slow-node", (node,)) for node in fleet.nodes)
    yield from (Faults("bad-link", pair) for group in groups for pair in itertools.combinations(group, 2))
    yield from (Faults("bad-uplink", group) for group in groups if len(group) > 1)


def test_wherever_a_fault_is_it_is_named() -> None:
    wrong = {}
    for size in (16, 23, 64):
        for faults in every_fault(size):
            simulated = SimulatedFleet(size, faults.kind, 0)
            simulated.faults = faults
            actual, _ = diagnose(simulated)
            if actual:
                wrong[size, faults] = actual
    assert wrong == {}


def test_a_node_that_fails_now_and_then_costs_no_other_node_its_name() -> None:
    wrong = 0
    for seed in range(60):
        simulated = SimulatedFleet(64, "intermittent", seed)
        # A link of that node may be named; never two nodes that are both sound.
        wrong += len(named(extent(diagnosis(simulated.nodes), simulated)[1]) - planted(simulated.faults))
    assert wrong <= 3


def test_the_tournament_names_a_single_fault() -> None:
    kinds: list[FaultKind] = ["slow-node", "bad-link", "intermittent"]
    for kind, seed in itertools.product(kinds, range(8)):
        assert diagnose(SimulatedFleet(16, kind, seed), every_pair=True)[0] == set(), kind


def test_a_sound_fleet_takes_one_test_a_group_and_one_across() -> None:
    for size in (16, 17, 256):
        _, took = diagnose(SimulatedFleet(size, "none", 0))
        assert took == Extent(rounds=3, tests=math.isqrt(size - 1) + 2)


def test_a_launcher_that_starts_nothing_where_one_node_is_down_hides_no_other() -> None:
    simulated = SimulatedFleet(16, "missing", 0)
    down = {*simulated.faults.who}

    def srun(test: GroupTest) -> GroupResult:
        return simulated(test) if len(test.nodes) == 1 or down.isdisjoint(test.nodes) else GroupResult("pass")

    assert named(extent(diagnosis(simulated.nodes, every_pair=True), srun)[1]) == planted(simulated.faults)
