"""GPU names as people and NVML write them; a name that is not known is never taken for one that is."""

from __future__ import annotations

import pytest

from envcheck.matrix.gpus import capability_of_series, find_gpu, suggest
from envcheck.matrix.model import Matrix


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("H100", "H100"),
        ("h100", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 NVL", "H100"),
        ("NVIDIA H100 PCIe", "H100"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla T4", "T4"),
        ("Tesla P100-PCIE-16GB", "P100"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA GH200 144G HBM3e", "GH200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA H20-3e", "H20"),
        ("NVIDIA L40S", "L40S"),
        ("RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("GeForce GTX 1080 Ti", "GTX 1080 Ti"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell Server Edition"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell Workstation Edition"),
        ("NVIDIA GB10", "GB10"),
        ("DGX Spark", "GB10"),
    ],
)
def test_names_that_mean_a_gpu(matrix: Matrix, written: str, name: str) -> None:
    found = find_gpu(matrix, written)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "written",
    [
        "",
        "NVIDIA",
        "GPU",
        "A10G",
        "H10",
        "RTX 4080",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "RTX 4090 D",
        "L400",
        "H1000",
    ],
)
def test_names_that_mean_none(matrix: Matrix, written: str) -> None:
    assert find_gpu(matrix, written) is None


@pytest.mark.parametrize(
    ("written", "near"),
    [("H10", "H100"), ("RTX 4080", "RTX 4090"), ("A10G", "A10"), ("GB20", "GB200"), ("L40Z", "L40")],
)
def test_near_misses_are_suggested(matrix: Matrix, written: str, near: str) -> None:
    assert near in suggest(matrix, written)


def test_nothing_is_suggested_for_nothing_like_it(matrix: Matrix) -> None:
    assert suggest(matrix, "MI300X") == []


@pytest.mark.parametrize(
    ("written", "cc"),
    [
        ("RTX 3060", "8.6"),
        ("NVIDIA GeForce RTX 3080 Ti", "8.6"),
        ("RTX 4070", "8.9"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "8.9"),
        ("rtx5080", "12.0"),
        ("GTX 1060", "6.1"),
        ("NVIDIA RTX 6000 Ada Generation", "8.9"),
    ],
)
def test_a_series_tells_its_capability(matrix: Matrix, written: str, cc: str) -> None:
    found = capability_of_series(matrix, written)
    assert found is not None
    assert found[0] == cc


@pytest.mark.parametrize("written", ["A6000", "RTX 4000", "Quadro RTX 6000", "GTX 960", "RTX 5000 Blackwell", "MI300X"])
def test_a_name_that_fixes_no_capability_tells_none(matrix: Matrix, written: str) -> None:
    assert capability_of_series(matrix, written) is None
