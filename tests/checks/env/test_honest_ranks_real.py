"""What honest ranks of a real torch come to, and what little shared memory does. How ranks lie is in tests/faults."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.runner.planning import discover

Outcomes = Callable[[str], dict[str, Any]]
QUICK = ("kernels", "amp", "ddp", "all-reduce", "all-reduce-bandwidth", "shm")
STANDARD = ("collectives", "checkpoint", "dataloader")
TRAIN = ("trainer",)
FULL = ("fingerprint", "compiled", "fsdp", "straggler")
SPEEDS = ("all-reduce-bandwidth", "collective-bandwidth")


@pytest.mark.torch
@pytest.mark.parametrize("check", [*QUICK, *STANDARD, *TRAIN, *FULL])
def test_an_honest_environment_passes(outcomes: Outcomes, check: str) -> None:
    assert outcomes(check)["status"] == "pass", outcomes(check)
    assert outcomes(check)["value"] is not None


@pytest.mark.torch
@pytest.mark.parametrize("check", SPEEDS)
def test_honest_ranks_report_what_they_measured_and_are_not_judged_on_a_cpu(outcomes: Outcomes, check: str) -> None:
    actual = outcomes(check)
    assert (actual["status"], actual["limit"]) == ("pass", None), actual
    assert "over gloo" in actual["summary"]
    assert "reported, not judged" in actual["summary"]
    assert 0 <= actual["value"] < 1000


@pytest.mark.torch
def test_every_collective_has_its_curve_its_latency_and_the_seconds_of_each_rank(outcomes: Outcomes) -> None:
    details = outcomes("collective-bandwidth")["details"]
    assert {"all-gather", "reduce-scatter", "all-to-all", "broadcast", "send/recv"} == {*details["curves"]}
    for name, curve in details["curves"].items():
        assert [point["bytes"] for point in curve] == [1 << 20, 1 << 22, 1 << 24], name
        assert all(len(point["rank_seconds"]) == 2 and point["busbw"] > 0 for point in curve), name
        assert [at["bytes"] for at in details["latency"][name]] == [8, 512, 4096, 32768]
        assert all(0 < at["p50"] <= at["p99"] for at in details["latency"][name])
    [*one] = outcomes("all-reduce-bandwidth")["details"]["curve"]
    assert all(point["busbw"] == pytest.approx(point["algbw"]) for point in one)


@pytest.mark.torch
@pytest.mark.parametrize(("check", "message"), [("shm", ""), ("dataloader", "the loader broke")])
def test_the_64_mb_that_docker_gives_fail_with_the_remedy(
    torch_python: Path, tmp_path: Path, check: str, message: str
) -> None:
    shrink = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"', "sh"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*shrink, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs the right to mount a small /dev/shm over its own")
    output = tmp_path / "report.json"
    command = [sys.executable, "-m", "envcheck", "--quiet", "run", "--python", str(torch_python), "--only", check]
    completed = subprocess.run([*shrink, *command, "--output", str(output)], capture_output=True, check=False)
    [row] = json.loads(output.read_text())["outcomes"]
    assert (completed.returncode, row["status"]) == (1, "fail"), row
    assert check != "shm" or row["value"] == 64 << 20
    assert message in row["summary"]
    assert "--shm-size" in row["remedy"]


def test_a_sites_own_checks_are_found_by_a_relative_path(liars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(liars.parent)
    assert "drifts" in {actual.id for actual in discover(Path(liars.name))}
