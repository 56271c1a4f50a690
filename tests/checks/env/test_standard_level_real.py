"""Level standard and full with real processes of a real torch, once honest and once sabotaged."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Outcomes = Callable[[str], dict[str, Any]]
SABOTAGE = Path(__file__).parents[1] / "sabotage"
HONEST = (
    "collectives",
    "ddp-no-sync",
    "ddp-hooks",
    "checkpoint",
    "dataloader",
    "convolution",
    "attention",
    "fingerprint",
    "compiled",
    "fsdp",
    "straggler",
)
LIES = {
    "gather-misplaced": "all-gather is wrong on rank 1 alone: rank 1, all-gather ",
    "recv-flips-a-bit": "send/recv (batch) is wrong on rank 0 alone: rank 0, send/recv (batch) int32",
    "scatter-forgets": "reduce-scatter is wrong on rank 1 alone",
    "no-sync-sends": "rank 0, step 0: gradients under no_sync are not the rank's own sum",
    "no-sync-stays": "rank 0, step 0: the accumulated gradients are not those of one process",
    "hook-rounds-apart": "replicas differ after training under the fp16 hook",
    "checkpoint-loses-a-buffer": "the checkpoint lacks 1.running_mean",
    "checkpoint-random-again": "the resumed training is another one from step 4 on",
    "optimizer-starts-afresh": "the resumed training is another one from step 5 on",
    "loader-reuses-pages": "item 9, element 5000 arrived as -1",
    "loader-hides-a-death": "a killed worker was not reported",
    "convolution-shifts": "rank 1 on cpu: the output of a float32 convolution is off by",
    "attention-sees-the-future": "rank 1 on cpu: math float32 attention is off by",
    "corrupts-silently": "rank 1 on cpu: repeats [1] gave other bits",
    "corrupts-always": "ranks 0 (cpu) and 1 (cpu) gave other bits than one another, every time",
    "compiles-nothing": "torch.compile wrote no code: the model ran in eager mode",
    "compiler-breaks": "torch.compile broke: ",
    "shards-train-apart": "rank 1: its shard of the weights is off by",
    "powersgd-coarse": "rank 0, powersgd hook, step 2: the gradient is off by",
}


def test_every_sabotage_is_run_by_a_test() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*real.py"))
    lies = [path.stem.replace("_", "-") for path in (SABOTAGE / "env").glob("*.py")]
    assert lies
    assert [lie for lie in lies if f'"{lie}"' not in tests] == []


@pytest.mark.torch
@pytest.mark.parametrize("check", HONEST)
def test_an_honest_environment_passes(outcomes: Outcomes, check: str) -> None:
    assert outcomes(check)["status"] == "pass", outcomes(check)
    assert outcomes(check)["value"] is not None


@pytest.mark.torch
def test_a_rank_that_takes_three_times_as_long_is_named(outcomes: Outcomes) -> None:
    slow = outcomes("slow-rank")
    assert slow["status"] == "warn", slow
    assert "rank 1 (cpu of " in slow["summary"]
    assert slow["value"] > 1.25


@pytest.mark.torch
@pytest.mark.parametrize("lie", LIES)
def test_each_lie_fails_naming_its_culprit(outcomes: Outcomes, lie: str) -> None:
    assert outcomes(lie)["status"] == "fail", outcomes(lie)
    assert LIES[lie] in outcomes(lie)["summary"]
    assert outcomes(lie)["remedy"]


@pytest.mark.torch
def test_workers_die_in_the_64_mb_that_docker_gives_and_the_remedy_is_named(torch_python: Path, tmp_path: Path) -> None:
    shrink = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"', "sh"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*shrink, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs the right to mount a small /dev/shm over its own")
    output = tmp_path / "report.json"
    command = [sys.executable, "-m", "envcheck", "--quiet", "run", "--python", str(torch_python)]
    command += ["--only", "dataloader", "--output", str(output)]
    done = subprocess.run([*shrink, *command], capture_output=True, check=False)
    [row] = json.loads(output.read_text())["outcomes"]
    assert (done.returncode, row["status"]) == (1, "fail"), row
    assert "the loader broke" in row["summary"]
    assert "--shm-size" in row["remedy"]
