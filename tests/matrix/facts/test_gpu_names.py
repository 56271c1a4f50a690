"""GPU names as people and NVML write them; a name that is not known is never taken for one that is."""

import json
from pathlib import Path

from envcheck.matrix.facts import lookup
from envcheck.matrix.facts.lookup import find_gpu, other_accelerator, suggest
from envcheck.matrix.facts.model import Matrix
from tests.tables import each


@each(
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
        ("GRID T4-16Q", "T4"),
        ("NVIDIA L40S-48Q", "L40S"),
        ("NVIDIA A100-40C", "A100"),
        ("NVIDIA Corporation GA102GL [A10] (rev a1)", "A10"),
        ("NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)", "H100"),
        ("3D controller: NVIDIA Corporation TU104GL [Tesla T4] (rev a1)", "T4"),
        (
            "01:00.0 VGA compatible controller [0300]: NVIDIA Corporation AD102 [GeForce RTX 4090] [10de:2684]",
            "RTX 4090",
        ),
        ("0000:07:00.0 3D controller: NVIDIA Corporation GA100 [A100 SXM4 80GB] (rev a1)", "A100"),
        ("NVIDIA Corporation TU102 [GeForce RTX 2080 Ti Rev. A] (rev a1)", "RTX 2080 Ti"),
        ("NVIDIA Corporation GH100 [GH200 120GB / 480GB] (rev a1)", "GH200"),
        ("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0a1b2c3d-0000-1111-2222-333344445555)", "H100"),
        ("|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |                    0 |", "A100"),
        ("4xA100", "A100"),
        ("8 x H100", "H100"),
        ("4x4090", "RTX 4090"),
        ("PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell Workstation Edition"),
        ("Tesla M4", "Tesla M4"),
        ("a100:4", "A100"),
        ("NVIDIA A10G", "A10G"),
        ("3060", "RTX 3060"),
        ("RTX 6000 Ada", "RTX 6000 Ada Generation"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX 4090 Laptop GPU"),
        ("Tesla V100S-PCIE-32GB", "V100"),
        ("Jetson Thor", "Thor"),
        ("|   3  Tesla T4            Off  | 00000000:00:1E.0 Off |                    0 |", "T4"),
    ],
)
def test_names_that_mean_a_gpu(matrix: Matrix, written: str, name: str) -> None:
    match = find_gpu(matrix, written)
    assert match is not None
    assert match.name == name


@each(
    "written",
    [
        "",
        "NVIDIA",
        "GPU",
        "H10",
        "L400",
        "H1000",
        "RTX 6000",
        "TITAN X",
        "M4",
        "NVIDIA Graphics Device",
    ],
)
def test_names_that_mean_none(matrix: Matrix, written: str) -> None:
    assert find_gpu(matrix, written) is None


@each(
    ("written", "near"),
    [("H10", "H100"), ("RTX 3065", "RTX 3060"), ("A10Z", "A10"), ("GB20", "GB200"), ("RTX 6000", "RTX A6000")],
)
def test_near_misses_are_suggested(matrix: Matrix, written: str, near: str) -> None:
    assert near in suggest(matrix, written)


@each(("written", "other"), [("P41", "L40"), ("RTX 3065", "RTX 5060"), ("H10", "T10")])
def test_no_other_generation_is_suggested(matrix: Matrix, written: str, other: str) -> None:
    assert other not in suggest(matrix, written)


def test_every_name_of_the_table_finds_its_gpu(matrix: Matrix) -> None:
    rows = json.loads((Path(lookup.__file__).parents[1] / "gpu_names.json").read_text(encoding="utf-8"))["gpus"]
    found = {name: (row, find_gpu(matrix, name)) for row in rows for name in (row["name"], *row.get("aliases", []))}
    wrong = [
        name for name, (row, gpu) in found.items() if gpu is None or (gpu.name, gpu.cc) != (row["name"], row["cc"])
    ]
    assert not wrong
    assert len(rows) > 200
    capabilities = {row.cc for row in matrix.cuda.capabilities}
    assert {row["cc"] for row in rows} <= capabilities, "a capability that the resolver has no row for"


def test_nothing_is_suggested_for_nothing_like_it(matrix: Matrix) -> None:
    assert suggest(matrix, "MI300X") == []


@each(
    ("written", "kind"),
    [
        ("AMD Instinct MI300X", "an AMD GPU"),
        ("MI250X", "an AMD GPU"),
        ("Radeon RX 7900 XTX", "an AMD GPU"),
        ("Advanced Micro Devices, Inc. [AMD/ATI] Aldebaran/MI200 [Instinct MI250X/MI250]", "an AMD GPU"),
        ("gfx90a", "an AMD GPU"),
        ("Intel Data Center GPU Max 1550", "an Intel GPU"),
        ("Intel Corporation DG2 [Arc A770] (rev 08)", "an Intel GPU"),
        ("Arc B580", "an Intel GPU"),
        ("Gaudi 3", "an Intel Gaudi"),
        ("Ascend 910B", "an Ascend NPU"),
        ("Apple M2 Max", "an Apple GPU"),
        ("m3 ultra", "an Apple GPU"),
        ("Orin (nvgpu)", "an NVIDIA Jetson module"),
        ("NVIDIA Jetson AGX Orin", "an NVIDIA Jetson module"),
        ("Tegra X1", "an NVIDIA Jetson module"),
    ],
)
def test_accelerators_that_no_cuda_wheel_runs_on(matrix: Matrix, written: str, kind: str) -> None:
    assert find_gpu(matrix, written) is None
    other = other_accelerator(written)
    assert other is not None
    assert other.kind == kind


@each("written", ["NVIDIA A1000", "Tesla M4", "H10", "Quadro M4000", "RTX 4070", "", "NVIDIA"])
def test_an_unknown_nvidia_name_is_no_other_accelerator(written: str) -> None:
    assert other_accelerator(written) is None
