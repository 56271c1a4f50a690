"""The training example of docs/: two ranks on a CPU, watched, killed, resumed, and equal to a run without a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envcheck.watch.process_tree import below
from tests.conftest import train_python

SCRIPT = Path(__file__).parents[2] / "docs/examples/train.py"
pytestmark = pytest.mark.torch


def command(folder: Path) -> list[str]:
    """Return the command of a run into a folder."""
    launch = [str(train_python()), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*launch, str(SCRIPT), "--steps", "60", "--save-every", "10", "--folder", str(folder)]


def weights(folder: Path) -> str:
    """Return the step and the weights of a checkpoint as text."""
    code = "import torch, sys; s = torch.load(sys.argv[1]); print(s['step'], [t.tolist() for t in s['model'].values()])"
    read = [str(train_python()), "-c", code, str(folder / "checkpoint.pt")]
    return subprocess.run(read, capture_output=True, text=True, check=True).stdout


def test_a_killed_run_goes_on_and_ends_with_the_weights_of_one_that_was_not(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    first = subprocess.Popen(command(killed), env=environment, start_new_session=True, stdout=subprocess.DEVNULL)
    while not (killed / "checkpoint.pt").exists():
        assert first.poll() is None
        time.sleep(0.01)
    for pid in below(first.pid):
        os.kill(pid, signal.SIGKILL)
    first.wait()
    resumed = subprocess.run(command(killed), env=environment, capture_output=True, text=True, check=True).stdout
    assert "step 60:" in resumed
    assert "from step 0" not in resumed
    watch = [sys.executable, "-m", "envcheck", "watch", "-o", str(tmp_path / "watch.json"), "--", *command(whole)]
    watched = subprocess.run(watch, env=environment, capture_output=True, text=True, check=True)
    losses = [float(line.split()[3].rstrip(",")) for line in watched.stdout.splitlines() if line.startswith("step ")]
    assert losses[-1] < losses[0] / 2
    assert weights(killed) == weights(whole)
    assert list((whole / "tensorboard").glob("events.*"))
    document = json.loads((tmp_path / "watch.json").read_text())
    assert max(sample["processes"] for sample in document["processes"]) >= 3
