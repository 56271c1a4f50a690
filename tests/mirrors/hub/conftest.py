"""A hub of one model: what huggingface_hub and a mirror server ask of an endpoint, and bytes that can be wrong."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from envcheck.mirrors.hub import revision as hub_revision

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
        """Return a file's ETag."""
        return sha256(self.files[path]) if path in self.large else hub_revision.git_sha1(self.files[path])

    def _row(self, path: str) -> dict[str, Any]:
        content = self.files[path]
        row = {"type": "file", "path": path, "size": len(content), "oid": hub_revision.git_sha1(content)}
        return {**row, "lfs": {"oid": sha256(content), "size": len(content)}} if path in self.large else row


class Hub(ThreadingHTTPServer):
    """An endpoint, on an address of its own. What it does wrong, or slowly, is set on it.

    `busy`: the answers, with Retry-After 0, before the right ones. `cdn`: where files in LFS are redirected to, and
    with a signature that is good for `signed` requests. `most`: no more bytes than that are given without a range.
    `pause`: seconds between two 64 KiB. `xet`: it offers what huggingface_hub would rather take.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: str = "127.0.0.1") -> None:
        super().__init__((address, 0), _Handler)
        self.repos = {f"models/{REPO}": Repo(FILES)}
        self.token: str | None = None
        self.busy: list[int] = []
        self.cdn: str | None = None
        self.signed: int | None = None
        self.most: int | None = None
        self.pause = 0.0
        self.xet = False
        self.sent = 0
        self.asked: list[str] = []
        self.tokens: list[str | None] = []
        self.given: dict[str, int] = {}
        self.lock = threading.Lock()

    @property
    def repo(self) -> Repo:
        """Return the model."""
        return self.repos[f"models/{REPO}"]

    @property
    def content(self) -> dict[str, bytes]:
        """Return the bytes that the model's files are served with."""
        return self.repo.content

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return what is told of the model's files."""
        return self.repo.rows

    @rows.setter
    def rows(self, rows: list[dict[str, Any]]) -> None:
        self.repo.rows = rows

    @property
    def netloc(self) -> str:
        """Return host:port."""
        return f"{self.server_address[0]!s}:{self.server_address[1]}"

    @property
    def url(self) -> str:
        """Return the endpoint."""
        return f"http://{self.netloc}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of who went away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        wanted = json.loads(body)["paths"] if body.startswith("{") else parse_qs(body).get("paths", [])
        repo = self._repo(self.path.removeprefix("/api/").partition("/paths-info/")[0])
        self._json([row for row in repo.rows if row["path"] in wanted] if repo else [])

    def do_GET(self) -> None:
        path, hub = unquote(urlsplit(self.path).path), self.server
        with hub.lock:
            hub.asked.append(path)
            hub.tokens.append(self.headers.get("Authorization"))
            status = hub.busy.pop(0) if hub.busy else 0
        if status:
            self._answer(status, {"Retry-After": "0"}, b"")
        elif hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._answer(401, {}, b"")
        elif path.startswith("/api/"):
            self._api(path.removeprefix("/api/"))
        elif path.startswith("/cdn/"):
            self._cdn(path)
        else:
            kind = "datasets" if path.startswith("/datasets/") else "models"
            name, found, rest = path.removeprefix("/datasets").partition("/resolve/")
            commit, _, file = rest.partition("/")
            self._file(self._repo(f"{kind}{name}") if found else None, commit, file)

    def _repo(self, name: str) -> Repo | None:
        return self.server.repos.get(name.strip("/"))

    def _api(self, path: str) -> None:
        name, tree, commit = path.removesuffix("/").partition("/tree/")  # olah asks with a slash at the end
        name, named, ref = (name, "", "main") if tree else path.partition("/revision/")
        repo = self._repo(name)
        if repo is None or (tree and not self._has(repo, commit)) or (named and not self._has(repo, ref)):
            self._answer(404, {}, b"")
        elif tree:
            self._json([{**row, "xetHash": "f" * 64} if self.server.xet else row for row in repo.rows])
        else:
            told = {"id": name.partition("/")[2], "sha": repo.commits[0], "lastModified": repo.changed, "tags": []}
            siblings = [{"rfilename": row["path"]} for row in repo.rows]
            self._json({**told, "modelId": told["id"], "private": False, "siblings": siblings})

    def _has(self, repo: Repo, commit: str) -> bool:
        return commit in {*repo.commits, "main"}

    def _file(self, repo: Repo | None, commit: str, name: str) -> None:
        content = repo.content.get(name) if repo is not None and self._has(repo, commit) else None
        if repo is None or content is None:
            self._answer(404, {"X-Error-Code": "EntryNotFound"}, b"")
            return
        hub, tag = self.server, f'"{repo.tag(name)}"'
        told = {"X-Repo-Commit": repo.commits[0] if commit == "main" else commit, "ETag": tag, "X-Linked-ETag": tag}
        told["X-Linked-Size"] = str(len(content))
        if hub.xet:
            told |= {"X-Xet-Hash": "f" * 64, "Link": f'<{hub.url}/api/xet-read-token>; rel="xet-auth"'}
        if hub.cdn is not None and name in repo.large:
            with hub.lock:
                signature = len(hub.asked)
            self._answer(302, {**told, "Location": f"{hub.cdn}/cdn/{sha256(repo.files[name])}/{signature}"}, b"")
        else:
            self._content(content, told)

    def _cdn(self, path: str) -> None:
        """Serve a file by its hash, as long as the link is good."""
        hub, (digest, _) = self.server, path.removeprefix("/cdn/").split("/")
        with hub.lock:
            hub.given[path] = hub.given.get(path, 0) + 1
            over = hub.signed is not None and hub.given[path] > hub.signed
        files = [(repo, name) for repo in hub.repos.values() for name in repo.large if name in repo.files]
        found = next((repo.content[name] for repo, name in files if sha256(repo.files[name]) == digest), None)
        if over or found is None:
            self._answer(403, {}, b"")
        else:
            self._content(found, {"ETag": f'"{digest}"'})

    def _content(self, content: bytes, told: dict[str, str]) -> None:
        asked = self.headers.get("Range")
        if asked is None and self.server.most is not None and len(content) > self.server.most:
            self._answer(400, {}, b"")
            return
        if asked is None:
            self._answer(200, {**told, "Accept-Ranges": "bytes"}, content)
            return
        first, last = asked.removeprefix("bytes=").split("-")
        start, stop = int(first), min(int(last or len(content)) + 1, len(content))
        self._answer(206, {**told, "Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}, content[start:stop])

    def _json(self, value: Any) -> None:
        self._answer(200, {"Content-Type": "application/json", "X-Repo-Commit": COMMIT}, json.dumps(value).encode())

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        for at in range(0, len(body) if self.command != "HEAD" else 0, 1 << 16):
            time.sleep(self.server.pause)
            self.wfile.write(body[at : at + (1 << 16)])
            with self.server.lock:
                self.server.sent += len(body[at : at + (1 << 16)])


@pytest.fixture
def hubs() -> Iterator[Callable[[], Hub]]:
    """Give a function that starts an endpoint, each on an address of its own: two ports of one host are one host."""
    started: list[Hub] = []

    def start() -> Hub:
        hub = Hub(f"127.0.0.{len(started) + 1}")
        threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        started.append(hub)
        return hub

    yield start
    for hub in started:
        hub.shutdown()
        hub.server_close()


@pytest.fixture
def hub_python() -> Path:
    """Return the interpreter that has huggingface_hub, transformers and olah; `.ci/test` installs them."""
    python = os.environ.get("ENVCHECK_TEST_HUB")
    if not python:
        pytest.skip("no huggingface_hub: set ENVCHECK_TEST_HUB, or use `make test`, which installs it")
    return Path(python)


@pytest.fixture
def run_hub(hub_python: Path, tmp_path: Path) -> Callable[..., str]:
    """Give a function that runs a script beside huggingface_hub, with nothing of this machine's configuration."""

    def run(script: str, cache: Path, *words: str, **environment: str) -> str:
        plain = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HF_HUB_CACHE": str(cache), **environment}
        plain |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", "no_proxy": "*"}
        done = subprocess.run(
            [hub_python, "-c", script, *words], env=plain, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    return run


@pytest.fixture
def mirrored(hub_python: Path, tmp_path: Path) -> Iterator[Callable[[Hub], str]]:
    """Give a function that starts olah in front of an endpoint and returns where it is."""
    running: list[subprocess.Popen[bytes]] = []

    def start(hub: Hub) -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        at = f"127.0.0.1:{port}"
        words = ["--host", "127.0.0.1", "--port", str(port), "--repos-path", str(tmp_path / "olah")]
        words += ["--hf-scheme", "http", "--hf-netloc", hub.netloc, "--hf-lfs-netloc", hub.netloc]
        words += ["--mirror-scheme", "http", "--mirror-netloc", at, "--mirror-lfs-netloc", at]
        words += ["--log-path", str(tmp_path / "logs")]
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        log = (tmp_path / "olah.log").open("wb")
        command = [str(hub_python.with_name("olah-cli")), *words]
        running.append(subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=log, stderr=log))
        log.close()
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return f"http://{at}"
            assert running[-1].poll() is None, (tmp_path / "olah.log").read_text()[-2000:]
            time.sleep(0.1)
        pytest.fail("olah does not listen")

    yield start
    for process in running:
        process.terminate()
        process.wait(60)
