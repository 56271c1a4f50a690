"""What a site demands of measured values: on both sides of each bound, and never met by what was not measured."""

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, View
from envcheck.checks.env import disk_read
from envcheck.errors import ConfigError
from envcheck.node.snapshot import Signal, Snapshot
from envcheck.runner import requirements
from envcheck.runner.schema import OutcomeRow
from tests.builders import row
from tests.tables import each

ROOT = Path(__file__).parents[2]
SPEEDS = {"host to GPU": 51.0, "GPU to host": 46.0, "HBM copy": 2900.0, "bfloat16": 700.0}
GPU = {"is_cuda": True, "host": "node1", "values": SPEEDS}
SLOW = {**GPU, "values": {**SPEEDS, "GPU to host": 20.0}}
CPU = {"is_cuda": False, "host": "node1"}


def outcome(identity: str, *ranks: Any, status: Any = "pass", value: Any = None) -> OutcomeRow:
    return row(identity, status, "as it was", value=value, ranks=[*ranks])


ODD: list[Any] = [None, 1, "x", [], {}, {"values": 1}, {"matrix": [1]}, {"latency": {"all-reduce": 1}}]
BAD: list[Any] = ["x", True, -1.0, math.nan, None]
NOTHING = [
    None,
    outcome("x", GPU, value=9.0, status="skip"),
    outcome("x", GPU, value=9.0, status="error"),
    outcome("x"),
]
NOTHING += [outcome("x", odd) for odd in ODD]
NOTHING += [outcome("x", {**GPU, "values": dict.fromkeys(SPEEDS, bad)}, value=bad) for bad in BAD]


def small(host: str, seconds: Any) -> dict[str, Any]:
    return {"is_cuda": True, "host": host, "latency": {"all-reduce": [{"bytes": 8, "p50": seconds, "p99": 1.0}]}}


def pairs(*matrix: list[Any]) -> dict[str, Any]:
    return {"is_cuda": True, "matrix": list(matrix)}


def demand(name: str, bound: float) -> requirements.Demand:
    [known] = [one for one in requirements.MEASURED if one.id == f"require-{name}"]
    return known._replace(limit=dataclasses.replace(known.limit, value=bound, source="our contract"))


NAMES = ("pcie-speed", "hbm-speed", "bf16", "peer-speed", "all-reduce-speed", "disk-read", "network-latency")
CODES = {PASS: "", FAIL: "require.not-met", ERROR: "require.unmeasured"}


@each(
    ("name", "bound", "row", "status", "word"),
    [
        ("pcie-speed", 46, outcome("memory-bandwidth", GPU, GPU), PASS, "46 GB/s"),
        ("pcie-speed", 46.1, outcome("memory-bandwidth", GPU, GPU), FAIL, "46 GB/s"),
        ("pcie-speed", 21, outcome("memory-bandwidth", GPU, SLOW, GPU), FAIL, "20 GB/s"),
        ("pcie-speed", 21, outcome("memory-bandwidth", GPU, SLOW, status="warn"), FAIL, "20 GB/s"),
        ("hbm-speed", 2900, outcome("memory-bandwidth", GPU), PASS, "2900"),
        ("hbm-speed", 2901, outcome("memory-bandwidth", GPU), FAIL, "2900"),
        ("bf16", 700, outcome("gemm-throughput", GPU), PASS, "700"),
        ("bf16", 701, outcome("gemm-throughput", GPU), FAIL, "700"),
        ("peer-speed", 30, outcome("peer-bandwidth", pairs([None, 40.0], [30.0, None])), PASS, "30 GB/s"),
        ("peer-speed", 31, outcome("peer-bandwidth", pairs([None, 40.0], [30.0, None])), FAIL, "30 GB/s"),
        ("peer-speed", 1, outcome("peer-bandwidth", pairs([None, None], [30.0, None])), ERROR, "measured no"),
        ("all-reduce-speed", 400, outcome("all-reduce-bandwidth", GPU, GPU, value=400.0), PASS, "400 GB/s"),
        ("all-reduce-speed", 401, outcome("all-reduce-bandwidth", GPU, GPU, value=400.0), FAIL, "400 GB/s"),
        ("all-reduce-speed", 1, outcome("all-reduce-bandwidth", CPU, CPU, value=400.0), ERROR, "measured no"),
        ("disk-read", 1, outcome("disk-read", {"rank": 0}, value=1.0), PASS, "1 GB/s"),
        ("disk-read", 1.1, outcome("disk-read", {"rank": 0}, value=1.0, status="warn"), FAIL, "1 GB/s"),
        ("network-latency", 20, outcome("all-reduce-bandwidth", small("a", 1e-5), small("b", 2e-5)), PASS, "20 us"),
        ("network-latency", 19, outcome("all-reduce-bandwidth", small("a", 1e-5), small("b", 2e-5)), FAIL, "20 us"),
        ("network-latency", 99, outcome("all-reduce-bandwidth", small("a", 1e-5), small("a", 1e-5)), ERROR, "no small"),
    ],
)
def test_each_bound_on_both_sides(name: str, bound: float, row: OutcomeRow, status: str, word: str) -> None:
    expected = demand(name, bound)
    actual = requirements.hold_demands([expected], {row.id: row})[f"require-{name}"]
    assert (actual.status, actual.code) == (status, CODES[status]), actual
    assert word in actual.summary
    assert bool(actual.remedy) == (status != PASS)
    if status != ERROR:
        assert actual.limit is not None
        assert (actual.limit.value, actual.limit.source) == (bound, "our contract")


