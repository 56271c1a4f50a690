"""A lock named by its digest is compared with only where it is the shipped one."""

from __future__ import annotations

import pytest

from envcheck.images.spec import load_spec
from envcheck.matrix.facts.model import Cell
from envcheck.matrix.file.load import load
from envcheck.runner.targets.locked_packages import with_packages

CELL = Cell(torch="2.8.0", variant="cu128", python="3.12")


def test_the_shipped_lock_of_a_cell_is_known_by_its_digest() -> None:
    spec = load_spec(load(), CELL)
    found = with_packages(spec.promises)
    assert sorted(found["packages"].split()) == sorted(f"{p.name}=={p.version}" for k in spec.locks for p in k.pins)
    assert {key: value for key, value in found.items() if key != "packages"} == spec.promises


@pytest.mark.parametrize(
    "promises",
    [
        {},
        {"cell": str(CELL)},
        {"cell": str(CELL), "lock": "0" * 64},
        {"cell": "../..", "lock": "x"},
        {"cell": "torch9.9.9-cpu-py311", "lock": "x"},
    ],
)
def test_any_other_lock_adds_nothing(promises: dict[str, str]) -> None:
    assert with_packages(promises) == promises


def test_what_a_target_is_made_of_is_known_whatever_its_lock() -> None:
    assert (
        with_packages({"target": "jupyter", "lock": "0" * 64})["target_packages"] == "ipykernel ipywidgets jupyterlab"
    )
    assert (
        "huggingface-hub" in with_packages({"target": "train", "packages": "torch==2.8.0"})["target_packages"].split()
    )
