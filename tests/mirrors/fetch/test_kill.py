"""kill -9 at any moment: nothing wrong gets the name, and what had come is not fetched twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from envcheck.mirrors.fetch.plan import pieces
from envcheck.mirrors.fetch.request import WantedFile

CONNECTIONS = 4
# A process without threads, that forks a fetcher, kills it a random time later, and so on until one gets to its end.
KILLER = """
import hashlib, json, os, random, signal, sys, time
from pathlib import Path
from envcheck.mirrors.fetch.transfer import fetch
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.net.client import Client

url, sha256, size, path, connections, kills, seed = sys.argv[1:]
wanted = WantedFile((url,), sha256, int(size), Path(path))
chance, killed, wrong, finished = random.Random(int(seed)), 0, 0, 0
while killed < int(kills):
    child = os.fork()
    if child == 0:
        fetch(wanted, TransferOptions(Client(), connections=int(connections)))
        os._exit(0)
    time.sleep(chance.uniform(0.0, 0.08))
    os.kill(child, signal.SIGKILL)
    killed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    if wanted.path.exists():
        finished += 1
        wrong += hashlib.sha256(wanted.path.read_bytes()).hexdigest() != sha256
        wanted.path.unlink()
done = fetch(wanted, TransferOptions(Client(), connections=int(connections)))
print(json.dumps({"wrong": wrong, "finished": finished, "kills": killed}))
"""


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_100_random_moments(
    serve: Callable[..., Any], wanted_file: Callable[..., WantedFile], content: bytes, seed: int
) -> None:
    server = serve(delay=0.02)
    want = wanted_file(server)
    words = [want.urls[0], want.sha256, str(want.size), str(want.path), str(CONNECTIONS), "25", str(seed)]
    completed = subprocess.run([sys.executable, "-c", KILLER, *words], capture_output=True, text=True, check=True)
    document = json.loads(completed.stdout)
    assert document["kills"] == 25
    assert document["wrong"] == 0
    assert want.path.read_bytes() == content
    # Each kill costs at most the piece that each connection was at.
    files = document["finished"] + 1
    assert server.sent <= files * len(content) + document["kills"] * CONNECTIONS * pieces.piece_size(len(content))
