"""GPU names as people and NVML write them; a name that is not known is never taken for one that is."""

import json
from pathlib import Path

from envcheck.matrix.facts import lookup
from envcheck.matrix.facts.lookup import Facts, find_gpu, other_accelerator, suggest
from envcheck.matrix.facts.model import Matrix
from tests.tables import beside, each

CASES = beside(__file__)


@each(("written", "name"), CASES["known"])
def test_names_that_mean_a_gpu(matrix: Matrix, written: str, name: str) -> None:
    match = find_gpu(matrix, written)
    assert match is not None
    assert match.name == name


@each(("written", "datacenter"), [("GRID RTX8000P-8Q", True), ("Quadro RTX 8000", False), ("H100", True)])
def test_shared_boards_are_for_data_centres(matrix: Matrix, written: str, datacenter: bool) -> None:  # noqa: FBT001 (a column)
    assert Facts(matrix).device(written).datacenter is datacenter


@each("written", CASES["unknown"])
def test_names_that_mean_none(matrix: Matrix, written: str) -> None:
    assert find_gpu(matrix, written) is None


@each(
    ("written", "near"),
    [
        *(("H10", "H100"), ("RTX 3065", "RTX 3060"), ("A10Z", "A10"), ("GB20", "GB200"), ("RTX 6000", "RTX A6000")),
        ("NVIDIA RTX 4000", "Quadro RTX 4000"),
        # nvidia-smi has cut the edition off (bigstack-oss/cubecos#312).
        ("| 0  NVIDIA RTX PRO 6000 Blac...  On  | 0 |", "RTX PRO 6000 Blackwell Server Edition"),
    ],
)
def test_near_misses_are_suggested(matrix: Matrix, written: str, near: str) -> None:
    assert near in suggest(matrix, written)


@each(("written", "other"), [("P41", "L40"), ("RTX 3065", "RTX 5060"), ("H10", "T10")])
def test_no_other_generation_is_suggested(matrix: Matrix, written: str, other: str) -> None:
    assert other not in suggest(matrix, written)


def test_every_name_of_the_table_finds_its_gpu(matrix: Matrix) -> None:
    rows = json.loads((Path(lookup.__file__).parents[1] / "gpu_names.json").read_text(encoding="utf-8"))["gpus"]
    # As NVML prints the name with two drivers, and lspci -nn the board.
    forms = "NVIDIA {}", "NVIDIA GeForce {}", "NVIDIA Corporation XX100 [{}] [10de:2901] (rev a1)"
    names = {name: row for row in rows for name in (row["name"], *row.get("aliases", []))}
    names |= {form.format(row["name"]): row for row in rows for form in forms}
    found = {name: (row, find_gpu(matrix, name)) for name, row in names.items()}
    wrong = [
        name for name, (row, gpu) in found.items() if gpu is None or (gpu.name, gpu.cc) != (row["name"], row["cc"])
    ]
    assert not wrong
    assert len(rows) > 200
    capabilities = {row.cc for row in matrix.cuda.capabilities}
    assert {row["cc"] for row in rows} <= capabilities, "a capability that the resolver has no row for"


@each(("written", "kind"), CASES["others"])
def test_accelerators_that_no_cuda_wheel_runs_on(matrix: Matrix, written: str, kind: str) -> None:
    assert find_gpu(matrix, written) is None
    other = other_accelerator(written)
    assert other is not None
    assert other.kind == kind


@each("written", ["NVIDIA A1000", "Tesla M4", "H10", "Quadro M4000", "RTX 4070", "", "NVIDIA"])
def test_an_unknown_nvidia_name_is_no_other_accelerator(written: str) -> None:
    assert other_accelerator(written) is None
