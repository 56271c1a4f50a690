"""What groups of ranks report, judged: the truth passes, and each lie is caught by name."""

import dataclasses
import mmap
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from envcheck.checks import ERROR, FAIL, PASS, WARN, Rank, View
from envcheck.checks.collectives import timed_collectives
from envcheck.checks.env import all_reduce, all_reduce_bandwidth, amp, ddp, shm
from envcheck.reports.phrases import quantity
from tests.builders import Entry, gpu_view, group, put
from tests.checks.env import test_amp, test_ddp
from tests.tables import each

NAN = float("nan")
RANK = Rank(0, 1, 0, "cpu", "gloo", "")


def curve(busbw: float, world: int) -> list[Entry]:
    sizes = timed_collectives.SIZES["cuda"]
    return [{"bytes": size, "seconds": size * 2 * (world - 1) / world / busbw / 1e9, "right": True} for size in sizes]


MEASURED: dict[Any, Callable[[int], Entry]] = {
    amp: lambda _: {"seed": 5, "cases": test_amp.cases()},
    ddp: lambda _: test_ddp.honest(),
    all_reduce: lambda _: {"results": {dtype: {"wrong": 0} for dtype in all_reduce.EXACT_UP_TO}},
    all_reduce_bandwidth: lambda world: {"curve": curve(470.0, world)},
}


def entries(check: Any, world: int = 8, *, gpu: bool = True) -> list[Entry]:
    return group(MEASURED[check](world), world, gpu=gpu, capability=[9, 0] if gpu else [])


def test_a_dtype_that_was_not_reduced_is_no_pass_on_gpus_and_none_of_gloos_business(h100: View, cpu: View) -> None:
    ranks = entries(all_reduce)
    ranks[0]["results"]["float16"] = {"unsupported": "Invalid scalar type"}
    assert all_reduce.judge(h100, ranks).status == ERROR
    ranks = entries(all_reduce, 2, gpu=False)
    for entry in ranks:
        entry["results"]["float16"] = {"unsupported": "Invalid scalar type"}
    assert all_reduce.judge(cpu, ranks).status == PASS


@each("world, dtypes", [(36, 3), (37, 2), (292, 2), (293, 1)])
def test_a_dtype_is_owed_as_long_as_it_holds_the_sum(world: int, dtypes: int) -> None:
    assert len(all_reduce.required(world, "nccl")) == dtypes


@each("distance", [1 << bit for bit in range(29)])
def test_the_pattern_is_unlike_itself_at_any_distance(distance: int) -> None:
    same = sum(all_reduce.pattern(i) == all_reduce.pattern(i + distance) for i in range(4096))
    assert same < 0.9 * 4096


@each(
    "busbw, status",
    [(425.1, PASS), (424.9, WARN), (375.1, WARN), (374.9, FAIL), (699.9, PASS), (700.1, ERROR), (NAN, ERROR)],
)
def test_bandwidth_of_eight_h100s_on_each_side_of_each_limit(h100: View, busbw: float, status: str) -> None:
    ranks = entries(all_reduce_bandwidth)
    for entry in ranks:
        entry["curve"] = curve(busbw, 8)
    outcome = all_reduce_bandwidth.judge(h100, ranks)
    assert outcome.status == status
    if status in (WARN, FAIL):
        assert outcome.limit is not None
        assert "AI-benchmarking-guide" in outcome.limit.source


@each(
    # Rings and fewer GPUs have limits of their own.
    "busbw, world, nvls, status",
    [(365.0, 8, None, FAIL), (365.0, 8, "0", PASS), (363.0, 4, None, PASS)],
)
def test_the_limit_is_that_of_the_transport_and_the_count(
    h100: View, busbw: float, world: int, nvls: str | None, status: str
) -> None:
    ranks = entries(all_reduce_bandwidth, world)
    for entry in ranks:
        entry["curve"] = curve(busbw, world)
    view = h100 if nvls is None else put(h100, env={"NCCL_NVLS_ENABLE": nvls})
    assert all_reduce_bandwidth.judge(view, ranks).status == status


