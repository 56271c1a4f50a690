"""The file in which a verdict waits for the gate: what others, crashes and other versions leave there is no verdict."""

import os
from pathlib import Path

import pytest
from msgspec import json

from envcheck.fleet import gate
from envcheck.fleet.gate import fingerprint, this_boot
from tests.builders import report, row
from tests.fleet.test_verdict import PYTHON, verdict
from tests.tables import each


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENVCHECK_HOME", str(tmp_path / "home"))
    return tmp_path


def test_a_verdict_is_read_as_it_was_kept_and_only_its_user_reads_it() -> None:
    path = gate.keep(verdict())
    assert gate.read(path) == verdict()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_kept_failure_of_a_higher_level_stays() -> None:
    path = gate.keep(verdict(level="standard", status="fail"))
    assert gate.keep(verdict()) == path
    kept = gate.read(path)
    assert kept is not None
    assert kept.status == "fail"


@each(
    "content",
    [
        b"",
        b"{",
        json.encode(verdict())[:-20],
        b"\xff\xfe",
        b"[" * 60_000,
        json.encode(verdict()).replace(b'"pass"', b'"fine"'),
        json.encode(verdict()).replace(b"envcheck/gate/1", b"envcheck/gate/2"),
        json.encode(verdict()).replace(b'"left_out":0', b'"left_out":0,"more":1'),
        json.encode(verdict()) + b" " * (1 << 17) + b"x",
    ],
)
def test_what_is_half_written_or_of_another_version_is_no_verdict(content: bytes) -> None:
    path = gate.keep(verdict())
    path.write_bytes(content)
    assert gate.read(path) is None
    gate.keep(verdict())
    assert gate.read(path) == verdict()


def test_a_link_a_pipe_and_a_file_that_others_may_write_are_no_verdict(tmp_path: Path) -> None:
    path = gate.keep(verdict())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(path.read_bytes())
    path.chmod(0o666)
    assert gate.read(path) is None
    path.unlink()
    path.symlink_to(elsewhere)
    assert gate.read(path) is None
    path.unlink()
    os.mkfifo(path)
    assert gate.read(path) is None


def test_a_whole_run_is_kept_and_one_that_was_cut_short_is_not() -> None:
    gate.keep_run(report(row("matmul")), None, None)
    (path,) = Path(os.environ["ENVCHECK_HOME"]).glob("gate/*")
    kept = gate.read(path)
    assert kept is not None
    assert (kept.status, kept.subject.state) == ("pass", "sha256:1")
    path.unlink()
    gate.keep_run(report(row("matmul"), ended=""), None, None)
    assert not path.exists()


def test_an_environment_in_which_a_package_was_installed_is_another_one(tmp_path: Path) -> None:
    packages = tmp_path / "venv/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir()
    python.touch()
    before = fingerprint(python)
    assert fingerprint(python) == before
    (packages / "torch").mkdir()
    assert fingerprint(python) != before


def test_the_driver_and_its_gpus_are_read_off_the_kernel_module(tmp_path: Path) -> None:
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26 01:46:33 UTC 2025\n"
    (tmp_path / "version").write_text(line)
    (tmp_path / "gpus/0000:01:00.0").mkdir(parents=True)
    (tmp_path / "gpus/0000:02:00.0").mkdir()
    here = this_boot({"SLURMD_NODENAME": "n7"}, tmp_path)
    assert (here.node, here.driver, here.gpus) == ("n7", "570.124.06", 2)
    assert this_boot({}, tmp_path / "none").driver == ""
    assert PYTHON.kind == "python"
