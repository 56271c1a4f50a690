"""The training example: a model from the mirror, two ranks on a CPU, watched, killed, resumed, equal to a sound run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from envcheck.watch.process_tree import below
from tests.conftest import train_python
from tests.http_server import Servers
from tests.mirrors.hub.conftest import COMMIT, REPO, Hub, Repo
from tests.waiting import eventually

SCRIPT = Path(__file__).parents[2] / "docs/examples/train.py"
pytestmark = pytest.mark.torch
MAKE_MODEL = """
import sys
from transformers import GPT2Config, GPT2LMHeadModel
config = GPT2Config(vocab_size=32, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
GPT2LMHeadModel(config).save_pretrained(sys.argv[1])
"""
READ_CHECKPOINT = """
import json, sys, torch
paths = [torch.load(path, weights_only=True) for path in sys.argv[1:]]
equal = all(torch.equal(paths[0]["model"][name], other["model"][name]) for other in paths for name in other["model"])
print(json.dumps([[state["step"] for state in paths], equal]))
"""


def python(*words: str) -> str:
    return subprocess.run([train_python(), *words], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def cache(servers: Servers, tmp_path: Path) -> Path:
    """Return a Hugging Face cache that `envcheck fetch` filled from a mirror."""
    python("-c", MAKE_MODEL, str(tmp_path / "model"))
    files = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    hub = servers.start(Hub())
    hub.repos[f"models/{REPO}"] = Repo(files, frozenset({"model.safetensors"}))
    profile = tmp_path / "site.yaml"
    profile.write_text(json.dumps({"hf": {"endpoint": hub.url, "trusted": hub.url}}))
    fetch = [sys.executable, "-m", "envcheck", "fetch", "--model", f"{REPO}@{COMMIT}", "--mirror", str(profile)]
    subprocess.run([*fetch, "-o", str(tmp_path / "hub")], check=True)
    return tmp_path / "hub"


def command(output: Path, steps: int) -> list[str]:
    """Return the command that trains under `envcheck watch`."""
    watch = [sys.executable, "-m", "envcheck", "watch", "-o", f"{output}.json", "--"]
    torchrun = [str(train_python()), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["--model", REPO, "--steps", str(steps), "--save-every", "5", "--output", str(output)]
    return [*watch, *torchrun, str(SCRIPT), *words]


def ranks(root: int) -> list[int]:
    """Return the processes of the script itself, without those of the launcher."""
    found = []
    for pid in below(root):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            found += [pid] if str(SCRIPT).encode() in words and b"torch.distributed.run" not in words else []
    return found


def test_a_killed_run_resumes_and_ends_with_the_weights_of_one_that_was_not_killed(cache: Path, tmp_path: Path) -> None:
    offline = {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **offline}
    killed, sound = tmp_path / "killed", tmp_path / "sound"
    first = subprocess.Popen(command(killed, 1_000_000), env=environment, stdout=subprocess.DEVNULL)
    assert eventually(lambda: first.poll() is None and (killed / "checkpoint.pt").exists(), wanted=True)
    for pid in ranks(first.pid):
        os.kill(pid, signal.SIGKILL)
    assert first.wait(60) == 1
    [reached], _ = json.loads(python("-c", READ_CHECKPOINT, str(killed / "checkpoint.pt")))
    steps = reached + 10
    for output in (killed, sound):
        run = subprocess.run(command(output, steps), env=environment, capture_output=True, text=True, check=True)
        started = reached if output == killed else 0
        assert f"started at step {started}" in run.stdout
        assert list((output / "tensorboard").glob("events.*"))
        processes = json.loads(Path(f"{output}.json").read_text())["processes"]
        assert max(sample["processes"] for sample in processes) >= 3
    losses = [float(line.split()[3].rstrip(",")) for line in run.stdout.splitlines() if line.startswith("step ")]
    assert losses[-1] < losses[0] - 0.5
    checkpoints = [str(output / "checkpoint.pt") for output in (killed, sound)]
    assert json.loads(python("-c", READ_CHECKPOINT, *checkpoints)) == [[steps, steps], True]
