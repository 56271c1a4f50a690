"""`envcheck demo`: the cell it takes for a machine, and the whole main job for real without an engine."""

import json
import os
from pathlib import Path

import pytest

from envcheck.cli.building import cell_to_build
from envcheck.cli.building.cell_to_build import buildable
from envcheck.errors import NothingLegalError, UnavailableError
from envcheck.matrix.file.load import load
from envcheck.matrix.resolver.resolve import Query, resolve
from tests.processes import typed

MATRIX = load()
H100 = Query(gpus=["H100"], driver="550.54.14")


def test_the_newest_published_legal_cell_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_to_build, "_own_suite", lambda: None)
    answer = resolve(MATRIX, H100)
    published = [str(cell) for cell in MATRIX.cells()]
    first = next(row.cell for row in answer.ranked if row.cell in published)
    assert buildable(MATRIX, [answer], "docker")[0] == next(c for c in MATRIX.cells() if str(c) == first)


def test_of_its_pythons_the_one_whose_base_is_this_release_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_to_build, "_own_suite", lambda: "bookworm")
    assert buildable(MATRIX, [resolve(MATRIX, H100)], "docker")[0].python == "3.11"
    monkeypatch.setattr(cell_to_build, "_own_suite", lambda: "trixie")
    assert buildable(MATRIX, [resolve(MATRIX, H100)], "docker")[0].python == "3.13"


def test_a_machine_no_published_cell_is_legal_on_is_told_so() -> None:
    with pytest.raises(NothingLegalError, match="envcheck images"):
        buildable(MATRIX, [resolve(MATRIX, Query(gpus=["H100"], torch="2.0.1", driver="470.57.02"))], "docker")


def test_a_venv_needs_the_cells_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_to_build, "_has_python", lambda _: False)
    with pytest.raises(UnavailableError, match=r"install one of Python 3\.11"):
        buildable(MATRIX, [resolve(MATRIX, Query(variant="cpu"))], "venv")


@pytest.mark.torch
@pytest.mark.usefixtures("torch_python")
def test_the_main_job_without_an_engine(tmp_path: Path) -> None:
    home = {"ENVCHECK_HOME": str(tmp_path / "home")}
    completed = typed("demo", "--engine", "venv", cwd=tmp_path, env={**os.environ, **home})
    assert completed.returncode == 0, completed.stdout + completed.stderr
    report = json.loads((tmp_path / "envcheck-report.json").read_text(encoding="utf-8"))
    assert "built by venv through mirror profile host" in report["resolution"]
    assert report["promises"]["torch"] == report["environment"]["torch"]
    assert {row["id"] for row in report["outcomes"] if row["status"] == "pass"} >= {
        "ddp",
        "amp",
        "kernels",
        "all-reduce",
    }
    assert "PASS" in completed.stdout
