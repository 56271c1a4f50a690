"""NVIDIA's wheels, each with directories of its own, become one directory that compilers take for a toolkit."""

import subprocess
import sys
from pathlib import Path

import pytest

from envcheck.data import data_path

SCRIPT = data_path("templates") / "context/targets/devel/cuda_home.py"
# It compiles when asked to: it writes what -o names.
NVCC = '#!/bin/sh\necho "Cuda compilation tools, release 13.0, V13.0.88"\n[ "$1" = --version ] || echo object >"$4"\n'
PTXAS = '#!/bin/sh\necho "Cuda compilation tools, release 12.8, V12.8.93"\n'


def lay(site: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = site / "nvidia" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)


def run(site: Path, home: Path, cuda: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-I", "-B", *map(str, (SCRIPT, site, home)), cuda]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_wheels_of_cuda_12_with_a_directory_each_become_one(tmp_path: Path) -> None:
    site, home = tmp_path / "site", tmp_path / "cuda"
    files = {
        "cuda_nvcc/bin/ptxas": PTXAS,
        "cuda_nvcc/include/crt/host_config.h": "config",
        "cuda_runtime/include/crt/more.h": "more",
        "cuda_runtime/include/cuda_runtime.h": "runtime",
        "cuda_runtime/include/__init__.py": "",
        "cuda_runtime/lib/libcudart.so.12": "library",
        "nccl/lib/libnccl.so.2": "library",
    }
    lay(site, files)
    done = run(site, home, "12.8")
    assert (done.returncode, done.stderr) == (0, "")
    data = {str(path.relative_to(home)): path.read_text() for path in home.rglob("*") if path.is_file()}
    assert data == {
        "bin/ptxas": PTXAS,
        "include/crt/host_config.h": "config",
        "include/crt/more.h": "more",
        "include/cuda_runtime.h": "runtime",
        "lib64/libcudart.so": "library",
        "lib64/libcudart.so.12": "library",
        "lib64/libnccl.so": "library",
        "lib64/libnccl.so.2": "library",
    }


@pytest.mark.parametrize(
    ("files", "cuda", "why"),
    [
        ({"cu13/bin/nvcc": NVCC}, "13.2", "no nvcc of CUDA 13.2: release 13.0"),
        ({"cu13/bin/nvcc": NVCC.partition("[")[0] + "[ $1 = --version ] || echo no cicc"}, "13.0", "no cicc"),
        ({"cu13/bin/ptxas": PTXAS}, "13.0", "no nvcc of CUDA 13.0"),
        ({"cuda_nvcc/bin/ptxas": PTXAS}, "12.1", "no ptxas of CUDA 12.1: release 12.8"),
        ({"cuda_nvcc/include/cuda.h": ""}, "12.8", "no ptxas of CUDA 12.8"),
    ],
)
def test_compilers_that_are_others_or_do_not_work_end_the_build(
    tmp_path: Path, files: dict[str, str], cuda: str, why: str
) -> None:
    lay(tmp_path, files)
    done = run(tmp_path, tmp_path / "cuda", cuda)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("envcheck: proof failed: ")
    assert why in line
