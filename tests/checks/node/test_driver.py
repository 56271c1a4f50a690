"""The driver against torch's CUDA, against its own libraries, and against the calendar."""

import dataclasses
import json
import subprocess
from pathlib import Path

import msgspec
import pytest

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, View
from envcheck.checks.node import driver_branch, driver_cuda, gpu_visible, image_promises, visible_devices
from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.file.load import load
from tests.builders import gpu_view, put
from tests.tables import each


def with_driver(view: View, version: str) -> View:
    return put(view, driver__version=version)


def test_forward_compat_passes_only_when_torch_really_sees_the_gpus() -> None:
    old = with_driver(gpu_view("a100x8"), "470.256.02")
    assert driver_cuda.judge(old).status == PASS
    blind = dataclasses.replace(old, environment={**old.environment, "device_count": 0})
    outcome = driver_cuda.judge(blind)
    assert outcome.status == FAIL
    assert "cuda-compat-12-8" in outcome.remedy
    unasked = dataclasses.replace(old, environment={}, promises={"cuda": "12.8"})
    assert driver_cuda.judge(unasked).status == WARN


@each("taken, status", [("2026-06-30", PASS), ("2026-07-01", WARN)])
def test_a_branch_is_maintained_through_its_last_month(taken: str, status: str) -> None:
    view = gpu_view("a100x8")  # R535: 2026-06
    dated = dataclasses.replace(view, snapshot=dataclasses.replace(view.snapshot, taken=f"{taken}T00:00:00+00:00"))
    assert driver_branch.judge(dated).status == status


def test_an_unknown_end_of_a_branch_is_told() -> None:
    assert "no end of life is known" in driver_branch.judge(gpu_view("v100x4")).summary


def test_the_runs_own_matrix_is_what_is_compared_with() -> None:
    view = with_driver(gpu_view("h100x8", device_count=0), "550.54.14")
    strict = msgspec.to_builtins(load())
    for family in strict["cuda"]["families"]:
        family["floor"] = "999.99"
    assert driver_cuda.judge(view).status == PASS
    assert driver_cuda.judge(dataclasses.replace(view, matrix=msgspec.convert(strict, Matrix))).status == FAIL


KEPT = {
    "cell": "torch2.8.0-cu128-py312",
    "torch": "2.8.0+cu128",
    "cuda": "12.8",
    "cudnn": "9.10.2",
    "nccl": "2.27.3",
    "python": "3.12",
    "arch_list": "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120",
}


@each(
    "promise, lie",
    [
        ({"cell": "torch2.9.1-cu128-py312"}, "cell: promised torch2.9.1-cu128-py312, is torch2.8.0-cu128-py312"),
        ({"cell": "torch2.8.0-cu128-py311"}, "cell: promised torch2.8.0-cu128-py311, is torch2.8.0-cu128-py312"),
        ({"variant": "cu126"}, "variant: promised cu126, is cu128"),
        ({"driver_floor": "470.42.01"}, "driver-floor: promised 470.42.01, is 525.60.13"),
        ({"target": "fast"}, "target: promised fast, is no target of envcheck"),
    ],
)
def test_a_label_that_lies_about_what_nothing_else_says_is_named(promise: dict[str, str], lie: str) -> None:
    packages = {"torch": "2.8.0", "wheel": "0.47"}
    outcome = image_promises.judge(gpu_view("h100x8", {**KEPT, **promise}, packages=packages))
    assert (outcome.status, outcome.summary) == (FAIL, lie)


def test_a_lock_that_is_off_in_many_packages_is_told_shortly() -> None:
    promised = {"torch": "2.8.0+cu128", "packages": " ".join(f"p{n}==1" for n in range(9))}
    outcome = image_promises.judge(gpu_view("h100x8", promised, packages={}))
    assert outcome.summary.endswith("6 more")
    assert len(outcome.details["lies"]) == 9
    assert [finding.culprit for finding in outcome.findings] == [f"p{n}" for n in range(9)]
    assert {(f.value, f.limit.value if f.limit else None) for f in outcome.findings} == {("none", "1")}


def test_no_promise_is_no_pass_and_a_torch_that_does_not_import_breaks_one(cpu: View) -> None:
    assert image_promises.judge(cpu).status == SKIP
    broken = dataclasses.replace(cpu, promises=KEPT, environment={"error": "libcudart.so.12: cannot open"})
    assert image_promises.judge(broken).status == FAIL
    assert image_promises.judge(dataclasses.replace(broken, environment={})).status == ERROR


def test_each_gpu_that_torch_does_not_see_is_named_where_torch_names_its_own() -> None:
    uuids = [gpu.uuid for gpu in gpu_view("h100x8").snapshot.gpus]
    seen = [{"uuid": uuid} for index, uuid in enumerate(uuids) if index not in (2, 5)]
    outcome = gpu_visible.judge(gpu_view("h100x8", device_count=6, devices=seen))
    assert [(finding.status, finding.culprit) for finding in outcome.findings] == [
        (FAIL, f"GPU 2 ({uuids[2]})"),
        (FAIL, f"GPU 5 ({uuids[5]})"),
    ]
    assert outcome.details["gpus"] == [uuids[2], uuids[5]]
    assert all(finding.remedy and finding.limit and finding.value == 6 for finding in outcome.findings)
    hidden = gpu_view("h100x8", device_count=1, devices=[{"uuid": uuids[2]}])
    outcome = gpu_visible.judge(put(hidden, env={"CUDA_VISIBLE_DEVICES": "2,5"}))
    assert outcome.details["gpus"] == [uuids[5]]


UUIDS = ["GPU-a1", "GPU-b2"]
CASES = [(None, 2), ("", 0), ("1", 1), ("1,0", 2), ("0,2,1", 1), ("GPU-a", 1), ("GPU-", 0), ("MIG-x", 1), ("-1,0", 0)]
CASES += [("0,0", 0), ("1gpu, 0", 2), ("0,,1", 1), ("GPU-a1,GPU-b2", 2), ("GPU-a1, GPU-b2", 1), ("GPU-a1,0", 1)]
CASES += [("0,GPU-b2", 1), ("GPU-a,GPU-a1", 0), ("MIG-x,MIG-y", 1), ("NoDevFiles", 0), ("+1", 1), ("x", 0)]


@each("value, gpus", CASES)
def test_cuda_visible_devices_as_cuda_reads_it(value: str | None, gpus: int) -> None:
    assert visible_devices.parse(value, UUIDS).gpus == gpus


@pytest.mark.torch
def test_indices_are_read_as_torch_reads_them(torch_python: Path) -> None:
    values = ["0", "0,1", "1,0", "0,0", "1gpu,0x", "0,,1", "-1,0", "0,-1,1", "", " 1 , 0 ", "+1", "x,0", "1,1gpu"]
    code = """
import json, os, sys, torch
for value in json.loads(sys.argv[1]):
    os.environ["CUDA_VISIBLE_DEVICES"] = value
    print(json.dumps(torch.cuda._parse_visible_devices()))
"""
    command = [str(torch_python), "-c", code, json.dumps(values)]
    completed = subprocess.run(command, capture_output=True, text=True, check=True)
    read = [visible_devices.parse(value, UUIDS) for value in values]
    mine = [[] if one.repeated is not None else one.chosen for one in read]
    assert mine == [json.loads(line) for line in completed.stdout.splitlines()]