@each("name", NAMES)
@each("row", NOTHING)
def test_what_was_not_measured_is_never_met(name: str, row: OutcomeRow | None) -> None:
    expected = demand(name, 1e-9 if name != "network-latency" else 1e9)
    rows = {} if row is None else {expected.of: row}
    [actual] = requirements.hold_demands([expected], rows).values()
    assert actual.status == ERROR, actual
    assert expected.of in actual.remedy


def test_every_measured_field_of_a_file_becomes_its_demand(tmp_path: Path) -> None:
    text = "[gpu]\npcie_gb_s = 1\nhbm_gb_s = 2\nbf16_tflops = 3\npeer_gb_s = 4\nall_reduce_gb_s = 5\n"
    text += "[host]\ndisk_read_gb_s = 6\n[network]\nlatency_us = 7\n"
    (tmp_path / "ours.toml").write_text(text)
    actual = requirements.measured_demands(requirements.read(str(tmp_path / "ours.toml")))
    assert {one.id.removeprefix("require-") for one in actual} == set(NAMES)
    assert sorted(one.limit.value for one in actual) == [1, 2, 3, 4, 5, 6, 7]
    assert requirements.measured_demands(requirements.Requirements()) == []


GB = 10**9
DATA = {
    "point": "/data",
    "kind": "lustre",
    "written": GB,
    "writing": 0.5,
    "read": GB,
    "seconds": 0.25,
    "same": True,
    "direct": True,
}


@each(
    "found, status, words",
    [
        (DATA, PASS, "/data: lustre|read 4 GB/s|write 2 GB/s"),
        ({**DATA, "point": "/"}, FAIL, "nothing is mounted there"),
        ({**DATA, "kind": "nfs4"}, FAIL, "/data: nfs4"),
        ({**DATA, "seconds": 0.51}, FAIL, "read 1.9608 GB/s"),
        ({**DATA, "writing": 1.1}, FAIL, "write 0.9091 GB/s"),
        ({**DATA, "same": False}, FAIL, "other bytes"),
        ({**DATA, "direct": False}, ERROR, "4 GB/s may have come out of memory"),
        ({**DATA, "direct": False, "seconds": 0.51}, FAIL, "read 1.9608 GB/s"),
        ({**DATA, "direct": False, "seconds": 1e6}, FAIL, "read 0 GB/s"),
        ({**DATA, "seconds": 0.001}, ERROR, "1000 GB/s may have come out of memory"),
        ({"point": "/data", "kind": "lustre", "free": 5}, ERROR, "too little is free (5 B)"),
        ({**DATA, "writing": math.nan}, ERROR, "no write was measured"),
        ({}, ERROR, "read as {}"),
        (None, ERROR, "no answer in 60 s"),
    ],
)
def test_a_mount_is_held_to_its_type_its_bytes_and_its_speeds(found: Any, status: str, words: str) -> None:
    demand = requirements.MountDemand(path="/data", type="lustre", read_gb_s=2, write_gb_s=1)
    (check,) = requirements.node_checks(requirements.Requirements(mounts=[demand], name="ours"))
    signal = Signal(reason="no answer in 60 s") if found is None else Signal(found)
    outcome = check.judge(View(Snapshot(signals={"mount.0": signal})))
    assert (outcome.status, bool(outcome.remedy)) == (status, status != PASS)
    said = " ".join(one.summary for one in outcome.findings or (outcome,))
    assert all(word in said for word in words.split("|")), said


