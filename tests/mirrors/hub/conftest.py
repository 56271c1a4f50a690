"""A hub of one model: what huggingface_hub and a mirror server ask of an endpoint, and bytes that can be wrong."""

from __future__ import annotations

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

from envcheck.mirrors import hf

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


class Hub(ThreadingHTTPServer):
    """An endpoint. `content` are the bytes it serves; the hashes it tells are always those of FILES."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content = dict(FILES)
        self.rows = [_row(path) for path in FILES]
        self.token: str | None = None
        self.asked: list[str] = []
        self.tokens: list[str | None] = []

    @property
    def netloc(self) -> str:
        """Return host:port."""
        return f"127.0.0.1:{self.server_address[1]}"

    @property
    def url(self) -> str:
        """Return the endpoint."""
        return f"http://{self.netloc}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of who went away."""


def _row(path: str) -> dict[str, Any]:
    content = FILES[path]
    row = {"type": "file", "path": path, "size": len(content), "oid": hf.git_sha1(content)}
    return {**row, "lfs": {"oid": sha256(content), "size": len(content)}} if path == LARGE else row


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
        self._json([row for row in self.server.rows if row["path"] in wanted])

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(path)
        self.server.tokens.append(self.headers.get("Authorization"))
        if self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            self._answer(401, {}, b"")
        elif path.startswith(f"/api/models/{REPO}/tree/"):
            self._json(self.server.rows)
        elif path.rstrip("/") == f"/api/models/{REPO}" or path.startswith(f"/api/models/{REPO}/revision/"):
            siblings = [{"rfilename": row["path"]} for row in self.server.rows]
            self._json({"id": REPO, "modelId": REPO, "sha": COMMIT, "private": False, "siblings": siblings, "tags": []})
        elif path.startswith(f"/{REPO}/resolve/"):
            self._file(path.removeprefix(f"/{REPO}/resolve/").partition("/")[2])
        else:
            self._answer(404, {}, b"")

    def _file(self, name: str) -> None:
        content = self.server.content.get(name)
        if content is None:
            self._answer(404, {"X-Error-Code": "EntryNotFound"}, b"")
            return
        tag = f'"{sha256(FILES[name]) if name == LARGE else hf.git_sha1(FILES[name])}"'
        told = {"X-Repo-Commit": COMMIT, "ETag": tag, "X-Linked-ETag": tag, "X-Linked-Size": str(len(content))}
        asked = self.headers.get("Range")
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
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def hubs() -> Iterator[Callable[[], Hub]]:
    """Give a function that starts an endpoint."""
    started: list[Hub] = []

    def start() -> Hub:
        hub = Hub()
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

    def run(script: str, cache: Path, **environment: str) -> str:
        plain = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HF_HUB_CACHE": str(cache), **environment}
        plain |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", "no_proxy": "*"}
        done = subprocess.run([hub_python, "-c", script], env=plain, capture_output=True, text=True, check=False)
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
        process.wait(20)
