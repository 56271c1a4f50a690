"""A hub of one model: what huggingface_hub and a mirror server ask of an endpoint, and bytes that can be wrong."""

import dataclasses
import hashlib
import itertools
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from envcheck.mirrors.hub import git_sha1
from tests.http_server import Answer, Request, Server, Servers, ranged
from tests.processes import ran

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "owner/tiny"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world"]
CONFIG = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 8,
    "vocab_size": len(WORDS),
}
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer_config.json": b'{"tokenizer_class": "BertTokenizer", "do_lower_case": true}',
    "vocab.txt": "\n".join(WORDS).encode() + b"\n",
    "sub/weights.bin": random.Random(5).randbytes(3_000_001),  # noqa: S311 (data)
}
LARGE = "sub/weights.bin"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclasses.dataclass
class Repo:
    """A repository. `content` are the bytes it serves; the hashes it tells are always those of `files`.

    Files in LFS are those of `large`. `commits` are what is served, the first of them is what `main` is at.
    """

    files: dict[str, bytes]
    large: frozenset[str] = frozenset({LARGE})
    commits: tuple[str, ...] = (COMMIT,)
    changed: str = "2026-03-01T12:00:00.000Z"
    content: dict[str, bytes] = dataclasses.field(default_factory=dict)
    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.content = dict(self.files)
        self.rows = [self._row(path) for path in self.files]

    def tag(self, path: str) -> str:
        return sha256(self.files[path]) if path in self.large else git_sha1(self.files[path])

    def _row(self, path: str) -> dict[str, Any]:
        content = self.files[path]
        row = {"type": "file", "path": path, "size": len(content), "oid": git_sha1(content)}
        return {**row, "lfs": {"oid": sha256(content), "size": len(content)}} if path in self.large else row


class Hub(Server):
    """An endpoint, on an address of its own. What it does wrong, or slowly, is set on it.

    `busy`: the answers, with Retry-After 0, before the right ones.
    """

    def __init__(self, address: str = "127.0.0.1", **options: Any) -> None:
        super().__init__(self.answer, address, **options)
        self.repo = Repo(FILES)
        self.repos = {f"models/{REPO}": self.repo}
        self.content, self.rows = self.repo.content, self.repo.rows
        self.token: str | None = None
        self.busy: list[int] = []

    @property
    def paths(self) -> list[str]:
        """Return the paths that were asked for, unquoted and without a query; but no form that was sent."""
        return [request.route for request in self.requests if request.method != "POST"]

    @property
    def tokens(self) -> list[str | None]:
        return [request.login for request in self.requests if request.method != "POST"]

    def answer(self, request: Request) -> Answer:
        if request.method == "POST":
            return self._paths_info(request)
        path = request.route
        with self.lock:
            status = self.busy.pop(0) if self.busy else 0
        if status:
            return Answer(status, headers={"Retry-After": "0"})
        if self.token and request.login != f"Bearer {self.token}":
            return Answer(401)
        if path.startswith("/api/"):
            return self._api(path.removeprefix("/api/"))
        kind = "datasets" if path.startswith("/datasets/") else "models"
        name, actual, remaining = path.removeprefix("/datasets").partition("/resolve/")
        commit, _, file = remaining.partition("/")
        return self._file(request, self._repo(f"{kind}{name}") if actual else None, commit, file)

    def _paths_info(self, request: Request) -> Answer:
        body = request.body.decode()
        document = json.loads(body)["paths"] if body.startswith("{") else parse_qs(body).get("paths", [])
        repo = self._repo(request.path.removeprefix("/api/").partition("/paths-info/")[0])
        return _json([row for row in repo.rows if row["path"] in document] if repo else [])

    def _repo(self, name: str) -> Repo | None:
        return self.repos.get(name.strip("/"))

    def _api(self, path: str) -> Answer:
        name, tree, commit = path.removesuffix("/").partition("/tree/")  # olah asks with a slash at the end
        name, named, ref = (name, "", "main") if tree else path.partition("/revision/")
        repo = self._repo(name)
        if repo is None or (tree and not _has(repo, commit)) or (named and not _has(repo, ref)):
            return Answer(404)
        if tree:
            return _json(repo.rows)
        data = {"id": name.partition("/")[2], "sha": repo.commits[0], "lastModified": repo.changed, "tags": []}
        siblings = [{"rfilename": row["path"]} for row in repo.rows]
        return _json({**data, "modelId": data["id"], "private": False, "siblings": siblings})

    def _file(self, request: Request, repo: Repo | None, commit: str, name: str) -> Answer:
        content = repo.content.get(name) if repo is not None and _has(repo, commit) else None
        if repo is None or content is None:
            return Answer(404, headers={"X-Error-Code": "EntryNotFound"})
        tag = f'"{repo.tag(name)}"'
        data = {"X-Repo-Commit": repo.commits[0] if commit == "main" else commit, "ETag": tag, "X-Linked-ETag": tag}
        data["X-Linked-Size"] = str(len(content))
        return ranged(request, content, data)


def _has(repo: Repo, commit: str) -> bool:
    return commit in {*repo.commits, "main"}


def _json(value: Any) -> Answer:
    return Answer(200, json.dumps(value).encode(), {"Content-Type": "application/json", "X-Repo-Commit": COMMIT})


@pytest.fixture
def hubs(servers: Servers) -> Callable[[], Hub]:
    """Give a function that starts an endpoint, each on an address of its own: two ports of one host are one host."""
    addresses = (f"127.0.0.{number}" for number in itertools.count(1))
    return lambda: servers.start(Hub(next(addresses)))


@pytest.fixture
def run_hub(hub_python: Path, tmp_path: Path) -> Callable[..., str]:
    """Give a function that runs a script beside huggingface_hub, with nothing of this machine's configuration."""

    def run(script: str, cache: Path, *words: str, **environment: str) -> str:
        plain = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HF_HUB_CACHE": str(cache), **environment}
        plain |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", "no_proxy": "*"}
        completed = ran([hub_python, "-c", script, *words], env=plain)
        assert completed.returncode == 0, completed.stderr[-2000:]
        return completed.stdout

    return run
