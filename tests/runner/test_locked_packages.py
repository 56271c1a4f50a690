"""A lock named by its digest is compared with where it is shipped, or where a build here made it."""

from pathlib import Path

import pytest

from envcheck.images import lockfile
from envcheck.images.dockerfile import write_locks
from envcheck.images.spec import load_spec
from envcheck.matrix.facts.model import Cell
from envcheck.matrix.file.load import load
from envcheck.runner.promises import with_packages
from tests.tables import each

CELL = Cell(torch="2.8.0", variant="cu128", python="3.12")


def test_the_shipped_lock_of_a_cell_is_known_by_its_digest() -> None:
    spec = load_spec(load(), CELL)
    image_spec = with_packages(spec.promises)
    assert sorted(image_spec["packages"].split()) == sorted(
        f"{p.name}=={p.version}" for k in spec.locks for p in k.pins
    )
    assert {key: value for key, value in image_spec.items() if key != "packages"} == spec.promises


@each(
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
    for cuda, expected in (("13.0", True), ("none", False)):
        assert ("bitsandbytes" in with_packages({"target": "train", "cuda": cuda})["target_packages"]) is expected


def test_the_lock_of_arm64_and_one_that_a_build_made_are_known_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = load_spec(load(), Cell(torch="2.9.1", variant="cpu", python="3.11"), arch="aarch64")
    assert with_packages(arm.promises)["packages"] == arm.packages

    cell = Cell(torch="2.8.0", variant="cu128", python="3.12")
    made = load_spec(load(), Cell(torch="2.14.1", variant="cu130", python="3.12"), "train").locks[-1]
    shipped = load_spec(load(), cell)
    promises = {**shipped.promises, "target": "train", "lock": lockfile.digest([*shipped.locks, made])}
    monkeypatch.setenv("ENVCHECK_HOME", str(tmp_path))
    assert "packages" not in with_packages(promises)
    write_locks(tmp_path / "images", cell, [made])
    assert set(shipped.packages.split()) < set(with_packages(promises)["packages"].split())
