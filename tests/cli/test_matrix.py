"""`envcheck matrix` as a user meets it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from envcheck.errors import UnavailableError
from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.file import check_online as file_check_online
from envcheck.matrix.file.check_online import Step
from envcheck.matrix.file.lint import Problem

Run = Callable[..., tuple[int, str, str]]
SHIPPED = Path(__file__).parents[2] / "matrix.yaml"


def test_show_one_release(run: Run) -> None:
    code, out, _ = run("matrix", "show", "--torch", "2.8.0")
    assert code == 0
    assert [line.split()[1] for line in out.splitlines()[1:5]] == ["cu129", "cu128", "cu126", "cpu"]
    assert max(map(len, out.splitlines())) <= 80


def test_show_judges_for_a_gpu_and_driver(run: Run) -> None:
    _, out, _ = run("matrix", "show", "--variant", "cu128", "--gpu", "V100", "--driver", "570.124.06", "--json")
    verdicts = {row["torch"]: row["verdict"] for row in json.loads(out)}
    assert verdicts == {
        "2.7.0": "arch-not-in-wheel",
        "2.7.1": "arch-not-in-wheel",
        "2.8.0": "ok",
        "2.9.0": "ok",
        "2.9.1": "ok",
        "2.10.0": "ok",
        "2.11.0": "arch-not-in-wheel",
    }


def test_show_filters_by_python(run: Run) -> None:
    _, out, _ = run("matrix", "show", "--python", "3.7", "--json")
    assert {row["torch"] for row in json.loads(out)} == {"1.13.1"}


@pytest.mark.parametrize(("option", "count", "part"), [("--gpus", 31, "H100"), ("--drivers", 26, "R570")])
def test_show_gpus_and_drivers(run: Run, option: str, count: int, part: str) -> None:
    _, out, _ = run("matrix", "show", option)
    assert part in out
    _, out, _ = run("matrix", "show", option, "--json")
    rows = json.loads(out)
    assert len(rows if isinstance(rows, list) else rows["drivers"]) == count


def test_show_refuses_an_unknown_gpu(run: Run) -> None:
    code, out, err = run("matrix", "show", "--gpu", "H10")
    assert (code, out) == (2, "")
    assert "did you mean H100" in err


@pytest.mark.parametrize("args", [("--torch", "9"), ("--python", "3.99"), ("--torch", "2.8", "--variant", "cu132")])
def test_show_says_when_no_row_is_left(run: Run, args: tuple[str, ...]) -> None:
    code, out, err = run("matrix", "show", *args)
    assert (code, out) == (1, "")
    assert err.startswith(f"envcheck: no row of the matrix meets {' '.join(args)}; ask for less")
    assert err.count("\n") == 1
    code, out, _ = run("matrix", "show", *args, "--json")
    assert (code, json.loads(out)) == (1, [])


def test_show_takes_what_resolve_takes(run: Run) -> None:
    _, arm, _ = run("matrix", "show", "--torch", "2.13.0", "--arch", "arm64")
    assert arm == run("matrix", "show", "--torch", "2.13.0", "--arch", "aarch64")[1]
    _, out, _ = run("matrix", "show", "--torch", "2.8.0", "--cc", "12.0", "--json")
    verdicts = {row["variant"]: row["verdict"] for row in json.loads(out)}
    assert (verdicts["cu126"], verdicts["cu128"]) == ("gpu-too-new-for-cuda", "ok")
    assert "* what the default Python index has" in arm.splitlines()


def test_check_passes_on_what_is_shipped(run: Run) -> None:
    code, out, _ = run("matrix", "check")
    assert (code, out) == (
        0,
        "nothing wrong with 29 torch releases, 31 GPUs, 26 driver branches, 136 releases of 38 extensions\n",
    )


def test_check_finds_and_exits_1(run: Run, tmp_path: Path) -> None:
    broken = tmp_path / "matrix.yaml"
    broken.write_text(SHIPPED.read_text().replace('floor: "525.60.13"', 'floor: "425.60.13"'))
    code, out, _ = run("--matrix", str(broken), "matrix", "check")
    assert code == 1
    assert "CUDA 12.x: floor 425.60.13 is not above 450.80.02 of 11.x" in out
    code, out, _ = run("--matrix", str(broken), "matrix", "check", "--json")
    assert code == 1
    assert json.loads(out)[0]["where"] == "CUDA 12.x"


def test_format_brings_a_file_into_its_canonical_form(run: Run, tmp_path: Path) -> None:
    mine = tmp_path / "matrix.yaml"
    mine.write_text(SHIPPED.read_text().replace("# Facts first", "# facts first"))
    code, out, _ = run("--matrix", str(mine), "matrix", "check")
    assert code == 1
    assert "is not in its canonical form: run `envcheck matrix format`" in out
    assert run("--matrix", str(mine), "matrix", "format")[:2] == (0, "matrix.yaml: rewritten\n")
    assert mine.read_bytes() == SHIPPED.read_bytes()
    assert run("--matrix", str(mine), "matrix", "format")[:2] == (0, "matrix.yaml: already canonical\n")


def test_schema_is_the_committed_one(run: Run) -> None:
    committed = SHIPPED.parent / "envcheck" / "matrix" / "file" / "matrix.schema.json"
    assert run("matrix", "schema") == (0, committed.read_text(), "")


def test_online_mismatch_is_exit_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        file_check_online, "check_online", lambda *_, **__: [Problem("torch 2.8.0", "requires CUDA 13.0")]
    )
    code, out, _ = run("matrix", "check", "--online")
    assert (code, out.splitlines()[:2]) == (1, ["torch 2.8.0: requires CUDA 13.0", "1 finding"])


def answer_all(matrix: Matrix, progress: Callable[[Step], None]) -> list[Problem]:
    """Stand in for the index: one release of two questions."""
    del matrix
    progress(Step("2.8.0", 1, 2, release_done=False))
    progress(Step("2.8.0", 2, 2, release_done=True))
    return []


def test_online_says_what_it_asks_how_far_it_is_and_what_it_left_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_check_online, "check_online", answer_all)
    code, out, err = run("matrix", "check", "--online")
    assert code == 0
    assert err.splitlines() == [
        "asking the default Python index through uv: 58 questions, 8 at a time",
        "2 of 2 answered: torch 2.8.0",
    ]
    assert "the default Python index, through uv, answered 58 questions on the x86_64 wheels of 29 releases" in out
    assert out.count("not asked: ") == 3


def test_online_in_quiet_and_json_keeps_its_streams_clean(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_check_online, "check_online", answer_all)
    assert run("--quiet", "matrix", "check", "--online")[2] == ""
    code, out, err = run("matrix", "check", "--online", "--json")
    assert (code, json.loads(out)) == (0, [])
    assert "not asked: " in err


def test_online_without_an_index_is_exit_3(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        message = "the package index cannot be asked"
        raise UnavailableError(message, fix="check it")

    monkeypatch.setattr(file_check_online, "check_online", refuse)
    code, out, err = run("matrix", "check", "--online")
    assert (code, out) == (3, "")
    assert err.endswith("\nenvcheck: the package index cannot be asked; check it\n")


def test_no_summary_of_a_command_is_cut(run: Run) -> None:
    _, out, _ = run("matrix", "--help")
    listed = out.split("Commands:")[1]
    assert "refresh" in listed
    assert "..." not in listed


def test_help_has_an_example_for_each_part(run: Run) -> None:
    for part in ("show", "check", "schema", "format"):
        code, out, _ = run("matrix", part, "--help")
        assert code == 0
        assert "envcheck" in out.split("Options:")[0].split("\n", 1)[1]


def test_a_copy_elsewhere_is_as_good(run: Run, tmp_path: Path) -> None:
    shutil.copy(SHIPPED, tmp_path / "copy.yaml")
    assert run("--matrix", str(tmp_path / "copy.yaml"), "matrix", "check")[0] == 0
