"""Publish and promote, killed by SIGKILL after each request that writes: nothing half-made counts, the next completes.

What is read in between changes nothing in the registry, so that these are all the states that a kill can leave.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from envcheck.registry.documents import StoredManifest
from tests.http_server import Answer, Request, Server, Servers
from tests.registry.site import Site

# More than any command writes.
FREELY: Final = 1_000_000
# Runs each command in a fork of one process that has imported everything, and says the pid and how it ended.
FORKS: Final = """
import gc, json, os, sys
from envcheck.cli import main
from envcheck.cli.registry import promote, publish
from envcheck.matrix.file.load import load
from envcheck.mirrors.profiles import load as profiles
from envcheck.registry import choosing, publishing
from envcheck.registry import repository
from envcheck.runner.planning import discover
load(None), discover()
gc.freeze()
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        sys.argv = ["envcheck", *json.loads(line)]
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        main()
    print(pid, flush=True)
    print(os.waitpid(pid, 0)[1], flush=True)
"""


class KillingProxy(Server):
    """Hands requests on to a registry. When more than `left` came that write, it kills the client instead."""

    def __init__(self, registry: str) -> None:
        super().__init__(self.answer)
        self._registry = registry
        self._counting = threading.Lock()
        self.left = FREELY
        self.pid: int | None = None

    def answer(self, request: Request) -> Answer:
        """Return the registry's answer, unless the client is dead now."""
        with self._counting:
            self.left -= request.method not in ("GET", "HEAD")
            if self.left < 0:
                while self.pid is None:
                    time.sleep(0.001)
                os.kill(self.pid, signal.SIGKILL)
                return Answer(503, close=True)
        connection = http.client.HTTPConnection(self._registry, timeout=60)
        connection.request(request.method, request.path, request.body, dict(request.headers))
        got = connection.getresponse()
        body = got.read()
        connection.close()
        kept = {name: value for name, value in got.getheaders() if name not in ("Connection", "Transfer-Encoding")}
        return Answer(got.status, body, kept)


class Forks:
    """The process that forks."""

    def __init__(self, proxy: KillingProxy, home: Path) -> None:
        self._proxy = proxy
        environ = {**os.environ, "HOME": str(home), "no_proxy": "*"}
        words = [sys.executable, "-c", FORKS]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)

    def run(self, *words: object, writes: int) -> bool:
        """Run a command that is killed after so many writes; tell whether it ended before, and well."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._proxy.pid, self._proxy.left = None, writes
        self.process.stdin.write(f"{json.dumps([str(word) for word in words])}\n")
        self.process.stdin.flush()
        self._proxy.pid = int(self.process.stdout.readline())
        ended = int(self.process.stdout.readline())
        self._proxy.left = FREELY
        assert ended == 0 or (os.WIFSIGNALED(ended) and os.WTERMSIG(ended) == signal.SIGKILL), ended
        return ended == 0


@pytest.fixture
def proxy(servers: Servers, docker_registry: str) -> KillingProxy:
    return servers.start(KillingProxy(docker_registry))


@pytest.fixture
def forks(proxy: KillingProxy, tmp_path: Path) -> Iterator[Forks]:
    made = Forks(proxy, tmp_path)
    yield made
    made.process.communicate(timeout=60)


@pytest.mark.tools
def test_a_publication_that_is_killed_anywhere_proves_nothing_and_the_next_completes_it(
    proxy: KillingProxy, forks: Forks, tmp_path: Path
) -> None:
    site = Site(proxy.netloc, tmp_path)
    key = ("--key", site.folder / "release")
    writes, finished = 0, False
    while not finished:
        image = site.image(f"killed after {writes}")
        name = f"{site.name}@{image.digest}"
        words = ("publish", name, "--report", site.report(image), *key)
        finished = forks.run(*words, writes=writes)
        own = own_proofs(site, image)
        assert site.pull(name)["chosen"] == (name if len(own) == 2 else None), "a proof counts with its report only"
        assert finished or writes % 2 or forks.run(*words, writes=FREELY)
        assert writes % 2 or (site.chosen(name), len(own_proofs(site, image))) == (image.digest, 2)
        writes += 1
    assert writes >= 8


def own_proofs(site: Site, image: StoredManifest) -> list[str]:
    """Return the tags of the artifacts beside an image."""
    start = image.digest.replace(":", "-")
    return [tag for tag in site.repository.tags() if tag.startswith(start) and tag.endswith((".proof", ".report"))]


@pytest.mark.tools
def test_a_promotion_that_is_killed_anywhere_promotes_nothing_and_the_next_completes_it(
    proxy: KillingProxy, forks: Forks, tmp_path: Path
) -> None:
    policy = Site(proxy.netloc, tmp_path).write_policy("rejudge = false\n")
    writes, finished = 0, False
    while not finished:
        site = Site(proxy.netloc, tmp_path)
        image = site.image("one")
        site.attach(image)
        options = ("--to", "stable", "--policy", policy, "--key", site.folder / "release")
        words = ("promote", f"{site.name}@{image.digest}", *options)
        finished = forks.run(*words, writes=writes)
        status, output = site.run("pull", f"{site.name}:stable", "--policy", policy, "--dry-run")
        assert (status, image.digest in output) == ((0, True) if finished else (1, False)), output
        assert finished or writes % 4 or forks.run(*words, writes=FREELY)
        writes += 1
    assert site.chosen(f"{site.name}:stable", policy=policy) == image.digest
    assert writes >= 4
