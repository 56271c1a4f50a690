"""A torch that computes something else: each sabotage is a failure of the check that uses what was sabotaged."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DRIVER = Path(__file__).parents[1] / "sabotage" / "torch" / "driver.py"
LEAST = 120


@pytest.fixture(scope="module")
def outcomes_of(torch_python: Path) -> dict[str, str]:
    """Return what the checks said of each sabotage, and of the sound torch."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ENVCHECK_SEED": "7"}
    command = [str(torch_python), "-B", str(DRIVER)]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=1700)
    assert completed.returncode == 0, completed.stderr
    document: dict[str, str] = json.loads(completed.stdout)
    return document


@pytest.mark.torch
@pytest.mark.timeout(1800)
def test_every_sabotage_fails_and_the_sound_torch_passes(outcomes_of: dict[str, str]) -> None:
    sound = {name: word for name, word in outcomes_of.items() if name.startswith("sound ")}
    assert {name: word for name, word in sound.items() if not word.startswith("pass")} == {}
    sabotaged = {name: word for name, word in outcomes_of.items() if name not in sound}
    assert len(sabotaged) >= LEAST
    assert {name: word for name, word in sabotaged.items() if not word.startswith("fail")} == {}
