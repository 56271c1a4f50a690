"""The training example: a model from the mirror, two ranks on a CPU, watched, killed and resumed to the same bits."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from envcheck.watch.run_command import below
from tests.conftest import train_python
from tests.http_server import Servers
from tests.mirrors.hub.conftest import COMMIT, REPO, Hub, Repo

SCRIPT = Path(__file__).parents[2] / "docs/examples/train.py"
pytestmark = pytest.mark.torch
MAKE_MODEL = """
import sys
from transformers import GPT2Config, GPT2LMHeadModel
config = GPT2Config(vocab_size=32, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
GPT2LMHeadModel(config).save_pretrained(sys.argv[1])
"""
READ_CHECKPOINTS = """
import json, sys, torch
one, other = [torch.load(path, weights_only=True) for path in sys.argv[1:]]
equal = all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])
print(json.dumps([[one["step"], other["step"]], equal]))
"""


def python(*words: str) -> str:
    return subprocess.run([train_python(), *words], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def cache(servers: Servers, tmp_path: Path) -> Path:
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
    watch = [sys.executable, "-m", "envcheck", "watch", "-o", f"{output}.json", "--"]
    torchrun = [str(train_python()), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["--model", f"{REPO}@{COMMIT}", "--steps", str(steps), "--save-every", "5", "--output", str(output)]
    return [*watch, *torchrun, str(SCRIPT), *words]


def ranks(root: int) -> list[int]:
    """Return the processes of the script itself, without those of the launcher."""
    found = []
    for pid in below(root):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            found += [pid] if str(SCRIPT).encode() in words and b"torch.distributed.run" not in words else []
    return found


def test_a_killed_run_resumes_to_the_weights_that_it_had_reached(cache: Path, tmp_path: Path) -> None:
    """The run is killed some steps after a checkpoint; from that checkpoint a second run must get to the same bits."""
    offline = {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **offline}
    killed, resumed = tmp_path / "killed/checkpoint.pt", tmp_path / "resumed/checkpoint.pt"
    first = subprocess.Popen(command(killed.parent, 1_000_000), env=environment, stdout=subprocess.PIPE, text=True)
    losses = []
    with first.stdout or io.StringIO() as lines:
        for line in lines:
            losses.append(float(line.split()[3].rstrip(",")))
            if len(losses) == 1:
                resumed.parent.mkdir()
                shutil.copy(killed, resumed)
            elif len(losses) >= 5:
                break
        assert losses[-1] < losses[0]
        for pid in ranks(first.pid):
            os.kill(pid, signal.SIGKILL)
        assert first.wait(60) == 1
    [early, late], _ = json.loads(python("-c", READ_CHECKPOINTS, str(resumed), str(killed)))
    assert early < late
    words = command(resumed.parent, late)
    second = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert f"step {late}: loss " in second.stdout
    assert f"started at step {early}\n" in second.stdout
    assert json.loads(python("-c", READ_CHECKPOINTS, str(resumed), str(killed))) == [[late, late], True]
    assert list((resumed.parent / "tensorboard").glob("events.*"))
    for document in (tmp_path / "killed.json", tmp_path / "resumed.json"):
        assert max(sample["processes"] for sample in json.loads(document.read_text())["processes"]) >= 3
