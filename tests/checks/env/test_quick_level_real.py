"""Real processes of a real torch, once honest and once sabotaged, through the runner that users have."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.runner.planning.discover import discover

Outcomes = Callable[[str], dict[str, Any]]
SABOTAGE = Path(__file__).parents[1] / "sabotage"
HONEST = ("matmul", "amp", "ddp", "all-reduce", "all-reduce-bandwidth", "shm")
LIES = {
    "sum-wrong-after": ("fail", "on rank 1 alone: rank 1, index 12345"),
    "sum-wrong-before": ("fail", "on every rank: rank 0, index 7"),
    "sum-swapped": ("fail", "float32 sum is wrong on rank 1 alone"),
    "not-averaged": ("fail", "step 0: the gradients are not those of one process"),
    "slightly-off": ("fail", "step 0: the gradients are not those of one process"),
    "nan-gradient": ("fail", "rank 1, step 0: the gradients are not those of one process"),
    "drifts": ("fail", "replicas differ when training ended"),
    "no-autocast": ("fail", "linear, bfloat16: gives torch.float32 under autocast"),
    "scaler-stuck": ("fail", "scaler: grows after clean steps: the scale of clean steps"),
    "wrong-product": ("fail", "rank 1 on cpu: the float32 product"),
    "nan-product": ("fail", "rank 1 on cpu: the float32 product is off by inf"),
    "does-nothing": ("fail", "what all-reduce delivered is wrong"),
}


def test_every_sabotage_told_of_is_there() -> None:
    lies = {path.stem.replace("_", "-") for path in (SABOTAGE / "env").glob("*.py")}
    assert {*LIES} <= lies


@pytest.mark.torch
@pytest.mark.parametrize("check", HONEST)
def test_an_honest_environment_passes(outcomes: Outcomes, check: str) -> None:
    assert outcomes(check)["status"] == "pass", outcomes(check)
    assert outcomes(check)["value"] is not None


@pytest.mark.torch
@pytest.mark.parametrize("lie", LIES)
def test_each_lie_fails_naming_its_culprit(outcomes: Outcomes, lie: str) -> None:
    status, said = LIES[lie]
    assert outcomes(lie)["status"] == status, outcomes(lie)
    assert said in outcomes(lie)["summary"]
    assert outcomes(lie)["remedy"]


@pytest.mark.torch
def test_the_64_mb_that_docker_gives_fail_with_the_remedy(torch_python: Path, tmp_path: Path) -> None:
    shrink = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"', "sh"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*shrink, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs the right to mount a small /dev/shm over its own")
    output = tmp_path / "report.json"
    command = [sys.executable, "-m", "envcheck", "--quiet", "run", "--python", str(torch_python), "--only", "shm"]
    done = subprocess.run([*shrink, *command, "--output", str(output)], capture_output=True, check=False)
    [row] = json.loads(output.read_text())["outcomes"]
    assert (done.returncode, row["status"], row["value"]) == (1, "fail", 64 << 20)
    assert "--shm-size" in row["remedy"]


def test_a_sites_own_checks_are_found_by_a_relative_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SABOTAGE.parent)
    assert "drifts" in {found.id for found in discover(Path(SABOTAGE.name))}
