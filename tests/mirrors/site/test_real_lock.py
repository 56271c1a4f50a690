"""The CPU cell's own lock, through a site before the clients' real index, which is then cut off."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import uv

from tests.mirrors.site.conftest import ROOT, envcheck
from tests.mirrors.site.test_served import CLEAN
from tests.mirrors.site.upstreams import free_ports

pytestmark = pytest.mark.tools
LOCK = ROOT / "images/torch2.13.0-cpu-py311/base.lock"


@pytest.fixture
def live(tmp_path: Path, nginx: str) -> Iterator[tuple[Path, int]]:
    """Return a running site whose upstream is what this machine's clients use, and its port."""
    assert nginx
    site, port = tmp_path / "site", free_ports(130)
    options = ("--profile", "host", "--no-pytorch", "--no-hf", "--port", str(port), "--min-free", "0")
    done = envcheck("mirror", "site", "render", str(site), *options)
    if done.returncode == 3:
        pytest.skip(f"no index to be had here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    try:
        assert envcheck("mirror", "site", "up", str(site)).returncode == 0
        yield site, port
    finally:
        envcheck("mirror", "site", "down", str(site))


def install(client: str, port: int, to: Path) -> None:
    options = ["--require-hashes", "--no-deps", "--index-url", f"http://127.0.0.1:{port}/pypi/simple/", "-r", str(LOCK)]
    pip = [sys.executable, "-m", "pip", "download", "--no-cache-dir", "--dest", str(to)]
    installed = [uv.find_uv_bin(), "pip", "install", "--no-cache", "--python", sys.executable, "--target", str(to)]
    command = [*(pip if client == "pip" else installed), *options]
    done = subprocess.run(command, env=CLEAN, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr


def misses(site: Path) -> int:
    lines = [json.loads(line) for line in (site / "logs/access.json").read_text().splitlines()]
    return sum(line["cache"] != "HIT" for line in lines if line["status"] == 200)


def test_pip_and_uv_take_the_cpu_cells_lock_and_then_need_no_upstream(live: tuple[Path, int], tmp_path: Path) -> None:
    site, port = live
    install("uv", port, tmp_path / "one")
    assert misses(site) >= 2 * LOCK.read_text().count("==")
    # No name of an upstream can be resolved any more.
    conf = site / "nginx/nginx.conf"
    cut, count = re.subn(r"resolver [^;]*;", "resolver 127.0.0.99;", conf.read_text())
    assert count == 1
    conf.write_text(cut)
    envcheck("mirror", "site", "down", str(site))
    (site / "logs/access.json").unlink()
    assert envcheck("mirror", "site", "up", str(site)).returncode == 0
    install("uv", port, tmp_path / "two")
    install("pip", port, tmp_path / "three")
    uris = [json.loads(line)["uri"] for line in (site / "logs/access.json").read_text().splitlines()]
    assert sum("/simple/" not in uri for uri in uris) >= 2 * LOCK.read_text().count("==")
    assert misses(site) <= sum("/simple/" in uri for uri in uris)  # a page for another client's Accept, at most
    audited = envcheck("mirror", "audit", str(site), "--lock", str(LOCK))
    assert (audited.returncode, audited.stdout) == (0, f"packages: {LOCK.read_text().count('==')} clean\n"), (
        audited.stderr
    )
