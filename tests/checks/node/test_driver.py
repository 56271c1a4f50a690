"""The driver against torch's CUDA, against its own libraries, and against the calendar."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, View
from envcheck.checks.node import driver_branch, driver_cuda, driver_nvml, nvml_latency
from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.file.load import load
from envcheck.node.snapshot import Signal
from tests.builders import put
from tests.tables import each

Node = Callable[..., View]


def with_driver(view: View, version: str) -> View:
    return put(view, driver__version=version)


@each(
    "driver, status, verdict",
    [
        ("570.26", PASS, "ok"),
        ("570.25", PASS, "driver-ok-via-minor-compat"),
        ("525.60.13", PASS, "driver-ok-via-minor-compat"),
        ("525.60.12", FAIL, "driver-too-old"),
        ("470.256.02", FAIL, "forward-compat-required"),
    ],
)
def test_each_side_of_each_floor(node: Node, driver: str, status: str, verdict: str) -> None:
    outcome = driver_cuda.judge(with_driver(node("h100x8", device_count=0), driver))
    assert (outcome.status, outcome.details["verdict"]) == (status, verdict)
    assert outcome.limit is not None
    assert outcome.limit.value == "525.60.13"


def test_minor_compat_says_that_it_is_that(node: Node) -> None:
    assert "minor-version compatibility" in driver_cuda.judge(node("a100x8")).summary


def test_forward_compat_passes_only_when_torch_really_sees_the_gpus(node: Node) -> None:
    old = with_driver(node("a100x8"), "470.256.02")
    assert driver_cuda.judge(old).status == PASS
    blind = dataclasses.replace(old, environment={**old.environment, "device_count": 0})
    outcome = driver_cuda.judge(blind)
    assert outcome.status == FAIL
    assert "cuda-compat-12-8" in outcome.remedy
    unasked = dataclasses.replace(old, environment={}, promises={"cuda": "12.8"})
    assert driver_cuda.judge(unasked).status == WARN


def test_on_unlike_gpus_each_that_the_driver_does_not_serve_is_a_finding(node: Node, put_gpu: Node) -> None:
    view = with_driver(node("h100x8"), "470.256.02")
    mixed = put_gpu(view, [2, 6], name="NVIDIA GeForce RTX 4090")
    uuids = [gpu.uuid for gpu in view.snapshot.gpus]
    blind = dataclasses.replace(mixed, environment={**mixed.environment, "devices": [{"uuid": uuids[0]}]})
    outcome = driver_cuda.judge(blind)
    verdicts = {finding.culprit: (finding.status, "cuda-compat-12-8" in finding.remedy) for finding in outcome.findings}
    # torch sees GPU 0 with cuda-compat; the other H100s need it, and it is not for a GeForce.
    assert verdicts == {
        f"GPU {index} ({uuid})": (PASS, False) if index == 0 else (FAIL, index not in (2, 6))
        for index, uuid in enumerate(uuids)
    }
    assert outcome.details["gpus"] == uuids[1:]
    assert all(finding.limit and finding.value == "470.256.02" for finding in outcome.findings)


def test_a_driver_that_is_too_old_for_all_is_one_finding_beside_a_libcuda_that_does_not_fit(node: Node) -> None:
    old = with_driver(node("h100x8", device_count=0, devices=[], cuinit=803, libcuda="/compat/libcuda.so"), "450.10")
    findings = driver_cuda.judge(old).findings
    assert [(finding.status, finding.culprit) for finding in findings] == [
        (FAIL, "/compat/libcuda.so"),
        (FAIL, "driver 450.10"),
    ]


def test_gpus_that_should_not_work_but_do_are_a_warning(node: Node) -> None:
    assert driver_cuda.judge(with_driver(node("rtx4090"), "470.256.02")).status == WARN


def test_a_cpu_wheel_and_no_torch_have_no_cuda_to_compare(node: Node) -> None:
    assert driver_cuda.judge(node("t4", cuda=None)).status == SKIP
    view = node("t4")
    assert driver_cuda.judge(dataclasses.replace(view, environment={})).status == SKIP


@each("cuda, driver", [("99.9", "570.26"), ("12.8", "not a version")])
def test_what_the_matrix_does_not_know_is_an_error(node: Node, cuda: str, driver: str) -> None:
    assert driver_cuda.judge(with_driver(node("t4", cuda=cuda), driver)).status == ERROR


def test_equal_versions_pass_and_a_swapped_library_fails_naming_both(node: Node) -> None:
    view = node("h100x8")
    assert driver_nvml.judge(view).status == PASS
    outcome = driver_nvml.judge(put(view, driver__library=Signal("570.133.20")))
    assert outcome.status == FAIL
    assert "570.124.06" in outcome.summary
    assert "570.133.20" in outcome.summary
    assert "reboot" in outcome.remedy


def test_an_nvml_that_does_not_open_is_no_pass(node: Node) -> None:
    shut = put(node("t4"), nvml__latency=Signal(reason="NVML: Unknown Error", why="failed"))
    assert driver_nvml.judge(shut).status == FAIL
    hangs = driver_nvml.judge(
        put(node("t4"), nvml__latency=Signal(reason="NVML gave no answer in 20 s", why="timed-out"))
    )
    assert (hangs.status, hangs.limit) == (FAIL, None)
    assert "reboot the node" in hangs.remedy


def test_no_driver_is_a_skip_and_half_a_driver_an_error(node: Node, cpu: View) -> None:
    assert driver_nvml.judge(cpu).status == SKIP
    hidden = put(node("t4"), driver__kernel=Signal(reason="no /proc", why="failed"))
    # A sandbox shows no /proc/driver: NVML opens on its own version only, and libcuda is of that one.
    assert driver_nvml.judge(hidden).status == PASS
    hidden = put(hidden, driver__libcuda=Signal(reason="not on the loader's path", why="failed"))
    assert driver_nvml.judge(hidden).status == ERROR


@each("taken, status", [("2026-06-30", PASS), ("2026-07-01", WARN)])
def test_a_branch_is_maintained_through_its_last_month(node: Node, taken: str, status: str) -> None:
    view = node("a100x8")  # R535: 2026-06
    dated = dataclasses.replace(view, snapshot=dataclasses.replace(view.snapshot, taken=f"{taken}T00:00:00+00:00"))
    assert driver_branch.judge(dated).status == status


def test_an_unknown_branch_is_a_warning_and_an_unknown_end_is_told(node: Node) -> None:
    assert driver_branch.judge(with_driver(node("t4"), "999.1")).status == WARN
    assert "no end of life is known" in driver_branch.judge(node("v100x4")).summary


@each("seconds, status", [(5.0, PASS), (5.01, WARN)])
def test_a_slow_nvml_is_a_warning(node: Node, seconds: float, status: str) -> None:
    assert nvml_latency.judge(put(node("t4"), nvml__latency=Signal(seconds))).status == status


def test_the_runs_own_matrix_is_what_is_compared_with(node: Node) -> None:
    view = with_driver(node("h100x8", device_count=0), "550.54.14")
    strict = msgspec.to_builtins(load())
    for family in strict["cuda"]["families"]:
        family["floor"] = "999.99"
    assert driver_cuda.judge(view).status == PASS
    assert driver_cuda.judge(dataclasses.replace(view, matrix=msgspec.convert(strict, Matrix))).status == FAIL
