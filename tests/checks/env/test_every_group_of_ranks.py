"""What every group of ranks owes, at any level: nobody missing, each on a GPU of its own, and NCCL between them."""

from __future__ import annotations

from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, SKIP, View
from envcheck.checks.env import all_reduce, all_reduce_bandwidth, ddp, fsdp, straggler
from tests.builders import Entry, group
from tests.checks.env import test_quick_level_ranks as quick
from tests.checks.env import test_standard_level_ranks as standard

COMMUNICATING = [ddp, all_reduce, all_reduce_bandwidth, fsdp, straggler]


def name_of(check: Any) -> str:
    return str(check.__name__.rpartition(".")[2])


CHECKS = pytest.mark.parametrize("check", [*quick.MEASURED, *standard.MEASURED], ids=name_of)
TOGETHER = pytest.mark.parametrize("check", COMMUNICATING, ids=name_of)


def entries(check: Any, world: int = 8, *, gpu: bool = True) -> list[Entry]:
    of_its_level = quick.entries if check in quick.MEASURED else standard.entries
    return of_its_level(check, world, gpu=gpu)


@CHECKS
def test_the_truth_passes_on_gpus_and_on_a_cpu(check: Any, h100: View, cpu: View) -> None:
    assert check.judge(h100, entries(check)).status == PASS
    assert check.judge(cpu, entries(check, 2, gpu=False)).status == PASS


@CHECKS
def test_nothing_measured_is_an_error(check: Any, h100: View) -> None:
    assert check.judge(h100, []).status == ERROR
    assert check.judge(h100, [{} for _ in range(8)]).status == ERROR
    assert check.judge(h100, group({})).status == ERROR


@CHECKS
def test_a_rank_that_died_is_an_error_naming_who_is_left(check: Any, h100: View) -> None:
    outcome = check.judge(h100, entries(check)[:5])
    assert outcome.status == ERROR
    assert "[0, 1, 2, 3, 4]" in outcome.summary


@CHECKS
def test_a_cpu_dressed_as_a_gpu_fails(check: Any, h100: View) -> None:
    ranks = entries(check)
    ranks[3] |= {"is_cuda": False, "device": "cpu"}
    outcome = check.judge(h100, ranks)
    assert outcome.status == FAIL
    assert "rank 3 computed on cpu" in outcome.summary


@CHECKS
def test_two_ranks_on_one_gpu_fail(check: Any, h100: View) -> None:
    ranks = entries(check)
    ranks[5]["device"] = "GPU-2"
    outcome = check.judge(h100, ranks)
    assert outcome.status == FAIL
    assert "ranks 2 and 5 share GPU GPU-2" in outcome.summary


@TOGETHER
def test_gloo_on_gpus_fails_and_one_rank_alone_is_a_skip(check: Any, h100: View, cpu: View) -> None:
    ranks = entries(check)
    ranks[0]["backend"] = "gloo"
    assert check.judge(h100, ranks).status == FAIL
    assert check.judge(h100, entries(check, 1)).status == SKIP
    assert check.judge(cpu, entries(check, 1, gpu=False)).status == SKIP
