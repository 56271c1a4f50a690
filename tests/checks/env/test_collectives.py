"""What the ranks of `collectives` report, judged; integers that every dtype holds, and what is made of them."""

import itertools
import math
import struct
from typing import Any

from envcheck.checks import ERROR, FAIL, PASS, SKIP, View
from envcheck.checks.collectives import collective_cases
from envcheck.checks.env import collectives
from envcheck.checks.support import process_group
from tests.builders import Entry, group
from tests.tables import each

NAMES = [*collective_cases.CALLS, collectives.STARTED]
WRONG = {"which": "from rank 4", "index": 77, "got": "5", "expected": "7", "count": 2}


def entries(world: int = 8, *, gpu: bool = True) -> list[Entry]:
    def measured(rank: int) -> Entry:
        def wait(what: str) -> Entry:
            if what == collectives.BARRIER:
                return {"what": what, "late": 0, "out": 5.1, **({} if rank else {"came": 5.0})}
            reduction = {"what": what, "late": 0, "out": 6.1, "complete": True}
            return {**reduction, **({"early": False, "asked": 5.95} if rank else {"came": 6.0})}

        return {
            "done": {name: {"cases": 6, "elements": 900, "wrong": 0} for name in NAMES},
            "wrong": [],
            "unsupported": {},
            "waits": [wait(what) for what in collectives.WAITS],
        }

    return group(measured, world, gpu=gpu, seed=7)


def test_the_truth_passes_and_one_rank_is_a_skip(h100: View, cpu: View) -> None:
    outcome = collectives.judge(h100, entries())
    assert (outcome.status, outcome.details["seed"]) == (PASS, 7)
    assert collectives.judge(cpu, entries(2, gpu=False)).status == PASS
    assert collectives.judge(cpu, entries(1, gpu=False)).status == SKIP


@each("name", NAMES)
def test_a_wrong_element_of_a_collective_is_named(h100: View, name: str) -> None:
    ranks = entries()
    ranks[6]["wrong"] = [{"collective": name, "case": f"{name} sum int32", **WRONG}]
    ranks[6]["done"][name]["wrong"] = 2
    outcome = collectives.judge(h100, ranks)
    assert (outcome.status, outcome.value, outcome.details["ranks"], outcome.remeasure) == (FAIL, 2, [6], False)
    for part in (f"{name} is wrong on rank 6 alone", "from rank 4, index 77: 5, not 7"):
        assert part in outcome.summary


@each(
    "also, culprit",
    [
        ("in the group of ranks [2, 5]", "all-reduce, rank 2"),
        ("all-gather in the group of ranks [0, 1, 3]", "all-reduce, rank 0, 1, 3"),
        ("from root 1", "all-reduce, rank 0, 1, 3"),
    ],
)
def test_what_one_rank_sends_wrong_is_its_own_fault(h100: View, also: str, culprit: str) -> None:
    ranks = entries(4)
    for number in (0, 1, 3):
        rows = [("all-reduce", ""), ("all-gather", "from rank 2"), ("sub-groups", also)]
        ranks[number]["wrong"] = [{"collective": name, "case": name, **WRONG, "which": which} for name, which in rows]
    outcome = collectives.judge(h100, ranks)
    assert outcome.findings[0].culprit == culprit
    assert ("came from rank 2" in outcome.summary) == (culprit == "all-reduce, rank 2")
    assert "NCCL_P2P_DISABLE" in outcome.findings[0].remedy, "all on one host"
    for number, entry in enumerate(ranks):
        entry["host"] = f"n{number}"
    assert "fleet pairs" in collectives.judge(h100, ranks).remedy


def test_every_finding_is_held(h100: View) -> None:
    ranks = entries()
    ranks[6]["wrong"] = [{"collective": name, "case": name, **WRONG} for name in ("reduce", "gather")]
    ranks[3]["waits"][0]["out"] = 4.9
    ranks[2]["waits"][1]["complete"] = False
    outcome = collectives.judge(h100, ranks)
    assert [finding.culprit for finding in outcome.findings] == ["reduce, rank 6", "gather, rank 6", "rank 2", "rank 3"]
    assert [finding.code for finding in outcome.findings][2:] == ["collective.incomplete", "collective.no-wait"]


@each(
    "change, status",
    [
        ({"out": 5.999}, FAIL),
        ({"out": None}, FAIL),
        ({"out": math.nan}, FAIL),
        ({"early": True}, FAIL),
        ({"early": None}, FAIL),
        ({"early": True, "asked": 6.05}, PASS),
        ({"complete": None}, FAIL),
        ({}, PASS),
    ],
)
def test_a_wait_that_was_none(h100: View, change: Entry, status: str) -> None:
    ranks = entries()
    ranks[5]["waits"][1].update(change)
    assert collectives.judge(h100, ranks).status == status


@each(
    "change",
    [{"what": 7}, {"what": None}, {"late": math.nan}, {"late": True}, {"late": 3}, {"came": -1.0}, {"came": "nan"}],
)
def test_a_wait_that_says_nothing_is_no_pass(h100: View, change: Entry) -> None:
    for rank in (0, 5):
        ranks = entries()
        ranks[rank]["waits"][1].update(change)
        assert collectives.judge(h100, ranks).status == ERROR
    ranks = entries()
    del ranks[5]["waits"][1]
    assert collectives.judge(h100, ranks).status == ERROR


NO_CASES = {"cases": 0, "elements": 0, "wrong": 0}


