"""Real weights: what transformers wrote is fetched, and loaded without a network to the same outputs, to the bit."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.mirrors.fetch.request import TransferOptions
from envcheck.mirrors.hub import download as hub_download
from envcheck.mirrors.hub import revision as hub_revision
from envcheck.mirrors.net.client import Client
from tests.mirrors.hub.conftest import COMMIT, CONFIG, REPO, WORDS, Hub, Repo

pytestmark = [pytest.mark.tools, pytest.mark.torch]

# A model in shards, and below encoder/ another one in a single file: as pipelines of several models are laid out.
MADE = """
import hashlib, json, sys
sys.path.append(sys.argv[1])
import torch
from transformers import AutoTokenizer, BertConfig, BertModel
config, words, to = json.loads(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
given = torch.tensor([[2, 5, 6, 3]])
said = []
for at, seed, size in (("", 1, "1KB"), ("/encoder", 2, "1GB")):
    torch.manual_seed(seed)
    model = BertModel(BertConfig(**config)).eval()
    model.save_pretrained(to + at, max_shard_size=size)
    said.append(hashlib.sha256(model(given).last_hidden_state.detach().numpy().tobytes()).hexdigest())
print(json.dumps(said))
"""
LOADED = """
import hashlib, json, sys
sys.path.append(sys.argv[1])
import torch
from transformers import AutoModel, AutoTokenizer, pipeline
given = AutoTokenizer.from_pretrained("owner/tiny")("hello world", return_tensors="pt")
said = []
for where in ({}, {"subfolder": "encoder"}):
    found = AutoModel.from_pretrained("owner/tiny", **where).eval()(**given).last_hidden_state.detach()
    said.append(hashlib.sha256(found.numpy().tobytes()).hexdigest())
whole = pipeline("feature-extraction", model="owner/tiny")("hello world")
pinned = AutoTokenizer.from_pretrained("owner/tiny", revision=sys.argv[2])("hello world")["input_ids"]
print(json.dumps([said, [len(whole), len(whole[0]), len(whole[0][0])], pinned]))
"""


@pytest.fixture(scope="module")
def torch_site(torch_python: Path) -> str:
    """Return the directory that torch is in: the clients of a hub are in an environment without it."""
    words = [str(torch_python), "-c", "import torch; print(torch.__path__[0])"]
    output = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return str(Path(output.strip()).parent)


@pytest.fixture
def made(run_hub: Callable[..., str], torch_site: str, tmp_path: Path) -> tuple[dict[str, bytes], list[str]]:
    """Return the files of a repository with two real models, and what each of them says to the same words."""
    to = tmp_path / "made"
    message = run_hub(MADE, tmp_path / "none", torch_site, json.dumps(CONFIG), json.dumps(WORDS), str(to))
    files = {str(path.relative_to(to)): path.read_bytes() for path in to.rglob("*") if path.is_file()}
    files["vocab.txt"] = "\n".join(WORDS).encode() + b"\n"
    files["tokenizer_config.json"] = b'{"tokenizer_class": "BertTokenizer", "do_lower_case": true}'
    return files, json.loads(message)


def test_from_pretrained_has_the_very_weights_without_a_network(
    hubs: Callable[[], Hub],
    made: tuple[dict[str, bytes], list[str]],
    run_hub: Callable[..., str],
    torch_site: str,
    tmp_path: Path,
) -> None:
    files, message = made
    shards = {path for path in files if path.startswith("model-") and path.endswith(".safetensors")}
    assert len(shards) > 1
    assert {"model.safetensors.index.json", "encoder/model.safetensors", "encoder/config.json"} <= set(files)
    server = hubs()
    server.repos[f"models/{REPO}"] = Repo(files, frozenset({*shards, "encoder/model.safetensors"}))
    # The cache's directory is a link when it is filled, and elsewhere when it is read.
    real, link = tmp_path / "disk", tmp_path / "cache"
    real.mkdir()
    link.symlink_to(real)
    client = Client()
    expected = hub_download.read_revision(client, server.url, hub_revision.Reference("model", REPO, "main"))
    hub_download.fetch_revision(expected, [server.url], link, TransferOptions(client), lambda _: None)
    server.shutdown()
    moved = real.rename(tmp_path / "moved")
    document: list[Any] = json.loads(run_hub(LOADED, moved, torch_site, COMMIT, HF_HUB_OFFLINE="1"))
    assert document == [message, [1, 4, CONFIG["hidden_size"]], [2, 5, 6, 3]]
    assert (moved / "models--owner--tiny/snapshots" / COMMIT / "encoder/model.safetensors").is_symlink()
