"""Groups of two to four real ranks over gloo whose torch lies: each lie ends in a failure that names its rank."""

from __future__ import annotations

import importlib
import json
import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.checks import FAIL, PASS, Outcome, View
from tests.checks.env import lying_ranks

SCRIPT = Path(lying_ranks.__file__)
OTHERS = ("all-gather", "reduce-scatter", "all-to-all", "broadcast")
BANDWIDTH: dict[str, tuple[str, ...]] = {"flip_all_reduce": ("all-reduce",), "skip_all_reduce": ("all-reduce",)}
BANDWIDTH |= {"flip_others": OTHERS, "skip_others": OTHERS}
# Each group starts once; by lie, the culprits that have to be named.
NAMED: dict[int, dict[str, tuple[str, ...]]] = {
    world: {name: tuple(f"{one}, rank {world - 1}" for one in spoilt) for name, spoilt in BANDWIDTH.items()}
    for world in (2, 3)
}
NAMED[2] |= {
    "flip_every_37th": ("all-reduce, rank 0",),
    "flip_and_blind_comparison": ("all-reduce, rank 0",),
    "flip_recv": ("send/recv, rank 1",),
    "one_product_of_many_is_wrong": (f"rank 1 (cpu of {platform.node()})",),
    "one_product_is_left_out": (f"rank 0 (cpu of {platform.node()})",),
}
EVERY = "rank 0, 1, 2"
NAMED[3] |= {
    "maximum_for_minimum": ("all-reduce, rank 0",),
    "exclusive_or_is_or": ("all-reduce, rank 2",),
    "average_divides_twice": ("reduce-scatter (tensor), rank 1",),
    "bfloat16_is_rounded": ("all-gather, rank 1",),
    "int64_through_float64": ("all-reduce, rank 0", "sub-groups, rank 0"),
    "int64_through_int32": ("broadcast, rank 1", "sub-groups, rank 1"),
    "tail_is_dropped": ("all-to-all (uneven), rank 1",),
    "blocks_change_places": ("all-to-all (list), rank 1",),
    "objects_change_places": ("all-gather of objects, rank 2",),
    "root_is_forgotten": (f"scatter, {EVERY}",),
    "reduce_leaves_one_out": ("reduce, rank 2",),
    "messages_overtake": ("several sends in one batch, rank 0",),
    "work_is_complete_at_once": ("rank 1",),
    "wait_returns_at_once": ("rank 1",),
    "group_is_ignored": (f"sub-groups, {EVERY}",),
    "group_reaches_out": ("sub-groups, rank 2",),
    "barrier_waits_for_nobody": ("rank 0", "rank 1", "rank 2"),
    "gloo_lacks_what_it_has": ("rank 0", "rank 1", "rank 2"),
    "last_rank_raises": ("rank 0", "rank 1", "rank 2"),
}
# Slowness alone is measured again.
LATE = {"late_to_collectives": "rank 1 (cpu", "sleeps_in_every_tenth_product": "rank 0 (cpu"}
HONEST = {
    2: ("nothing_all_reduce", "nothing_others", "nothing_straggler", "held_up_for_a_moment"),
    3: ("nothing_all_reduce", "nothing_others", "nothing_collectives"),
    4: ("nothing_collectives",),
}
NAMED[4] = {"blocks_change_places": ("all-to-all (list), rank 1",)}
RAISING = ("crash_instead_of_unsupported",)
SECONDS = 240
Ranks = list[dict[str, Any]]
Measured = Callable[[int, str], Ranks]


@pytest.fixture(scope="module")
def measured(torch_python: Path, once: Callable[..., Path]) -> Measured:
    """Return what every rank of a group of so many measured under a lie; each group runs once."""

    def run(directory: Path, world: int) -> None:
        names = [*HONEST[world], *NAMED[world], *((*LATE, *RAISING) if world == min(NAMED) else ())]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        command = [str(torch_python), str(SCRIPT)]
        ranks = [
            subprocess.Popen([*command, str(rank), str(world), str(directory), *names], env=environment)
            for rank in range(world)
        ]
        for rank in ranks:
            rank.wait(SECONDS)

    def get(world: int, name: str) -> Ranks:
        directory = once(f"lying-{world}", lambda made: run(made, world))
        return [json.loads((directory / f"rank{rank}.json").read_text())[name] for rank in range(world)]

    return get


def judged(cpu: View, name: str, ranks: Ranks) -> Outcome:
    """Return what the judge of a lie's check makes of what was measured."""
    raised = [entry["raised"] for entry in ranks if isinstance(entry.get("raised"), str)]
    assert not raised, raised
    outcome: Outcome = importlib.import_module(f"envcheck.checks.env.{lying_ranks.LIES[name].check}").judge(cpu, ranks)
    return outcome


def ranks_of(culprit: str) -> list[str]:
    """Return the ranks of a culprit such as "scatter, rank 0, 2"."""
    return culprit.partition("rank ")[2].split(", ")


@pytest.mark.torch
@pytest.mark.parametrize(("world", "name"), [(world, name) for world, names in HONEST.items() for name in names])
def test_honest_ranks_pass(measured: Measured, cpu: View, world: int, name: str) -> None:
    outcome = judged(cpu, name, measured(world, name))
    assert outcome.status == PASS, outcome


@pytest.mark.torch
@pytest.mark.parametrize(("world", "name"), [(world, name) for world, names in NAMED.items() for name in names])
def test_each_lie_fails_for_good_and_names_its_ranks(measured: Measured, cpu: View, world: int, name: str) -> None:
    outcome = judged(cpu, name, measured(world, name))
    assert (outcome.status, outcome.remeasure) == (FAIL, False), outcome
    culprits = {finding.culprit for finding in outcome.findings if finding.status == FAIL}
    assert {*NAMED[world][name]} <= culprits
    # A group of the seed's choice may hold some of the lying ranks alone.
    assert {rank for culprit in culprits for rank in ranks_of(culprit)} <= {
        rank for culprit in NAMED[world][name] for rank in ranks_of(culprit)
    }
    assert outcome.remedy


@pytest.mark.torch
@pytest.mark.parametrize("name", LATE)
def test_a_rank_that_sleeps_is_named_and_measured_again(measured: Measured, cpu: View, name: str) -> None:
    outcome = judged(cpu, name, measured(2, name))
    assert (outcome.status, outcome.remeasure) == (FAIL, True), outcome
    assert {finding.culprit[:11] for finding in outcome.findings if finding.status == FAIL} == {LATE[name]}


@pytest.mark.torch
@pytest.mark.parametrize("name", RAISING)
def test_an_exception_is_no_lack_of_gloo_s(measured: Measured, name: str) -> None:
    assert all("NCCL error" in entry["raised"] for entry in measured(2, name))
