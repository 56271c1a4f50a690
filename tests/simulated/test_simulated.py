"""Every GPU check, run by the real runner on GPUs that are simulated: the code runs to its end, and judges.

It shows names that torch does not have, arguments in the wrong order, tensors on the wrong device and UUIDs that do not
meet; of hardware it proves nothing. What runs on a real GPU only: torch.compile (Triton), NCCL itself, peer-to-peer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envcheck.runner.planning.discover import discover

LAUNCHER = Path(__file__).with_name("simulate.py")
LIES = LAUNCHER.with_name("lies")
# What Triton compiles for is real, dcgmi and a bus are not there, and how much may be locked is this machine's.
NOT_HERE = ("compiled", "dcgm-diag", "memlock", "pcie-under-load")
# What is timed by this machine's own clock, which others share, may come to any verdict.
TIMED = ("straggler", "overlap")
# A GPU whose own speeds are those that are set.
MODEL = "NVIDIA H100 80GB HBM3"
ON_GPUS = [
    f.id for f in discover() if f.kind == "env" and f.id not in NOT_HERE and (f.check.ranks == 0 or f.check.gpus)
]

# A run of all checks, while other tests run beside it.
pytestmark = pytest.mark.timeout(1200)


def run(python: Path, output: Path, gpus: int, *options: str, **settings: str) -> dict[str, Any]:
    """Return what each check came to on so many GPUs, and under "log" what the launcher printed."""
    named = {f"SIMULATED_{name.upper()}": value for name, value in settings.items()}
    command = [sys.executable, str(LAUNCHER), "--quiet", "run", "--python", str(python), *options]
    done = subprocess.run(
        [*command, "--output", str(output)],
        env={**os.environ, "SIMULATED_GPUS": str(gpus), "SIMULATED_NAME": MODEL, **named},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    report = json.loads(output.read_text())
    return {**{row["id"]: row for row in report["outcomes"]}, "environment": report["environment"]}


@pytest.fixture(scope="module")
def pair(torch_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run every check that uses a GPU on two of them."""
    only = [option for check in (*ON_GPUS, "gpu-visible", "checkpoint", "dataloader") for option in ("--only", check)]
    return run(torch_python, tmp_path_factory.mktemp("pair") / "report.json", 2, *only)


@pytest.mark.torch
@pytest.mark.parametrize("check", [*ON_GPUS, "checkpoint", "dataloader"])
def test_every_gpu_check_runs_to_its_end(pair: dict[str, Any], check: str) -> None:
    allowed = {"pass", "warn", "fail"} if check in TIMED else {"pass"}
    assert pair[check]["status"] in allowed, pair[check]


@pytest.mark.torch
def test_ranks_are_on_the_gpus_that_nvml_names(pair: dict[str, Any]) -> None:
    seen = [device["uuid"] for device in pair["environment"]["devices"]]
    assert len(set(seen)) == 2
    assert [rank["device"] for rank in pair["all-reduce"]["ranks"]] == seen
    assert pair["gpu-visible"]["status"] == "pass", pair["gpu-visible"]


@pytest.mark.torch
def test_speeds_are_those_of_the_gpu(pair: dict[str, Any]) -> None:
    values = pair["gemm-throughput"]["ranks"][0]["values"]
    assert values["bfloat16"] == pytest.approx(700, rel=0.05)
    assert values["float8"] > values["bfloat16"] > values["tf32"] > values["float32"]
    assert pair["memory-bandwidth"]["ranks"][1]["values"]["HBM copy"] == pytest.approx(2800, rel=0.05)
    assert pair["gemm-throughput"]["limit"]["value"] < 700


@pytest.mark.torch
def test_one_wrong_element_of_any_product_is_found(torch_python: Path, tmp_path: Path) -> None:
    lies = {
        "gemm-flips-a-bit": "1 of 4 bfloat16 products have wrong elements, first product 2",
        "gemm-skips-a-product": "1 of 4 bfloat16 products have wrong elements, first product 2",
        "gemm-swaps-columns": "the bfloat16 product is off by",
        "sustained-gemm-scales": "the bfloat16 product is off by",
        "sustained-gemm-swaps": "words of products had other bits",
        "sustained-gemm-compensates": "words of products had other bits",
    }
    only = [option for lie in lies for option in ("--only", lie)]
    found = run(torch_python, tmp_path / "report.json", 1, "--checks", str(LIES), *only)
    for lie, said in lies.items():
        assert found[lie]["status"] == "fail", found[lie]
        assert said in found[lie]["summary"]


@pytest.mark.torch
def test_a_training_that_takes_other_steps_is_no_gpu_at_work(torch_python: Path, tmp_path: Path) -> None:
    lies = {
        "training-load-halves-the-loss": "the first step: loss off by",
        "training-load-stands-still": "update off by",
        "training-load-leaks": "bends off by",
        "training-load-scales": "forward off by",
    }
    only = [option for lie in lies for option in ("--only", lie)]
    found = run(torch_python, tmp_path / "report.json", 1, "--checks", str(LIES), *only)
    for lie, said in lies.items():
        assert found[lie]["status"] == "fail", found[lie]
        assert said in found[lie]["summary"]


@pytest.mark.torch
def test_the_slow_one_of_two_gpus_is_named(torch_python: Path, tmp_path: Path) -> None:
    only = ("--only", "gemm-throughput")
    slow = run(torch_python, tmp_path / "report.json", 2, *only, slow="1:1.5")["gemm-throughput"]
    assert slow["status"] == "fail", slow
    assert slow["details"]["rank"] == 1
    assert len(slow["attempts"]) == 2


@pytest.mark.torch
def test_one_gpu_without_bfloat16_and_fp8_is_judged_by_what_it_has(torch_python: Path, tmp_path: Path) -> None:
    passing = ("matmul", "attention", "convolution", "gemm-throughput", "amp")
    only = [option for check in (*passing, "fp8-training", "all-reduce") for option in ("--only", check)]
    found = run(torch_python, tmp_path / "report.json", 1, *only, cc="7.0", name="Tesla V100-SXM2-16GB", cuda="12.6")
    assert {check: found[check]["status"] for check in passing} == dict.fromkeys(passing, "pass")
    assert [found[check]["status"] for check in ("fp8-training", "all-reduce")] == ["skip", "skip"]
    assert set(found["gemm-throughput"]["ranks"][0]["values"]) == {"float32", "float16"}
    assert found["amp"]["ranks"][0]["cases"]["linear, bfloat16"] == {
        "absent": "bf16 is emulated at compute capability (7, 0) (8.0 has it)"
    }


@pytest.mark.torch
def test_cuda_visible_devices_by_uuid_leaves_that_gpu(
    pair: dict[str, Any], torch_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = pair["environment"]["devices"][1]["uuid"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", second)
    found = run(torch_python, tmp_path / "report.json", 2, "--only", "matmul")
    assert [rank["device"] for rank in found["matmul"]["ranks"]] == [second]