@each("done", [{"cases": 6, "elements": -1, "wrong": 0}, {}, None, NO_CASES, {"cases": 6, "elements": 9}])
def test_a_collective_that_compared_nothing_is_no_pass(h100: View, done: Any) -> None:
    ranks = entries()
    ranks[2]["done"]["all-to-all"] = done
    outcome = collectives.judge(h100, ranks)
    assert outcome.status == ERROR
    assert "rank 2 did not run all-to-all" in outcome.summary


def test_what_a_gloo_may_lack_passes_and_nothing_else_does(h100: View, cpu: View) -> None:
    for view, gpu, name, status in (
        (cpu, False, "reduce-scatter", PASS),
        (cpu, False, "all-gather", ERROR),
        (h100, True, "reduce-scatter", ERROR),
    ):
        ranks = entries(2, gpu=gpu)
        for entry in ranks:
            del entry["done"][name]
            entry["unsupported"] = {name: "RuntimeError: Backend gloo does not support it"}
        assert collectives.judge(view, ranks).status == status
    ranks = entries(2, gpu=False)
    ranks[1]["unsupported"] = {"reduce-scatter": "RuntimeError: Backend gloo does not support it"}
    assert collectives.judge(cpu, ranks).status == ERROR
    ranks[1] |= {"unsupported": {}, "seed": 8}
    assert collectives.judge(cpu, ranks).status == ERROR


def test_the_rank_that_raised_first_is_named_and_not_those_that_lost_it(h100: View) -> None:
    ranks = entries()
    lost = "RuntimeError: [Rank 1] Connection closed by peer"
    for entry in ranks:
        entry["raised"] = {"case": "reduce max", "says": lost, "at": 9.0 + entry["rank"]}
    ranks[4]["raised"] |= {"says": "RuntimeError: CUDA error: an illegal memory access was encountered", "at": 99.0}
    outcome = collectives.judge(h100, ranks)
    assert (outcome.status, outcome.culprit, len(outcome.findings)) == (FAIL, "rank 4", 1)
    assert "illegal memory access" in outcome.summary


@each(
    "backend, message, lacks",
    [
        ("gloo", "Backend gloo does not support reduce_scatter_tensor_coalesced", True),
        ("gloo", "ProcessGroupGloo does not support reduce_scatter", True),
        ("gloo", "no support for _allgather_base in Gloo process group", True),
        ("gloo", "Cannot use ReduceOp.AVG with Gloo", True),
        ("gloo", "Invalid scalar type", True),
        ("gloo", "CUDA error: operation not supported", False),
        ("gloo", "NCCL error: unhandled cuda error, support is lost", False),
        ("nccl", "Backend nccl does not support it", False),
        ("nccl", "Invalid scalar type", False),
    ],
)
def test_only_gloo_s_own_words_are_a_lack(backend: str, message: str, lacks: bool) -> None:  # noqa: FBT001 (a table)
    assert process_group.gloo_lacks(backend, RuntimeError(message)) is lacks


def holds(dtype: str, value: int) -> bool:
    codes = {"float64": "d", "float32": "f", "float16": "e", "int32": "i", "int64": "q", "uint8": "B", "int8": "b"}
    if dtype == "bfloat16":
        return bool(struct.unpack("<f", b"\0\0" + struct.pack("<f", value)[2:])[0] == value)
    return bool(struct.unpack(codes[dtype], struct.pack(codes[dtype], value))[0] == value)


KINDS = itertools.product(["", *collective_cases.OPERATIONS], collective_cases.EXACT, [2, 3, 8, 17])


@each("operation, dtype, world", KINDS)
def test_integers_and_their_results_are_exact_in_the_dtype(operation: str, dtype: str, world: int) -> None:
    kind = collective_cases.Kind(operation, dtype, world)
    if not collective_cases.bound(kind):
        return  # of some dtypes no integers can show it
    given = [collective_cases.integers("seed", kind, rank, 40) for rank in range(world)]
    assert all(holds(dtype, value) for values in given for value in values)
    if operation:
        result = collective_cases.reduced(kind, given)
        assert all(holds(dtype, value) for value in result)
        assert len({*result}) > 1
    if operation == "average":
        assert [value * world for value in result] == [sum(column) for column in zip(*given, strict=True)]
    assert given != [collective_cases.integers("other", kind, rank, 40) for rank in range(world)]


def test_gloo_is_asked_for_what_it_has_and_only_an_uneven_average_has_slack() -> None:
    kind = collective_cases.Kind
    tried = [(op, dtype) for op in ("sum", "average") for dtype in ("float32", "int32")]
    for collective, fitting in (("reduce-scatter", tried[:2]), ("reduce", tried[:3])):
        assert [pair for pair in tried if collective_cases.fits("gloo", collective, kind(*pair, 2))] == fitting
        assert all(collective_cases.fits("nccl", collective, kind(*pair, 2)) for pair in tried)
    exact = (kind("average", "float32", 8), kind("average", "int32", 3), kind("sum", "bfloat16", 3))
    assert [collective_cases.slack(one) for one in exact] == [0, 0, 0]
    assert 0 < collective_cases.slack(kind("average", "bfloat16", 3)) < 3


def test_a_difference_is_placed_and_counted() -> None:
    assert collectives.difference(("", [1.0, 2.0], [1, 2])) == {}
    assert collectives.difference(("x", [1.0, math.nan, 2.5], [1, 1, 2]))["count"] == 2
    assert collectives.difference(("", [1.0, 2.4], [1, 2]), 0.5) == {}
    missing = {"which": "", "index": 1, "got": "nothing", "expected": "2", "count": 1}
    assert collectives.difference(("", [1], [1, 2])) == missing
