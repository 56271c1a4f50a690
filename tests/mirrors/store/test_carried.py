"""A bundle carried to where no network goes: its tree behind nginx gives real clients all of it, and again offline."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uv

from envcheck.mirrors.hub import revision as hub_revision
from envcheck.mirrors.store import bundle, versions
from envcheck.mirrors.store.manifest import Contents, object_sizes
from envcheck.mirrors.store.objects import Store
from tests.mirrors.store.conftest import damaged
from tests.mirrors.store.test_interrupted import output_of
from tests.mirrors.store.test_publish import CUT

pytestmark = pytest.mark.tools
CONF = """
daemon off; pid {at}/pid; error_log {at}/error.log; worker_processes 1; events {{ }}
http {{
  access_log {at}/access.log; client_body_temp_path {at}/b; proxy_temp_path {at}/p; fastcgi_temp_path {at}/f;
  uwsgi_temp_path {at}/u; scgi_temp_path {at}/s;
  include {tree}/nginx/maps.conf;
  server {{ listen 127.0.0.1:{packages}; root {tree}; include {tree}/nginx/packages.conf; }}
  server {{ listen 127.0.0.1:{models}; root {tree}/hf; include {tree}/nginx/models.conf; }}
}}
"""


def _ports() -> tuple[int, int]:
    """Return two ports that nobody listens on."""
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


@pytest.fixture
def other(store: Store, contents: Contents, tmp_path: Path) -> Store:
    """Return the store of another machine, which has taken a bundle in with the user's own command."""
    bundle.export(store, contents, tmp_path / "usb", part_size=100_000, progress=lambda _there, _all: None)
    shutil.rmtree(store.root)
    there = Store(tmp_path / "elsewhere")
    assert "3 wheels and 1 model imported" in output_of(there, "import", str(tmp_path / "usb"))
    return there


@pytest.fixture
def served(other: Store) -> Iterator[tuple[str, str, subprocess.Popen[bytes]]]:
    """Run nginx over what is current there; return where packages and models are, and the server."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("no nginx on this machine")
    packages, models = _ports()
    with tempfile.TemporaryDirectory(prefix="envcheck-nginx-") as place:
        user = "user root;" if os.getuid() == 0 else ""
        conf = CONF.format(at=place, tree=other.root / "current", packages=packages, models=models)
        Path(place, "conf").write_text(user + conf)
        command = [program, "-p", place, "-e", f"{place}/error.log", "-c", f"{place}/conf"]
        running = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            while not Path(place, "pid").exists():
                assert running.poll() is None, Path(place, "error.log").read_text()
                time.sleep(0.01)
            yield f"http://127.0.0.1:{packages}", f"http://127.0.0.1:{models}", running
        finally:
            running.terminate()
            running.wait(20)


def _run(argv: list[str], home: Path, **more: str) -> str:
    own = {"PATH": "/usr/bin:/bin", "HOME": str(home), "PIP_CONFIG_FILE": "/dev/null", "UV_NO_CONFIG": "1"}
    completed = subprocess.run(argv, env={**own, **CUT, **more}, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


HUB = """
import hashlib, json, os, sys
from huggingface_hub import snapshot_download
at = snapshot_download("owner/tiny")
print(json.dumps([hashlib.sha256(open(os.path.join(at, name), "rb").read()).hexdigest() for name in sys.argv[1:]]))
"""


def test_real_clients_are_served_what_was_carried_and_have_it_offline(
    contents: Contents, served: tuple[str, str, subprocess.Popen[bytes]], hub_python: Path, tmp_path: Path
) -> None:
    packages, models, running = served
    torch = contents.wheels[2]
    rows = [f"{w.project}=={w.version} --hash=sha256:{w.sha256}\n" for w in contents.wheels[:2]]
    (tmp_path / "base.lock").write_text("".join(rows))
    (tmp_path / "torch.lock").write_text(f"torch==2.8.99+cpu --hash=sha256:{torch.sha256}\n")
    pip = [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--disable-pip-version-check"]
    fast = [uv.find_uv_bin(), "pip", "install", "--no-cache", "--python", sys.executable]
    for number, (client, option) in enumerate(((pip, "--index-url"), (fast, "--default-index"))):
        for lock, index in (("base.lock", "simple"), ("torch.lock", "whl/cpu")):
            more = ["--require-hashes", "--target", str(tmp_path / f"to{number}"), "-r", str(tmp_path / lock)]
            _run([*client, option, f"{packages}/{index}", *more], tmp_path)
        assert {path.name for path in (tmp_path / f"to{number}").glob("*.py")} == {"alpha.py", "beta.py", "torch.py"}
    files = contents.models[0].files
    requests = [str(hub_python), "-c", HUB, *(file.path for file in files)]
    own = {"HF_ENDPOINT": models, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "hf")}
    assert json.loads(_run(requests, tmp_path, **own)) == [file.sha256 for file in files]
    running.terminate()
    running.wait(20)
    assert json.loads(_run(requests, tmp_path, **own, HF_HUB_OFFLINE="1")) == [file.sha256 for file in files]


def test_what_was_carried_is_all_there_and_as_it_was(other: Store, contents: Contents) -> None:
    result = versions.read_manifest(other, 1).contents
    assert result.wheels == sorted(contents.wheels, key=lambda wheel: (wheel.index, wheel.name))
    assert (result.models, result.branches) == (contents.models, contents.branches)
    assert all(other.sound(digest) for digest in object_sizes(contents))
    assert damaged(other) == []
    assert isinstance(result.models[0], hub_revision.Revision)
