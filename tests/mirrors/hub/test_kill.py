"""A model of several files whose fetch is killed again and again, and one that two processes fetch at once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envcheck.mirrors.hub import download as hub_download
from envcheck.mirrors.hub import revision as hub_revision
from envcheck.mirrors.net.client import Client
from tests.mirrors.hub.conftest import COMMIT, REPO, Hub, Repo

SEED = random.Random(9)  # noqa: S311 (data)
PIECE = 1 << 20
CONNECTIONS = 2
CONTENT = {f"model-{n}.safetensors": SEED.randbytes(3 * PIECE + n) for n in range(3)}
LARGE = frozenset(CONTENT)
CONTENT |= {f"config-{n}.json": SEED.randbytes(20_000 + n) for n in range(4)}
SIZE = sum(map(len, CONTENT.values()))
KILLS = 8


@pytest.fixture
def server(hubs: Callable[[], Hub]) -> Hub:
    """Return an endpoint that takes a while."""
    hub = hubs()
    hub.repos[f"models/{REPO}"] = Repo(CONTENT, LARGE)
    hub.pause = 0.004
    return hub


@pytest.fixture
def start(server: Hub, tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Give a function that starts `envcheck fetch` of the model in a process of its own."""
    (tmp_path / "p.yaml").write_text(f"hf: {{endpoint: '{server.url}'}}\n")
    lock = hub_download.lock_revision(Client(), server.url, hub_revision.Reference("model", REPO, "main"))
    (tmp_path / "lock").write_bytes(hub_revision.format_lock(lock))
    server.sent = 0
    words = ["--lock", "lock", "--mirror", "p.yaml", "--output", "to", "--connections", str(CONNECTIONS)]
    running: list[subprocess.Popen[bytes]] = []

    def begin() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "envcheck", "fetch", *words]
        with (tmp_path / f"said-{len(running)}").open("wb") as log:
            running.append(subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.wait()


def whole(folder: Path) -> dict[str, bytes]:
    """Return what the snapshot holds; nothing where there is none."""
    snapshot = folder / "models--owner--tiny/snapshots" / COMMIT
    return {str(path.relative_to(snapshot)): path.read_bytes() for path in snapshot.rglob("*") if path.is_file()}


def test_a_fetch_that_is_killed_is_gone_on_with(
    server: Hub, start: Callable[[], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    points = random.Random(17)  # noqa: S311 (when to kill)
    unfinished = 0
    for _ in range(KILLS):
        process = start()
        there = server.sent
        until = there + points.randrange(1, SIZE // 4)
        while server.sent < until and process.poll() is None:
            time.sleep(0.002)
        process.kill()
        process.wait()
        seen = whole(tmp_path / "to")
        assert seen in ({}, CONTENT)
        unfinished += seen == {}
    assert unfinished >= 3
    assert start().wait(60) == 0, (tmp_path / f"said-{KILLS}").read_text()
    assert whole(tmp_path / "to") == CONTENT
    # At most one piece a connection twice, and of the small files those that were under way.
    assert server.sent <= SIZE + KILLS * CONNECTIONS * PIECE
    left = [path.name for path in (tmp_path / "to").rglob(".*")]
    assert left == []


def test_two_processes_fetch_each_file_once(
    server: Hub, start: Callable[[], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    both = [start(), start()]
    ended = [one.wait(60) for one in both]
    message = [(tmp_path / f"said-{number}").read_text() for number in range(2)]
    assert ended == [0, 0], message
    assert whole(tmp_path / "to") == CONTENT
    assert server.sent == SIZE
    assert "another process is fetching model-" in "".join(message)
