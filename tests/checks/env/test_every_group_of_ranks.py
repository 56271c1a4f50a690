"""What every check of ranks owes, at any level: nobody missing, each on a GPU of its own, and NCCL between them."""

import importlib
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, SKIP, View
from envcheck.checks.env import all_reduce, all_reduce_bandwidth, ddp, fsdp, straggler
from envcheck.runner.planning import discover
from tests.builders import Entry, group
from tests.checks.env import test_quick_level_ranks as quick
from tests.checks.env import test_standard_level_ranks as standard
from tests.tables import each

ALONE = ("checkpoint", "compiled", "dataloader", "peer-bandwidth", "peer-to-peer", "trainer")
FOUND = [f for f in discover() if f.kind == "env" and (f.check.ranks == 0 or f.id in ALONE)]
EVERY = [importlib.import_module(f"envcheck.checks.env.{f.id.replace('-', '_')}") for f in FOUND]


def entries(check: Any, world: int = 8, *, gpu: bool = True) -> list[Entry]:
    of_its_level = quick.entries if check in quick.MEASURED else standard.entries
    return of_its_level(check, world, gpu=gpu)


@each("check", [*quick.MEASURED, *standard.MEASURED])
def test_the_truth_passes_on_gpus_and_on_a_cpu(check: Any, h100: View, cpu: View) -> None:
    assert check.judge(h100, entries(check)).status == PASS
    assert check.judge(cpu, entries(check, 2, gpu=False)).status == PASS
    assert check.judge(h100, group({})).status == ERROR


@each("check", EVERY)
def test_what_proves_nothing_is_judged_by_no_check(check: Any, h100: View) -> None:
    assert check.judge(h100, []).status == ERROR
    assert check.judge(h100, [{} for _ in range(8)]).status == ERROR
    died = check.judge(h100, group({})[:5])
    assert (died.status, "[0, 1, 2, 3, 4]" in died.summary) == (ERROR, True)
    ranks = group({})
    ranks[3] |= {"is_cuda": False, "device": "cpu"}
    dressed = check.judge(h100, ranks)
    assert (dressed.status, "rank 3 computed on cpu" in dressed.summary) == (FAIL, True)
    ranks = group({})
    ranks[5]["device"] = "GPU-2"
    shared = check.judge(h100, ranks)
    assert (shared.status, "ranks 2 and 5 share GPU GPU-2" in shared.summary) == (FAIL, True)


@pytest.mark.parametrize("check", [ddp, all_reduce, all_reduce_bandwidth, fsdp, straggler])
def test_gloo_on_gpus_fails_and_one_rank_alone_is_a_skip(check: Any, h100: View, cpu: View) -> None:
    ranks = entries(check)
    ranks[0]["backend"] = "gloo"
    assert check.judge(h100, ranks).status == FAIL
    assert check.judge(h100, entries(check, 1)).status == SKIP
    assert check.judge(cpu, entries(check, 1, gpu=False)).status == SKIP
