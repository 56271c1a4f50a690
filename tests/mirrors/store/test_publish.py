"""The published tree, served by a plain file server: real pip, uv and huggingface_hub's own requests."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.mirrors.fetch.request import TransferOptions
from envcheck.mirrors.hub import HubFile, Reference, Revision, fetch_revision, lock_revision
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.store import releases, tree
from envcheck.mirrors.store.objects import Store
from envcheck.mirrors.store.tree import Contents

Serve = Callable[..., Any]
# Whoever leaves the loopback is told that nobody is there.
CUT = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "no_proxy": "127.0.0.1"}


def _run(argv: list[str], home: Path) -> None:
    """Run with an environment of its own, and no network but the loopback."""
    own = {"PATH": "/usr/bin:/bin", "HOME": str(home), "PIP_CONFIG_FILE": "/dev/null", "UV_NO_CONFIG": "1"}
    completed = subprocess.run(argv, env={**own, **CUT}, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr


def test_pip_resolves_by_metadata(store: Store, contents: Contents, serve: Serve, tmp_path: Path) -> None:
    releases.release(store, contents, keep=2)
    site = serve()
    pip = [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--disable-pip-version-check", "--dry-run"]
    _run([*pip, "--index-url", f"{site.url}/simple", "--target", str(tmp_path / "to"), "alpha"], tmp_path)
    requests = [path.rpartition("/")[2] for path in site.paths if path.startswith("/files/")]
    assert requests[0] == f"{contents.wheels[0].name}.metadata"
    assert f"{contents.wheels[1].name}.metadata" in requests


def test_a_page_has_hashes_metadata_and_what_python_is_needed(contents: Contents) -> None:
    page, wheel = tree.tree_files(contents).pages["simple/alpha/index.html"].decode(), contents.wheels[0]
    assert f'href="../../files/{wheel.sha256}/{wheel.name}#sha256={wheel.sha256}"' in page
    assert f'data-core-metadata="sha256={wheel.metadata}"' in page
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
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("no nginx on this machine")
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
        words = [program, "-t", "-p", place, "-c", f"{place}/conf"]
        completed = subprocess.run(words, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
