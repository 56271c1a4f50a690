"""Clocks that somebody set, huge pages that nobody uses, a toolkit of yesterday, and what cuInit says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, View
from envcheck.checks.node import clocks, container_toolkit, driver_cuda, gpu_visible, hugepages
from envcheck.node.snapshot import Signal
from tests.tables import each

Node = Callable[..., View]
GIB = 1 << 30
SET = ["applications clocks"]


@each(
    "signals, status, word",
    [
        ({}, PASS, "below 1980 MHz"),
        ({"clock_app": 1980, "clock_app_default": 1980}, PASS, "1980"),
        ({"clock_app": 1979, "clock_app_default": 1980}, WARN, "GPU 3 1979 of 1980 MHz"),
        ({"clock_app": 1095, "clock_app_default": 1095}, PASS, "1980"),
        (
            {"clock_app": 1500, "clock_app_default": Signal(reason="NVML: Not Supported", why="unsupported")},
            PASS,
            "1980",
        ),
        ({"clock_sm": 1781, "clock_reasons": SET}, WARN, "GPU 3 1781 of 1980 MHz"),
        ({"clock_sm": 1783, "clock_reasons": SET}, PASS, "1980"),
        ({"clock_sm": 210, "clock_reasons": ["idle", *SET]}, PASS, "1980"),
        ({"clock_sm": 1290, "clock_app_default": 1290, "clock_reasons": SET}, PASS, "1980"),
        ({"clock_sm": 990, "clock_reasons": ["software power cap"]}, PASS, "1980"),
        ({"clock_sm": 2178}, PASS, "1980"),
        ({"clock_sm": 2179}, ERROR, "above the highest"),
        ({"clock_sm_max": Signal(reason="NVML: Unknown Error", why="failed")}, ERROR, "Unknown Error"),
    ],
)
def test_clocks_on_each_side(node: Node, put_gpu: Node, signals: dict[str, Any], status: str, word: str) -> None:
    outcome = clocks.judge(put_gpu(node("h100x8"), [3], **signals))
    assert outcome.status == status, outcome
    assert word in outcome.summary


@each("free, status", [(0, PASS), (16 * GIB, PASS), (16 * GIB + 1, WARN), (65 * GIB, ERROR)])
def test_huge_pages_on_each_side(cpu: View, put: Node, free: int, status: str) -> None:
    view = put(cpu, host__memory_total=64 * GIB, host__hugepages_free=free)
    assert hugepages.judge(view).status == status


def test_huge_pages_nobody_told_are_a_skip(cpu: View) -> None:
    assert hugepages.judge(cpu).status == SKIP


def with_toolkit(view: View, put: Node, **signals: Any) -> View:
    sound = {"toolkit__tools": {"nvidia-ctk": "1.17.4"}, "toolkit__engines": ["docker"], "toolkit__cdi": []}
    docker = {"runtimes": ["nvidia"], "default": "runc", "cdi": None}
    return put(view, **{**sound, "toolkit__docker": docker, **signals})


def spec(path: str, *drivers: str) -> dict[str, Any]:
    return {"path": path, "kind": "nvidia.com/gpu", "drivers": [*drivers], "devices": 9}


@each(
    "signals, status, word",
    [
        ({}, PASS, "nvidia-ctk 1.17.4; no CDI"),
        ({"toolkit__cdi": [spec("/etc/cdi/n.yaml", "570.124.06")]}, PASS, "1 CDI"),
        ({"toolkit__cdi": [spec("/etc/cdi/n.yaml", "550.54.14")]}, WARN, "driver 550.54.14; loaded is 570.124.06"),
        ({"toolkit__cdi": [spec("/etc/cdi/n.yaml", "550.1"), spec("/var/run/cdi/n.yaml", "570.124.06")]}, PASS, "2"),
        ({"toolkit__cdi": [spec("/etc/cdi/n.yaml", "570.124.06"), spec("/var/run/cdi/n.yaml", "1.2")]}, WARN, "1.2"),
        ({"toolkit__docker": Signal(reason="daemon.json is not JSON", why="failed")}, WARN, "not JSON"),
        (
            {"toolkit__docker": Signal(reason="daemon.json is not JSON", why="failed"), "toolkit__engines": []},
            PASS,
            "1.17.4",
        ),
        ({"toolkit__tools": {}}, SKIP, "docker here cannot give a container its GPUs"),
        ({"toolkit__tools": {}, "toolkit__engines": []}, SKIP, "no NVIDIA container toolkit"),
        ({"container__runtime": "docker"}, SKIP, "the toolkit is the host's"),
        ({"toolkit__cdi": Signal(reason="/etc/cdi: Permission denied", why="denied")}, ERROR, "Permission denied"),
        ({"toolkit__tools": Signal(reason="Permission denied", why="denied")}, ERROR, "Permission denied"),
        ({"toolkit__tools": Signal(reason="not collected", why="not-collected")}, SKIP, "older than the question"),
    ],
)
def test_the_toolkit(node: Node, put: Node, signals: dict[str, Any], status: str, word: str) -> None:
    outcome = container_toolkit.judge(with_toolkit(node("h100x8"), put, **signals))
    assert outcome.status == status, outcome
    assert word in outcome.summary


def test_the_last_specification_counts_and_its_file_is_the_remedy(node: Node, put: Node) -> None:
    view = with_toolkit(node("h100x8"), put, toolkit__cdi=[spec("/etc/cdi/n.yaml", "550.54.14")])
    assert "--output=/etc/cdi/n.yaml" in container_toolkit.judge(view).remedy


E804 = "Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted on non supported HW"


@each("facts", [{"device_error": E804}, {"cuinit": 804}, {"cuinit": 804, "device_error": "odd"}])
def test_error_804_is_named_with_its_remedy_by_both_checks(node: Node, facts: dict[str, Any]) -> None:
    view = node("rtx4090", device_count=0, devices=[], **facts)
    for check in (driver_cuda, gpu_visible):
        outcome = check.judge(view)
        assert outcome.status == FAIL
        assert "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE" in outcome.summary
        assert "LD_LIBRARY_PATH" in outcome.remedy


@each("code, word", [(100, "--gpus all"), (802, "fabricmanager"), (803, "kernel module"), (999, "nvidia_uvm")])
def test_other_codes_have_remedies_of_their_own(node: Node, code: int, word: str) -> None:
    outcome = gpu_visible.judge(node("h100x8", device_count=0, devices=[], cuinit=code, device_error="odd"))
    assert outcome.status == FAIL
    assert word in f"{outcome.summary} {outcome.remedy}"


def test_a_compat_library_that_works_is_told_by_its_path(node: Node, put: Node) -> None:
    old = put(
        node("a100x8", cuinit=0, libcuda="/usr/local/cuda/compat/libcuda.so.570.26"), driver__version="470.256.02"
    )
    outcome = driver_cuda.judge(old)
    assert outcome.status == PASS
    assert "/usr/local/cuda/compat/libcuda.so.570.26" in outcome.summary


def test_an_environment_that_was_not_read_is_an_error(node: Node, put: Node) -> None:
    unread = put(node("h100x8"), env=Signal(reason="read as -1, which it cannot be", why="failed"))
    assert gpu_visible.judge(unread).status == ERROR
