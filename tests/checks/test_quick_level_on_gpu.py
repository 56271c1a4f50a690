"""On a machine with an NVIDIA GPU: the whole quick level, on the GPU, with nothing fallen back."""

import os
from pathlib import Path

import pytest

from envcheck.node.collect import collect
from tests.processes import checked


@pytest.mark.gpu
def test_a_gpu_machine_passes_on_its_gpus(tmp_path: Path) -> None:
    if not collect().gpus:
        pytest.skip("no NVIDIA GPU here: what runs on GPUs alone is not tested")
    python, output = os.environ.get("ENVCHECK_TEST_GPU_PYTHON"), tmp_path / "report.json"
    assert python, "a GPU, and no ENVCHECK_TEST_GPU_PYTHON: `make test` builds one"
    done, report = checked(python, output, "--require-gpu")
    assert done.returncode == 0, done.stdout
    for check in ("kernels", "amp", "driver-cuda", "gpu-visible", "arch-list"):
        assert report[check]["status"] == "pass", report[check]
    assert all(rank["is_cuda"] for rank in report["kernels"]["ranks"])
