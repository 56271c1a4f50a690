"""The driver against torch's CUDA, against its own libraries, and against the calendar."""

import dataclasses

import msgspec

from envcheck.checks import FAIL, PASS, WARN, View
from envcheck.checks.node import driver_branch, driver_cuda
from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.file.load import load
from tests.builders import gpu_view, put, put_gpu
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


def test_on_unlike_gpus_each_that_the_driver_does_not_serve_is_a_finding() -> None:
    view = with_driver(gpu_view("h100x8"), "470.256.02")
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


@each("taken, status", [("2026-06-30", PASS), ("2026-07-01", WARN)])
def test_a_branch_is_maintained_through_its_last_month(taken: str, status: str) -> None:
    view = gpu_view("a100x8")  # R535: 2026-06
    dated = dataclasses.replace(view, snapshot=dataclasses.replace(view.snapshot, taken=f"{taken}T00:00:00+00:00"))
    assert driver_branch.judge(dated).status == status


def test_an_unknown_branch_is_a_warning_and_an_unknown_end_is_told() -> None:
    assert driver_branch.judge(with_driver(gpu_view("t4"), "999.1")).status == WARN
    assert "no end of life is known" in driver_branch.judge(gpu_view("v100x4")).summary


def test_the_runs_own_matrix_is_what_is_compared_with() -> None:
    view = with_driver(gpu_view("h100x8", device_count=0), "550.54.14")
    strict = msgspec.to_builtins(load())
    for family in strict["cuda"]["families"]:
        family["floor"] = "999.99"
    assert driver_cuda.judge(view).status == PASS
    assert driver_cuda.judge(dataclasses.replace(view, matrix=msgspec.convert(strict, Matrix))).status == FAIL
