"""The CPU cell's own lock, torch and all, through a site: what its upstream sends is counted, and then it is cut off.

And a site before the index that this machine's clients really use, over TLS.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import uv

from tests.mirrors.site.conftest import ROOT, envcheck, running
from tests.mirrors.site.test_served import CLEAN
from tests.mirrors.site.upstreams import Upstream, free_ports, page, upstream

pytestmark = [pytest.mark.tools, pytest.mark.timeout(900)]
CELL = ROOT / "images/torch2.13.0-cpu-py311"
# Each of its locks has an index of its own.
LOCKS = {CELL / "torch.lock": "pytorch/whl/cpu", CELL / "base.lock": "pypi/simple"}
PINS = re.compile(r"^([\w.-]+)==", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Live:
    """A running site, its first port, and the upstream that has every wheel of the locks."""

    site: Path
    port: int
    upstream: Upstream

    def installed(self, client: str, to: Path) -> None:
        """Have a client build an environment of the locks, with nothing cached and each hash demanded."""
        pip = [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--no-compile", "--disable-pip-version-check"]
        command = {"pip": pip, "uv": [uv.find_uv_bin(), "pip", "install", "--no-cache", "--python", sys.executable]}
        for lock, index in LOCKS.items():
            there = ["--index-url", f"http://127.0.0.1:{self.port}/{index}/", "--target", str(to), "-r", str(lock)]
            words = [*command[client], "--require-hashes", "--no-deps", *there]
            completed = subprocess.run(words, env=CLEAN, capture_output=True, text=True, check=False, timeout=240)
            assert completed.returncode == 0, completed.stderr
        pins = PINS.findall("".join(lock.read_text() for lock in LOCKS))
        assert {path.name.partition("-")[0].lower() for path in to.glob("*.dist-info")} == {
            pin.replace("-", "_") for pin in pins
        }
        shutil.rmtree(to)


@pytest.fixture
def live(tmp_path: Path, nginx: str) -> Iterator[Live]:
    """Return a running site before an upstream with the cell's real wheels, from where this machine has its own."""
    assert nginx
    source, site, port = upstream(tmp_path / "upstream", "127.0.0.2"), tmp_path / "site", free_ports(130)
    try:
        done = envcheck("fetch", CELL.name, "--mirror", "host", "--output", str(source.tree / "files"))
        if done.returncode == 3:
            pytest.skip(f"no index to be had here: {done.stderr}")
        assert done.returncode == 0, done.stderr
        for path in (source.tree / "files").glob("*.whl"):
            project = path.name.partition("-")[0].replace("_", "-")
            index = source.tree / ("whl/cpu" if project == "torch" else "simple")
            page(index, project, {f"{source.origin}/files/{path.name.replace('+', '%2B')}": path})
        profile = tmp_path / "profile.yaml"
        profile.write_text(
            f"pypi: [{{url: {source.origin}/simple}}]\npytorch: [{{url: '{source.origin}/whl/{{variant}}'}}]\n"
        )
        options = ("--mirror", str(profile), "--link", source.origin, "--no-hf", "--port", str(port))
        done = envcheck("mirror", "site", "render", str(site), *options, "--min-free", "0")
        assert done.returncode == 0, done.stderr
        with running(site):
            yield Live(site, port, source)
    finally:
        if source.process.poll() is None:
            source.stop()


def test_pip_and_uv_install_the_cpu_cells_lock_and_a_second_build_moves_no_byte_from_upstream(
    live: Live, tmp_path: Path
) -> None:
    live.installed("uv", tmp_path / "one")
    size = sum(path.stat().st_size for path in (live.upstream.tree / "files").iterdir())
    first = live.upstream.sent()
    assert size < sum(sent for _, sent, _ in first) < size + 1_000_000, "each wheel once, and the pages"
    assert {status for status, _, _ in first} == {200, 206}
    # It would have nothing any more, and would note who asks; then it is not even there.
    live.upstream.tree.rename(tmp_path / "away")
    live.installed("uv", tmp_path / "two")
    assert live.upstream.sent() == first
    live.upstream.stop()
    live.installed("pip", tmp_path / "three")


def test_wheels_of_the_real_index_come_over_tls_and_then_without_it(tmp_path: Path, nginx: str) -> None:
    assert nginx
    site, port = tmp_path / "site", free_ports(130)
    options = ("--mirror", "host", "--no-pytorch", "--no-hf", "--port", str(port), "--min-free", "0")
    completed = envcheck("mirror", "site", "render", str(site), *options)
    if completed.returncode == 3:
        pytest.skip(f"no index to be had here: {completed.stderr}")
    assert completed.returncode == 0, completed.stderr
    pins = re.findall(r"(?m)^(?:jinja2|markupsafe|mpmath)==.*(?:\n +--hash.*)+", (CELL / "base.lock").read_text())
    (tmp_path / "few.lock").write_text("\n".join(pins))
    uv_pip = [uv.find_uv_bin(), "pip", "install", "--no-cache", "--no-deps", "--require-hashes"]
    there = ["--index-url", f"http://127.0.0.1:{port}/pypi/simple/", "-r", str(tmp_path / "few.lock")]
    conf = site / "nginx/nginx.conf"
    for name in ("one", "two"):
        with running(site):
            to = ["--python", sys.executable, "--target", str(tmp_path / name)]
            completed = subprocess.run([*uv_pip, *there, *to], env=CLEAN, capture_output=True, text=True, check=False)
            assert completed.returncode == 0, completed.stderr
        # No name of an upstream can be resolved any more.
        cut, count = re.subn(r"resolver [^;]*;", "resolver 127.0.0.99;", conf.read_text())
        assert count == 1
        conf.write_text(cut)
    assert len(pins) == len([*(tmp_path / "two").glob("*.dist-info")]) == 3
