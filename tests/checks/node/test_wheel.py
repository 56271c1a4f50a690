"""What torch was built for and what it says it is, against the machine and the labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, View
from envcheck.checks.node import arch_list, gpu_visible, image_promises, visible_devices
from envcheck.node.snapshot import Gpu, Signal
from tests.builders import put
from tests.tables import each

Node = Callable[..., View]
KEPT = {
    "cell": "torch2.8.0-cu128-py312",
    "torch": "2.8.0+cu128",
    "cuda": "12.8",
    "cudnn": "9.10.2",
    "nccl": "2.27.3",
    "python": "3.12",
    "arch_list": "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120",
}


def visible(view: View, **environ: str) -> View:
    return put(view, env=environ)


def test_sass_of_the_same_major_covers_a_gpu(node: Node) -> None:
    assert arch_list.judge(node("h100x8")).status == PASS
    assert arch_list.judge(node("rtx4090", arch_list=["sm_86"])).status == PASS


def test_a_gpu_that_nothing_runs_on_is_named_with_wheels_that_do(node: Node) -> None:
    outcome = arch_list.judge(node("v100x4"))
    assert outcome.status == FAIL
    assert "Tesla V100-SXM2-32GB (7.0)" in outcome.summary
    assert "2.8.0 as cu126" in outcome.remedy


def test_the_second_gpu_of_a_mixed_node_counts_too(node: Node) -> None:
    outcome = arch_list.judge(node("mixed", arch_list=["sm_90"]))
    assert outcome.status == FAIL
    assert "RTX 4090" in outcome.summary


@each("driver, status", [("570.26", PASS), ("570.25", FAIL), (None, ERROR)])
def test_ptx_alone_needs_a_driver_that_can_compile_it(node: Node, driver: str | None, status: str) -> None:
    view = node("rtx4090", arch_list=["sm_75", "compute_80"])
    signal = Signal(driver) if driver else Signal(reason="NVML: Unknown Error", why="failed")
    signals = {**view.snapshot.signals, "driver.version": signal}
    view = dataclasses.replace(view, snapshot=dataclasses.replace(view.snapshot, signals=signals))
    assert arch_list.judge(view).status == status


def test_an_empty_arch_list_and_an_unread_capability_are_errors(node: Node) -> None:
    assert arch_list.judge(node("t4", arch_list=[])).status == ERROR
    lost = [Gpu("GPU-0", {"compute_capability": Signal(reason="NVML: Unknown Error", why="failed")})]
    view = node("t4")
    blind = dataclasses.replace(view, snapshot=dataclasses.replace(view.snapshot, gpus=lost))
    assert arch_list.judge(blind).status == ERROR


def test_no_torch_and_a_cpu_wheel_have_no_code_to_look_at(node: Node) -> None:
    assert arch_list.judge(node("t4", torch=None, error="No module named 'torch'")).status == SKIP
    assert arch_list.judge(node("t4", cuda=None)).status == SKIP


def test_every_kept_promise_passes(node: Node) -> None:
    assert image_promises.judge(node("h100x8", KEPT)).status == PASS


@each(
    "key, real",
    [
        ("torch", "2.7.1+cu128"),
        ("cuda", "12.6"),
        ("cudnn", None),
        ("nccl", "2.27.5"),
        ("python", "3.11.9"),
        ("arch_list", ["sm_90"]),
    ],
)
def test_each_lie_is_named(node: Node, key: str, real: Any) -> None:
    outcome = image_promises.judge(node("h100x8", KEPT, **{key: real}))
    assert outcome.status == FAIL
    assert outcome.summary.startswith(f"{key.replace('_', '-')}: promised")
    assert len(outcome.details["lies"]) == 1


@each(
    "promise, lie",
    [
        ({"cell": "torch2.9.1-cu128-py312"}, "cell: promised torch2.9.1-cu128-py312, is torch2.8.0-cu128-py312"),
        ({"cell": "torch2.8.0-cu126-py312"}, "cell: promised torch2.8.0-cu126-py312, is torch2.8.0-cu128-py312"),
        ({"cell": "torch2.8.0-cu128-py311"}, "cell: promised torch2.8.0-cu128-py311, is torch2.8.0-cu128-py312"),
        ({"variant": "cu126"}, "variant: promised cu126, is cu128"),
        ({"driver_floor": "470.42.01"}, "driver-floor: promised 470.42.01, is 525.60.13"),
        ({"target": "fast"}, "target: promised fast, is no target of envcheck"),
        (
            {"target": "jupyter", "target_packages": "wheel jupyterlab"},
            "target: promised jupyter, is without jupyterlab",
        ),
    ],
)
def test_a_label_that_lies_about_what_nothing_else_says_is_named(node: Node, promise: dict[str, str], lie: str) -> None:
    packages = {"torch": "2.8.0", "wheel": "0.47"}
    outcome = image_promises.judge(node("h100x8", {**KEPT, **promise}, packages=packages))
    assert (outcome.status, outcome.summary) == (FAIL, lie)


@each(
    "promises, real",
    [
        ({"variant": "cu128", "driver_floor": "525.60.13", "target": "devel", "target_packages": "wheel"}, {}),
        ({"variant": "unknown", "driver_floor": "unknown"}, {}),
        # CUDA of a family that no fact has.
        (
            {"cuda": "14.1", "driver_floor": "900.1", "torch": "2.8.0+cu141", "cell": "unknown"},
            {"cuda": "14.1", "torch": "2.8.0+cu141"},
        ),
    ],
)
def test_what_is_true_of_cell_variant_floor_and_target_passes(
    node: Node, promises: dict[str, str], real: dict[str, Any]
) -> None:
    packages = {"torch": "2.8.0", "wheel": "0.47"}
    assert image_promises.judge(node("h100x8", {**KEPT, **promises}, packages=packages, **real)).status == PASS


def test_a_wheel_of_the_cpu_that_names_no_variant_is_the_cells(node: Node) -> None:
    promised = {
        "cell": "torch2.5.1-cpu-py312",
        "variant": "cpu",
        "torch": "2.5.1",
        "cuda": "none",
        "driver_floor": "none",
    }
    real: dict[str, Any] = {"torch": "2.5.1", "cuda": None, "cudnn": None, "nccl": None, "arch_list": []}
    assert image_promises.judge(node("cpu", promised, **real)).status == PASS


def test_a_cpu_image_promises_none_and_keeps_it(node: Node) -> None:
    promised = {"torch": "2.13.0+cpu", "cuda": "none", "cudnn": "none", "nccl": "none", "arch_list": "none"}
    real: dict[str, Any] = {"torch": "2.13.0+cpu", "cuda": None, "cudnn": None, "nccl": None, "arch_list": []}
    assert image_promises.judge(node("cpu", promised, **real)).status == PASS
    assert image_promises.judge(node("cpu", promised, **{**real, "cuda": "12.8"})).status == FAIL


PACKAGES = {"torch": "2.8.0", "pytorch-triton": "3.4.0", "torchvision": "0.23.0+cu128", "filelock": "4.2.11"}


@each(
    "promise, packages, status, word",
    [
        ({"triton": "3.4.0", "torchvision": "0.23.0+cu128"}, PACKAGES, PASS, "3 of 3 promises kept"),
        ({"triton": "3.5.0"}, PACKAGES, FAIL, "triton: promised 3.5.0, is 3.4.0"),
        ({"torchaudio": "2.8.0"}, PACKAGES, FAIL, "torchaudio: promised 2.8.0, is none"),
        ({"torchvision": "none"}, PACKAGES, PASS, "1 of 1"),
        ({"triton": "3.5.0"}, None, PASS, "1 of 1"),
        ({"packages": "filelock==4.2.11 torch==2.8"}, PACKAGES, PASS, "and 2 packages as locked"),
        ({"packages": "filelock==4.2.12"}, PACKAGES, FAIL, "filelock: locked 4.2.12, is 4.2.11"),
        ({"packages": "mpmath==1.3.0"}, PACKAGES, FAIL, "mpmath: locked 1.3.0, is none"),
        ({"packages": "mpmath==1.3.0", "lock": "ab12"}, None, ERROR, "packages were not listed"),
        ({"packages": "", "lock": "ab12"}, PACKAGES, ERROR, "no lock here has its digest ab12"),
        ({"packages": "filelock==4.2.11", "lock": "ab12"}, PACKAGES, PASS, "and 1 package as locked"),
        ({"triton": "3.5.0", "lock": "ab12"}, PACKAGES, FAIL, "triton: promised 3.5.0, is 3.4.0"),
        ({"lock": "ab12"}, PACKAGES, ERROR, "no lock here has its digest ab12"),
        ({"lock": "none"}, PACKAGES, PASS, "1 of 1 promise kept"),
    ],
)
def test_companions_and_every_locked_package_are_compared(
    node: Node, promise: dict[str, str], packages: dict[str, str] | None, status: str, word: str
) -> None:
    outcome = image_promises.judge(node("h100x8", {"torch": "2.8.0+cu128", **promise}, packages=packages))
    assert outcome.status == status, outcome
    assert word in outcome.summary


def test_a_lock_that_is_off_in_many_packages_is_told_shortly(node: Node) -> None:
    promised = {"torch": "2.8.0+cu128", "packages": " ".join(f"p{n}==1" for n in range(9))}
    outcome = image_promises.judge(node("h100x8", promised, packages={}))
    assert outcome.summary.endswith("6 more")
    assert len(outcome.details["lies"]) == 9
    assert [finding.culprit for finding in outcome.findings] == [f"p{n}" for n in range(9)]
    assert {(f.value, f.limit.value if f.limit else None) for f in outcome.findings} == {("none", "1")}


def test_no_promise_is_no_pass_and_a_torch_that_does_not_import_breaks_one(cpu: View) -> None:
    assert image_promises.judge(cpu).status == SKIP
    broken = dataclasses.replace(cpu, promises=KEPT, environment={"error": "libcudart.so.12: cannot open"})
    assert image_promises.judge(broken).status == FAIL
    assert image_promises.judge(dataclasses.replace(broken, environment={})).status == ERROR


def test_all_gpus_seen_is_a_pass(node: Node) -> None:
    assert gpu_visible.judge(node("h100x8")).status == PASS


def test_a_cpu_wheel_on_a_gpu_machine_fails_by_name(node: Node) -> None:
    outcome = gpu_visible.judge(node("h100x8", torch="2.8.0+cpu", cuda=None, device_count=0, devices=[]))
    assert outcome.status == FAIL
    assert "CPU wheel" in outcome.summary
    assert "CUDA wheel" in outcome.remedy


@each("value", ["", "-1", "NoDevFiles"])
def test_gpus_hidden_from_torch_altogether_fail_naming_the_variable(node: Node, value: str) -> None:
    outcome = gpu_visible.judge(visible(node("h100x8", device_count=0, devices=[]), CUDA_VISIBLE_DEVICES=value))
    assert outcome.status == FAIL
    assert "CUDA_VISIBLE_DEVICES" in outcome.summary


def test_a_subset_chosen_on_purpose_passes_and_says_so(node: Node) -> None:
    outcome = gpu_visible.judge(visible(node("h100x8", device_count=2, devices=[]), CUDA_VISIBLE_DEVICES="0,3"))
    assert outcome.status == PASS
    assert "6 hidden" in outcome.summary


def test_fewer_because_of_an_index_that_does_not_exist_is_another_checks_business(node: Node) -> None:
    view = visible(node("h100x8", device_count=1, devices=[]), CUDA_VISIBLE_DEVICES="0,9,1")
    assert gpu_visible.judge(view).status == PASS
    assert visible_devices.judge(view).status == WARN
    assert "9, 1 are ignored" in visible_devices.judge(view).summary


def test_one_gpu_less_than_nvml_sees_fails_with_cudas_own_error(node: Node) -> None:
    outcome = gpu_visible.judge(node("h100x8", device_count=7, devices=[], device_error="CUDA unknown error"))
    assert outcome.status == FAIL
    assert "CUDA unknown error" in outcome.summary


def test_each_gpu_that_torch_does_not_see_is_named_where_torch_names_its_own(node: Node) -> None:
    uuids = [gpu.uuid for gpu in node("h100x8").snapshot.gpus]
    seen = [{"uuid": uuid} for index, uuid in enumerate(uuids) if index not in (2, 5)]
    outcome = gpu_visible.judge(node("h100x8", device_count=6, devices=seen))
    assert [(finding.status, finding.culprit) for finding in outcome.findings] == [
        (FAIL, f"GPU 2 ({uuids[2]})"),
        (FAIL, f"GPU 5 ({uuids[5]})"),
    ]
    assert outcome.details["gpus"] == [uuids[2], uuids[5]]
    assert all(finding.remedy and finding.limit and finding.value == 6 for finding in outcome.findings)
    hidden = visible(node("h100x8", device_count=1, devices=[{"uuid": uuids[2]}]), CUDA_VISIBLE_DEVICES="2,5")
    assert gpu_visible.judge(hidden).details["gpus"] == [uuids[5]]
    strangers = gpu_visible.judge(node("t4", devices=[{"uuid": "GPU-a"}, {"uuid": "GPU-b"}]))
    assert [(finding.status, finding.culprit) for finding in strangers.findings] == [(ERROR, "GPU-a"), (ERROR, "GPU-b")]


def test_a_container_without_gpus_is_told_by_its_variable(node: Node) -> None:
    outcome = gpu_visible.judge(visible(node("t4", device_count=0, devices=[]), NVIDIA_VISIBLE_DEVICES="void"))
    assert "NVIDIA_VISIBLE_DEVICES" in outcome.summary


def test_more_or_other_gpus_than_nvml_knows_are_no_pass(node: Node) -> None:
    assert gpu_visible.judge(node("t4", device_count=2)).status == ERROR
    assert gpu_visible.judge(node("t4", devices=[{"uuid": "GPU-feedface"}])).status == ERROR


def test_under_mig_the_instance_has_its_own_uuid(node: Node) -> None:
    assert gpu_visible.judge(node("mig", devices=[{"uuid": "MIG-1"}])).status == PASS
    assert gpu_visible.judge(node("mig", device_count=0, devices=[])).status == FAIL


def test_no_torch_is_a_skip_and_unasked_devices_an_error(node: Node) -> None:
    assert gpu_visible.judge(node("t4", torch=None)).status == SKIP
    assert gpu_visible.judge(node("t4", device_count=None)).status == ERROR


def test_what_an_image_says_it_does_not_know_is_no_lie(node: Node) -> None:
    view = node("h100x8", promises={"torch": "2.8.0+cu128", "nccl": "unknown"})
    assert image_promises.judge(view).status == PASS
    assert "1 of 1" in image_promises.judge(view).summary