@each("name", ["mixed", "rtx4090", "cpu"])
def test_where_no_limit_is_known_the_figure_is_reported_and_says_so(name: str) -> None:
    view = dataclasses.replace(gpu_view(name), mode="cpu" if name == "cpu" else "gpu")
    ranks = entries(all_reduce_bandwidth, 2, gpu=name != "cpu")
    for entry in ranks:
        entry["curve"] = curve(20.0, 2)
    outcome = all_reduce_bandwidth.judge(view, ranks)
    assert outcome.status == PASS
    assert "reported, not judged" in outcome.summary
    assert outcome.limit is None


def test_a_curve_without_its_plateau_or_of_different_sizes_is_not_judged(h100: View) -> None:
    ranks = entries(all_reduce_bandwidth)
    for entry in ranks:
        entry["curve"] = entry["curve"][:-2]
    assert all_reduce_bandwidth.judge(h100, ranks).status == ERROR
    ranks[0]["curve"] = ranks[0]["curve"][:-1]
    assert all_reduce_bandwidth.judge(h100, ranks).status == ERROR


@each(
    "left, unsure, status, code",
    [
        ((7680 << 20) + 1, 0, FAIL, "shm.full"),
        (7680 << 20, 0, WARN, "shm.held"),
        (0, 7680 << 20, WARN, "shm.held"),
        (1, 7680 << 20, ERROR, "shm.unsure"),
        (NAN, 0, ERROR, "shm.unsure"),
    ],
)
def test_shared_memory_that_running_jobs_fill_is_no_fault_and_what_ended_ones_left_is(
    cpu: View, left: Any, unsure: Any, status: str, code: str
) -> None:
    told = {"rank": 0, "total": 8 << 30, "free": 0, "left": left, "unsure": unsure}
    outcome = shm.judge(cpu, [told])
    assert (outcome.status, outcome.code) == (status, code)


def test_a_file_is_left_when_no_live_process_has_it_open_or_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=2, f_frsize=1 << 20, f_bavail=0))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    def told() -> tuple[int, int]:
        measured = shm.measure(RANK)
        return measured["left"], measured["unsure"]

    with tempfile.TemporaryDirectory(dir=shm.PATH) as folder:
        monkeypatch.setattr(shm, "PATH", folder)
        with Path(folder, "job").open("w+b", buffering=0) as file:
            file.write(bytes(1 << 20))
            assert told() == (0, 0)
            mapped = mmap.mmap(file.fileno(), 0)
        assert told() == (0, 0)
        mapped.close()
        assert sum(told()) == 1 << 20
        # A container may have the /dev/shm of its host (`-v /dev/shm:/dev/shm`), and sees none who use it there.
        monkeypatch.setattr(shm, "_HOST_PIDS", "another")
        own = "\nshm /dev/shm " in Path("/proc/self/mounts").read_text(encoding="utf-8")
        assert told() == ((1 << 20, 0) if own else (0, 1 << 20))
        monkeypatch.setattr(shm, "_used", Mock(side_effect=PermissionError))
        assert told() == (0, 1 << 20)


@each(
    "total, free, mode, status",
    [
        ((1 << 30) - 1, (1 << 30) - 1, "cpu", FAIL),
        (1 << 30, 1 << 30, "cpu", PASS),
        (1 << 30, 512 << 20, "cpu", PASS),
        (1 << 30, (512 << 20) - 1, "cpu", FAIL),
        ((8 << 30) - 1, 1 << 30, "gpu", WARN),
        (8 << 30, 1 << 30, "gpu", PASS),
        (NAN, 1 << 30, "gpu", ERROR),
        (1 << 30, None, "gpu", ERROR),
    ],
)
def test_shared_memory_on_each_side_of_each_limit(cpu: View, total: Any, free: Any, mode: str, status: str) -> None:
    outcome = shm.judge(
        dataclasses.replace(cpu, mode=mode), [{"rank": 0, "total": total, "free": free, "left": 8 << 30, "unsure": 0}]
    )
    assert outcome.status == status
    # Value and limit are shown beside the summary; it does not say them again.
    assert quantity(outcome.value, outcome.unit) not in outcome.summary
