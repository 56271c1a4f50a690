"""Checks of what GPUs compute and keep, with real processes of a real torch: how they lie is in tests/faults."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Outcomes = Callable[[str], dict[str, Any]]
HONEST = ("memory-patterns", "fp8-training")
ON_GPUS_ONLY = ("sustained-gemm", "training-load")

# A machine that gives the same bits on all ranks and in all repeats, and others in its next round.
OTHER_BITS_LATER = '''"""Other bits from the second round on."""
import os
from envcheck.checks.env import fingerprint
from envcheck.checks.support import training as _replicas
CHECK, judge = fingerprint.CHECK, fingerprint.judge
def measure(rank):
    honest, later = _replicas.digest, os.path.exists("{mark}" + str(rank.rank))
    _replicas.digest = lambda torch, tensors: ("later" if later else "") + honest(torch, tensors)
    measured = fingerprint.measure(rank)
    open("{mark}" + str(rank.rank), "w").close()
    return measured
'''


@pytest.mark.torch
@pytest.mark.parametrize("check", HONEST)
def test_an_honest_environment_passes(outcomes: Outcomes, check: str) -> None:
    row = outcomes(check)
    if check == "fp8-training" and row["status"] == "skip":
        assert "on a CPU" in row["summary"]
        return
    assert row["status"] == "pass", row
    assert row["value"] is not None


@pytest.mark.torch
@pytest.mark.parametrize("check", ON_GPUS_ONLY)
def test_what_a_cpu_cannot_show_is_skipped_with_its_reason(outcomes: Outcomes, check: str) -> None:
    assert outcomes(check)["status"] == "skip"
    assert "GPU" in outcomes(check)["summary"]


@pytest.mark.torch
def test_a_repeated_run_compares_the_bits_of_its_rounds(torch_python: Path, tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "other_bits_later.py").write_text(OTHER_BITS_LATER.format(mark=str(tmp_path / "mark")))
    output = tmp_path / "report.json"
    command = [sys.executable, "-m", "envcheck", "--quiet", "run", "--python", str(torch_python), "--nproc", "2"]
    command += ["--checks", str(tmp_path), "--only", "other-bits-later", "--repeat", "2", "--output", str(output)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    [row] = json.loads(output.read_text())["outcomes"]
    assert (completed.returncode, row["status"]) == (1, "fail"), row
    assert "rank 0 on cpu, rank 1 on cpu gave other bits than in the rounds before" in row["summary"]
    repeated = [sys.executable, "-m", "envcheck", "report", "judge", str(output), "--checks", str(tmp_path)]
    assert subprocess.run(repeated, capture_output=True, text=True, check=False).returncode == 1
