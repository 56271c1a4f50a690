"""The published tree, served by a plain file server: real pip, uv and huggingface_hub's own requests."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.mirrors.fetch.request import TransferOptions
from envcheck.mirrors.hub import HubFile, Reference, Revision, fetch_revision, lock_revision
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.store import releases
from envcheck.mirrors.store.objects import Store
from envcheck.mirrors.store.tree import Contents
from tests.mirrors.store.conftest import damaged
from tests.processes import program, ran

Serve = Callable[..., Any]
# Whoever leaves the loopback is told that nobody is there.
CUT = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "no_proxy": "127.0.0.1"}


def _run(argv: list[str], home: Path) -> None:
    own = {"PATH": "/usr/bin:/bin", "HOME": str(home), "PIP_CONFIG_FILE": "/dev/null", "UV_NO_CONFIG": "1"}
    completed = ran(argv, env={**own, **CUT})
    assert completed.returncode == 0, completed.stdout + completed.stderr


def test_pip_resolves_by_metadata(store: Store, contents: Contents, serve: Serve, tmp_path: Path) -> None:
    releases.release(store, contents, keep=2)
    site = serve()
    pip = [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--disable-pip-version-check", "--dry-run"]
    _run([*pip, "--index-url", f"{site.url}/simple", "--target", str(tmp_path / "to"), "alpha"], tmp_path)
    requests = [path.rpartition("/")[2] for path in site.paths if path.startswith("/files/")]
    assert requests[0] == f"{contents.wheels[0].name}.metadata"
    assert f"{contents.wheels[1].name}.metadata" in requests
    page = (store.root / "current/simple/alpha/index.html").read_text()
    assert 'data-requires-python="&gt;=3.8"' in page


@pytest.mark.parametrize("revision", ["main", None])
def test_our_own_client_fetches_a_model_from_the_tree(
    store: Store, contents: Contents, model: Revision, serve: Serve, tmp_path: Path, revision: str | None
) -> None:
    releases.release(store, contents, keep=2)
    site = serve("hf")
    client = Client()
    expected = lock_revision(client, site.url, Reference("model", "owner/tiny", revision or model.revision))
    assert (expected.ref, expected.files) == (revision, model.files)
    fetch_revision(expected, [site.url], tmp_path / "hub", TransferOptions(client), lambda _: None)
    snapshot = tmp_path / "hub/models--owner--tiny/snapshots" / model.revision
    assert (snapshot / "config.json").read_bytes() == b'{"model_type": "t"}\n'


CONF = """
daemon off; pid {at}/pid; error_log stderr; worker_processes 1; events {{ }}
http {{
  access_log off; client_body_temp_path {at}/b; proxy_temp_path {at}/p; fastcgi_temp_path {at}/f;
  uwsgi_temp_path {at}/u; scgi_temp_path {at}/s;
  include {tree}/nginx/maps.conf;
  server {{ listen unix:{at}/packages; root {tree}; include {tree}/nginx/packages.conf; }}
  server {{ listen unix:{at}/models; root {tree}/hf; include {tree}/nginx/models.conf; }}
}}
"""


@pytest.mark.tools
def test_nginx_takes_a_tree_with_the_longest_path_that_a_model_may_have(store: Store) -> None:
    """One such path of a bundle ended the whole site: nginx's maps had no room for it."""
    nginx = program("nginx")
    content = b"content"
    digest = store.add(content, "x")
    folder = "/".join(['"$a;}' + "d" * 245] * 4)
    path = f"{folder}/{'x' * (1024 - len(folder) - 1)}"
    file = HubFile(path=path, size=len(content), sha256=digest)
    repo = f"{'o' * 200}/{'n' * 200}"
    model = Revision(kind="dataset", repo=repo, revision="a" * 40, files=[file])
    releases.release(store, Contents(models=[model]), keep=1)
    with tempfile.TemporaryDirectory(prefix="envcheck-nginx-") as place:
        conf = CONF.format(at=place, tree=store.root / "current")
        Path(place, "conf").write_text("user root;" + conf if os.getuid() == 0 else conf)
        words = [nginx, "-t", "-p", place, "-c", f"{place}/conf"]
        completed = ran(words)
    assert completed.returncode == 0, completed.stderr


