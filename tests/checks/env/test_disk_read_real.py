"""Reading a disk, for real, and what is made of each figure."""

import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, Rank, View
from envcheck.checks.env import disk_read
from envcheck.node.snapshot import Snapshot
from tests.processes import checked
from tests.tables import each

ROOT = Path(__file__).parents[3]
MIB = 1 << 20
GIGA = 10**9
READ = {"rank": 0, "kind": "ext4", "here": True, "written": GIGA, "read": GIGA, "direct": True, "same": True}


def judged(**measured: Any) -> Any:
    return disk_read.judge(View(Snapshot()), [{**READ, **measured}])


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the command in a directory of its own; it needs no torch."""
    here = tmp_path_factory.mktemp("work")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PWD": str(here)}
    rows = checked(sys.executable, here / "r.json", "--only", "disk-read", cwd=here, env=environment)[1]
    assert [path.name for path in here.iterdir()] == ["r.json"]
    return dict(rows)


def test_an_honest_disk_is_read_past_the_cache(outcomes: dict[str, Any]) -> None:
    row = outcomes["disk-read"]
    if row["status"] == SKIP:
        pytest.skip(f"no disk here: {row['summary']}")
    assert row["status"] in (PASS, WARN), row
    [measured] = row["ranks"]
    assert measured["same"] is True
    assert 0 < measured["read"] <= measured["written"] <= 1024 * MIB
    assert row["unit"] == "GB/s"


@each(
    "measured, status, word",
    [
        ({"seconds": 1.0}, PASS, "1.00 GB/s from the directory it was started in (ext4; 954 MiB, O_DIRECT)"),
        ({"seconds": 1.001}, WARN, "1.00 GB/s"),
        ({"seconds": 0.5, "writing": 59.0}, PASS, "2.00 GB/s"),
        ({"seconds": 0.5, "writing": 61.0}, WARN, "8 MiB take 0.5 s until they are written for good"),
        ({"seconds": 0.5, "direct": False}, PASS, "page cache dropped"),
        ({"seconds": 0.5, "kind": "overlay", "here": False}, PASS, "the temporary directory (overlay, the container's"),
        ({"seconds": 1 / 126.1}, ERROR, "came out of memory"),
        ({"seconds": 1.0, "same": False}, FAIL, "other bytes"),
        ({"seconds": 1.0, "same": None}, FAIL, "other bytes"),
        ({"seconds": 0.0}, ERROR, "not measured"),
        ({"seconds": math.nan}, ERROR, "not measured"),
        ({"seconds": True, "read": True}, ERROR, "not measured"),
        ({"seconds": 1.0, "read": GIGA + 1}, ERROR, "not measured"),
        ({}, ERROR, "not measured"),
        ({"kind": "tmpfs", "free": GIGA}, SKIP, "tmpfs: memory"),
        ({"free": 640 * MIB - 1}, SKIP, "too little is free"),
        ({"free": 640 * MIB}, ERROR, "not measured"),
    ],
)
def test_each_figure_on_both_sides(measured: dict[str, Any], status: str, word: str) -> None:
    outcome = judged(**measured)
    assert outcome.status == status, outcome
    assert word in outcome.summary
    assert disk_read.judge(View(Snapshot()), []).status == ERROR


def test_a_file_system_without_o_direct_is_read_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(disk_read, "MOST", disk_read.LEAST)
    monkeypatch.setattr(disk_read, "mounted", lambda _where: ("/", "ext4"))
    monkeypatch.setattr(os, "O_DIRECT", 0)
    honest, calls = os.preadv, []

    def first_refused(*arguments: Any) -> int:
        calls.append(arguments)
        return refuse() if len(calls) == 1 else honest(*arguments)

    monkeypatch.setattr(os, "preadv", first_refused)
    monkeypatch.setenv("PWD", str(tmp_path))
    measured = disk_read.measure(Rank(0, 1, 0, "cpu", "gloo", str(tmp_path)))
    assert (measured["direct"], measured["same"]) == (False, True)
    assert measured["read"] == measured["written"] == disk_read.LEAST
    assert list(tmp_path.iterdir()) == []


def test_memory_and_a_full_disk_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PWD", str(tmp_path / "none"))
    rank = Rank(0, 1, 0, "cpu", "gloo", str(tmp_path))
    monkeypatch.setattr(disk_read, "mounted", lambda _where: ("/", "tmpfs"))
    assert "written" not in disk_read.measure(rank)
    monkeypatch.setattr(disk_read, "mounted", lambda _where: ("/", "ext4"))
    monkeypatch.setattr(disk_read, "LEAST", 1 << 62)
    assert "written" not in disk_read.measure(rank)
    assert disk_read.measure(rank)["here"] is False
