"""A dataset by its revision: fetched and locked like a model, and read by its own library without a network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from envcheck.cli import cli
from tests.mirrors.hub.conftest import COMMIT, REPO, Hub, Repo

ROWS = [{"text": f"row {number}", "label": number % 2} for number in range(2000)]
TEST = [{"text": "unseen", "label": 1}]
CARD = """---
configs:
- config_name: default
  data_files:
  - {split: train, path: data/train-*.jsonl}
  - {split: test, path: data/test.jsonl}
---
"""
CONTENT = {
    "README.md": CARD.encode(),
    "data/train-00000-of-00002.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS[:1000]).encode(),
    "data/train-00001-of-00002.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS[1000:]).encode(),
    "data/test.jsonl": "".join(json.dumps(row) + "\n" for row in TEST).encode(),
}
LARGE = frozenset(path for path in CONTENT if "train" in path)
READ = f"""
import json, os
from huggingface_hub import snapshot_download
at = snapshot_download({REPO!r}, repo_type="dataset", local_files_only=True)
from datasets import load_dataset
found = load_dataset(at)
print(json.dumps([os.path.basename(at), {{name: list(rows) for name, rows in found.items()}}]))
"""


@pytest.fixture
def server(hubs: Callable[[], Hub]) -> Hub:
    """Return an endpoint that has a dataset, and a model of the same name."""
    hub = hubs()
    hub.repos[f"datasets/{REPO}"] = Repo(CONTENT, LARGE)
    return hub


def run(*words: str) -> Result:
    result = CliRunner().invoke(cli, list(words), catch_exceptions=False, standalone_mode=False)
    assert not result.return_value, result.output
    return result


def profile(server: Hub, tmp_path: Path) -> str:
    (tmp_path / "p.yaml").write_text(f"hf: {{endpoint: '{server.url}', trusted: '{server.url}'}}\n")
    return str(tmp_path / "p.yaml")


@pytest.mark.parametrize("revision", ["", f"@{COMMIT}"])
def test_it_lies_where_huggingface_hub_looks_for_datasets(server: Hub, tmp_path: Path, revision: str) -> None:
    words = ("--dataset", f"{REPO}{revision}", "--mirror", profile(server, tmp_path), "--output", str(tmp_path / "to"))
    text = " ".join(run("fetch", *words).output.split())
    folder = tmp_path / "to/datasets--owner--tiny"
    snapshot = folder / "snapshots" / COMMIT
    assert {path: (snapshot / path).read_bytes() for path in CONTENT} == CONTENT
    assert (folder / "refs/main").exists() == (not revision)
    assert not (tmp_path / "to/models--owner--tiny").exists()
    assert "use it with HF_HUB_OFFLINE=1 HF_HUB_CACHE=" in text
    # github.com/huggingface/huggingface_hub/pull/4492: without refs/main a client must name the revision.
    assert (f"and with revision='{COMMIT}'" in text) == bool(revision)


def test_a_lock_of_a_dataset_is_of_the_dataset(server: Hub, tmp_path: Path) -> None:
    mirror, lock = profile(server, tmp_path), tmp_path / "data.lock"
    run("lock", "--dataset", REPO, "--mirror", mirror, "--output", str(lock))
    assert {file["path"] for file in json.loads(lock.read_bytes())["files"]} == set(CONTENT)
    assert json.loads(lock.read_bytes())["kind"] == "dataset"
    server.requests.clear()
    done = run("fetch", "--lock", str(lock), "--mirror", mirror, "--output", str(tmp_path / "to"))
    assert done.stderr.splitlines()[0].startswith(f"{len(CONTENT)} files, ")
    assert all(path.startswith(f"/datasets/{REPO}/resolve/{COMMIT}/") for path in server.paths)
    assert (tmp_path / "to/datasets--owner--tiny/snapshots" / COMMIT / "README.md").read_text() == CARD


@pytest.mark.tools
def test_its_own_library_reads_every_row_without_a_network(
    server: Hub, run_hub: Callable[..., str], tmp_path: Path
) -> None:
    run("fetch", "--dataset", REPO, "--mirror", profile(server, tmp_path), "--output", str(tmp_path / "to"))
    server.shutdown()
    home = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    at, rows = json.loads(run_hub(READ, tmp_path / "to", **home))
    assert at == COMMIT
    assert rows == {"train": ROWS, "test": TEST}