def test_a_mount_that_falls_short_is_measured_again_and_the_faster_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    demand = requirements.MountDemand(path="/data", read_gb_s=2, write_gb_s=1)
    slow = {**DATA, "seconds": 1.0, "writing": 0.5}
    for found, expected in (
        ([DATA], DATA),
        ([slow, {**DATA, "writing": 2.0}], DATA),
        ([slow, {**slow, "seconds": 1.5, "same": False}], {**slow, "same": False}),
        ([slow, {}], slow),
    ):
        told = iter(found)
        monkeypatch.setattr(requirements, "_read_mount", lambda _mount, told=told: dict(next(told)))
        assert requirements.with_mounts([demand], Snapshot).signal("mount.0").value == expected
        assert next(told, None) is None


def test_a_mount_is_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_read, "MOST", disk_read.LEAST)
    monkeypatch.setattr(disk_read, "mounted", lambda _where: ("/", "ext4"))
    here, gone = (requirements.MountDemand(path=str(tmp_path / at), write_gb_s=1) for at in ("", "gone"))
    snapshot = requirements.with_mounts([here, gone], Snapshot)
    measured = snapshot.signal("mount.0").value
    assert (measured["same"], measured["written"]) == (True, disk_read.LEAST)
    assert min(measured["writing"], measured["seconds"]) > 0
    assert "No such file or directory" in str(snapshot.signal("mount.1").reason)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    (tmp_path / "mounts").write_text("/dev/a / ext4 rw\nauto /data autofs rw\nserver:/d /data nfs4 rw\n")
    assert disk_read.mounted("/data/here", str(tmp_path / "mounts")) == ("/data", "nfs4")
    for wrong in ('path = "data"', 'path = "/data"\nread_gb_s = inf', 'path = "/data"\nspeed = 1'):
        (tmp_path / "ours.toml").write_text(f"[[mounts]]\n{wrong}\n")
        with pytest.raises(ConfigError, match="mounts"):
            requirements.read(str(tmp_path / "ours.toml"))


@each("number", ["nan", "inf", "-1", "0", "true", '"1"'])
@each("field", ["gpu.pcie_gb_s", "host.ram_gib", "network.ports"])
def test_a_demand_of_no_number_is_refused(tmp_path: Path, field: str, number: str) -> None:
    table, _, key = field.partition(".")
    (tmp_path / "ours.toml").write_text(f"[{table}]\n{key} = {number}\n")
    with pytest.raises(ConfigError, match=key):
        requirements.read(str(tmp_path / "ours.toml"))


def test_the_command_holds_a_run_against_what_was_measured_and_what_was_not(tmp_path: Path) -> None:
    (tmp_path / "ours.toml").write_text("[host]\ndisk_read_gb_s = 0.000001\n[gpu]\npcie_gb_s = 1\n")
    command = [sys.executable, "-m", "envcheck", "--quiet", "run", "--python", sys.executable, "--only", "open-files"]
    command += ["--requirements", "ours.toml", "--output", "r.json"]
    completed = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}, capture_output=True, check=False
    )
    rows = {row["id"]: row for row in json.loads((tmp_path / "r.json").read_text())["outcomes"]}
    assert completed.returncode == 1  # no GPU, and one was demanded
    assert (rows["require-disk-read"]["status"], rows["require-pcie-speed"]["status"]) == (ERROR, ERROR)
    assert "was not run" in rows["require-disk-read"]["summary"]
    assert "--only disk-read" in rows["require-disk-read"]["remedy"]


def test_where_python_reads_no_toml_a_run_needs_none() -> None:
    """As in an image with Python 3.10 and without tomli."""
    code = "import sys; sys.modules.update(tomllib=None, tomli=None); from envcheck.cli import cli; cli()"
    command = [sys.executable, "-c", code, "--quiet", "run", "--only", "open-files", "--redact"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (completed.returncode in {0, 1}, completed.stderr) == (True, "")
    completed = subprocess.run([*command, "--requirements=hgx-h100"], capture_output=True, text=True, check=False)
    assert "ConfigError: this image's Python 3.10 reads no TOML; run `envcheck run --image`" in completed.stderr