ROOT = Path(__file__).parents[3]
MIB = 1 << 20


def envcheck(store: Store, *arguments: str) -> subprocess.Popen[str]:
    # nohup has SIGHUP ignored, and so would this have it.
    command = ["env", "--default-signal=HUP", sys.executable, "-m", "envcheck", "store", "--store", str(store.root)]
    env = {"PATH": os.environ["PATH"], "HOME": str(store.root), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([*command, *arguments], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def output_of(store: Store, *arguments: str) -> str:
    with envcheck(store, *arguments) as running:
        out, errors = running.communicate()
    assert running.returncode == 0, errors
    return out


def model(store: Store, *sizes: int, repo: str = "o/r") -> Contents:
    files = []
    for number, size in enumerate(sizes):
        digest = store.add(random.Random(size + number).randbytes(size), f"f{number}")  # noqa: S311 (data)
        files.append(HubFile(path=f"f{number}", size=size, sha256=digest))
    return Contents(models=[Revision(repo=repo, revision="0" * 40, files=files)])


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = Store(tmp_path_factory.mktemp("large") / "store")
    releases.release(made, model(made, *[6 * MIB] * 8), keep=1)
    return made


@pytest.fixture(scope="module")
def carried(large: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("carried") / "b"
    output_of(large, "export", "-o", str(to))
    return to


def _ended(large: Store, to: Path, number: int) -> tuple[int, str, str]:
    with envcheck(large, "export", "-o", str(to)) as running:
        while not ((to / ".bundle.tar").exists() and (to / ".bundle.tar").stat().st_size > MIB):
            assert running.poll() is None
        running.send_signal(number)
        out, errors = running.communicate()
    return running.returncode, out, errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_an_export_that_is_ended_takes_away_what_it_began(large: Store, tmp_path: Path, number: int) -> None:
    code, out, errors = _ended(large, tmp_path / "b", number)
    assert (code, out, errors.count("Traceback")) == (128 + number, "", 0)
    assert list((tmp_path / "b").iterdir()) == []


def test_what_a_killed_export_left_goes_when_the_next_begins(large: Store, carried: Path, tmp_path: Path) -> None:
    to = tmp_path / "b"
    _ended(large, to, signal.SIGKILL)
    assert [path.name for path in to.iterdir()] == [".bundle.tar"]
    output_of(large, "export", "-o", str(to))
    assert {path.name: path.read_bytes() for path in to.iterdir()} == {
        path.name: path.read_bytes() for path in carried.iterdir()
    }


@pytest.mark.thorough
def test_an_import_that_is_killed_anywhere_leaves_what_is_served(carried: Path, tmp_path: Path) -> None:
    """At random points of the whole command: reading, unpacking, taking in, releasing."""
    store = Store(tmp_path / "site")
    releases.release(store, model(store, 5 * MIB, repo="o/old"), keep=3)
    began = time.monotonic()
    output_of(Store(tmp_path / "trial"), "import", str(carried))
    takes = time.monotonic() - began
    for point in range(20):
        with envcheck(store, "import", str(carried)) as running:
            time.sleep(takes * random.Random(point).uniform(0.2, 0.9))  # noqa: S311 (a moment)
            running.kill()
        if releases.current(store) != 1:  # it was quicker this time, and is whole
            releases.make_current(store, 1)
            (store.root / "versions/2").rename(tmp_path / f"done{point}")
        assert (releases.current(store), damaged(store)) == (1, [])
    assert "version 2 is served" in output_of(store, "import", str(carried))
    assert (damaged(store), (store.root / "import").exists()) == ([], False)
