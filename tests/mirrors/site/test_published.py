"""What `envcheck store release` makes, served by the site's nginx to real pip, uv, huggingface_hub and transformers."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import uv

from envcheck.mirrors.hub import Revision
from envcheck.mirrors.store import releases
from envcheck.mirrors.store.objects import Store
from envcheck.mirrors.store.tree import Contents
from tests.certificates import Certificate
from tests.http_server import Servers
from tests.mirrors.hub.conftest import COMMIT, FILES, LARGE, REPO, Hub, sha256
from tests.mirrors.site.conftest import envcheck, free_ports, get, running
from tests.mirrors.store.conftest import hub_file
from tests.mirrors.store.conftest import wheel as stored
from tests.processes import ran
from tests.waiting import eventually
from tests.wheels import wheel

pytestmark = pytest.mark.tools
TOKEN = "right"  # noqa: S105 (a test's)
OWN = "site/own"
USED = f"""
import hashlib, json, pathlib
from huggingface_hub import HfApi, snapshot_download
from transformers import AutoConfig, AutoTokenizer
at = pathlib.Path(snapshot_download({OWN!r}))
words = AutoTokenizer.from_pretrained({OWN!r})("hello world")["input_ids"]
digest = hashlib.sha256((at / {LARGE!r}).read_bytes()).hexdigest()
print(json.dumps([at.name, digest, AutoConfig.from_pretrained({OWN!r}).hidden_size, len(words)]))
print(HfApi().verify_repo_checksums({OWN!r}).mismatches)
"""


def filled(store: Store, made: Path) -> Contents:
    """Put two wheels and a model into a store; return them as they are published."""
    wheels = [stored(store, wheel(made, "alpha")), stored(store, wheel(made, "torch", "2.8.0+cpu"), "pytorch/cpu")]
    return Contents(wheels=wheels, models=[_model(store, OWN)], branches={f"{OWN}@main": COMMIT})


def _model(store: Store, repo: str) -> Revision:
    files = [hub_file(store, path, content, lfs=path == LARGE) for path, content in FILES.items()]
    return Revision(repo=repo, revision=COMMIT, files=files)


@dataclasses.dataclass(frozen=True)
class ServedSite:
    """A running site before a store; its clients trust a private authority."""

    root: Path
    store: Store
    port: int
    ca: Path
    nginx: subprocess.Popen[bytes]
    hub: Hub

    @property
    def packages(self) -> str:
        return f"https://localhost:{self.port}/static/store"

    @property
    def models(self) -> str:
        return f"https://localhost:{self.port + 1}"

    def published(self, contents: Contents, repo: str = OWN) -> None:
        """Publish, and have nginx read what was published; wait until it has read of a model."""
        releases.release(self.store, contents, keep=2)
        self.nginx.send_signal(signal.SIGHUP)
        path = f"{self.models}/{repo}/resolve/main/config.json"
        assert eventually(lambda: get(path, self.ca, Authorization=f"Bearer {TOKEN}")[0], 200) == 200

    def run(self, home: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        plain = {"PATH": "/usr/bin:/bin", "HOME": str(home), "PIP_CONFIG_FILE": "/dev/null", "UV_NO_CONFIG": "1"}
        plain |= {"SSL_CERT_FILE": str(self.ca), "PIP_CERT": str(self.ca), "no_proxy": "*", **environment}
        return ran(command, env=plain, timeout=120)


@pytest.fixture
def served(
    tmp_path: Path, authority: Certificate, servers: Servers, request: pytest.FixtureRequest
) -> Iterator[ServedSite]:
    """Return a site with a store that holds nothing yet; olah stands behind it where the test names an endpoint."""
    root, port, behind = tmp_path / "site", free_ports(130), getattr(request, "param", False)
    if behind:
        request.getfixturevalue("hub_python")  # it comes with olah
    hub = servers.start(Hub())
    hub.rows[:] = [{**row, "lfs": {**row["lfs"], "pointerSize": 132}} if "lfs" in row else row for row in hub.rows]
    (tmp_path / "tokens").write_text(f'"Bearer {TOKEN}" 1;\n')
    (tmp_path / "profile.yaml").write_text(f"hf: {{endpoint: {hub.url}}}\n")
    options = ["--mirror", str(tmp_path / "profile.yaml"), "--no-pytorch", "--link", "https://x.example"]
    options += ["--tls", str(authority.certificate), str(authority.key), "--hf-tokens", str(tmp_path / "tokens")]
    options += ["--name", "localhost", "--port", str(port), "--min-free", "0", "--store", str(tmp_path / "store")]
    options += [] if behind else ["--no-hf"]
    done = envcheck("mirror", "site", "render", str(root), *options)
    assert done.returncode == 0, done.stderr
    path = f"{Path(os.environ.get('ENVCHECK_TEST_HUB', '/')).parent}:{os.environ['PATH']}"
    with running(root, environment={"PATH": path}) as processes:
        yield ServedSite(root, Store(tmp_path / "store"), port, authority.ca, processes["nginx"], hub)


def test_pip_and_uv_install_what_was_published(served: ServedSite, tmp_path: Path) -> None:
    assert get(f"{served.packages}/simple/alpha/", served.ca)[0] == 404  # it runs before anything is published
    contents = filled(served.store, tmp_path / "made")
    served.published(contents)
    (tmp_path / "lock").write_text(f"alpha==1.0 --hash=sha256:{contents.wheels[0].sha256}\n")
    (tmp_path / "torch").write_text(f"torch==2.8.0+cpu --hash=sha256:{contents.wheels[1].sha256}\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-cache-dir", "--no-deps"]
    uv_pip = [uv.find_uv_bin(), "pip", "install", "--no-cache", "--python", sys.executable]
    for name, command in {"pip": pip, "uv": uv_pip}.items():
        for lock, index in {"lock": "simple", "torch": "whl/cpu"}.items():
            to = ["--require-hashes", "--target", str(tmp_path / name), "-r", str(tmp_path / lock)]
            done = served.run(tmp_path, *command, "--index-url", f"{served.packages}/{index}", *to)
            assert done.returncode == 0, done.stdout + done.stderr
        assert sorted(path.name for path in (tmp_path / name).glob("*.py")) == ["alpha.py", "torch.py"]
    lines = [json.loads(line) for line in (served.root / "logs/access.json").read_text().splitlines()]
    whole = [one for one in lines if one["status"] == 200]
    assert {one["part"] for one in whole} == {"static", "hf"}
    assert sum(one["uri"].endswith(".whl") for one in whole) == 4
    status, body, headers = get(f"{served.packages}/simple/alpha/", served.ca)
    assert (status, headers["Content-Type"], b'href="../../files/' in body) == (200, "text/html", True)
    assert get(f"{served.packages}/simple/", served.ca)[1].startswith(b"<!DOCTYPE html>")
    wheel_at = f"{served.packages}/files/{contents.wheels[0].sha256}/{contents.wheels[0].name}"
    status, body, _ = get(f"{wheel_at}.metadata", served.ca)
    assert (status, sha256(body)) == (200, contents.wheels[0].metadata)
    status, body, headers = get(wheel_at, served.ca, Range="bytes=0-3")
    assert (status, body, headers["Content-Type"]) == (206, b"PK\x03\x04", "application/octet-stream")
    assert get(f"{served.packages}/simple/alpha/", served.ca, "POST")[0] == 403


def test_huggingface_hub_and_transformers_take_what_was_published(
    served: ServedSite, hub_python: Path, tmp_path: Path
) -> None:
    served.published(filled(served.store, tmp_path / "made"))
    requests = {"HF_ENDPOINT": served.models, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = served.run(tmp_path / "home", str(hub_python), "-c", USED, HF_TOKEN=TOKEN, **requests)
    assert done.returncode == 0, done.stderr[-3000:]
    result, mismatches = done.stdout.splitlines()
    assert json.loads(result) == [COMMIT, sha256(FILES[LARGE]), 8, 4]
    assert mismatches == "[]"
    refused = served.run(tmp_path / "other", str(hub_python), "-c", USED, HF_TOKEN="wrong", **requests)  # noqa: S106 (a test's)
    assert refused.returncode != 0
    assert get(f"{served.models}/{OWN}/resolve/main/config.json", served.ca)[0] == 401


def test_a_model_whose_headers_nginx_has_not_read_is_not_served_without_them(
    served: ServedSite, tmp_path: Path
) -> None:
    contents = filled(served.store, tmp_path / "made")
    served.published(contents)
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    late = Contents(models=[_model(served.store, "site/late")], branches={"site/late@main": COMMIT})
    releases.release(served.store, late, keep=2)
    status, _, headers = get(f"{served.models}/site/late/resolve/main/config.json", served.ca, **bearer)
    assert (status, headers["X-Error-Code"]) == (404, "EntryNotFound")
    served.published(contents, "site/late")
    status, body, headers = get(f"{served.models}/site/late/resolve/main/{LARGE}", served.ca, **bearer)
    assert (status, sha256(body), headers["X-Repo-Commit"]) == (200, sha256(FILES[LARGE]), COMMIT)
    assert headers["ETag"] == f'"{sha256(FILES[LARGE])}"'
    # Nor is a file of the same path, and of other content, served with what was said of the earlier one.
    path, other = f"{served.models}/{OWN}/resolve/main/config.json", b'{"model_type": "other"}'
    assert get(path, served.ca, **bearer)[0] == 200
    changed = Revision(repo=OWN, revision="f" * 40, files=[hub_file(served.store, "config.json", other)])
    releases.release(served.store, Contents(models=[changed], branches={f"{OWN}@main": "f" * 40}), keep=3)
    assert get(path, served.ca, **bearer)[0] == 404
    releases.rollback(served.store)
    assert get(path, served.ca, **bearer)[1] == FILES["config.json"]


TAKEN = f"""
import hashlib
from huggingface_hub import snapshot_download
print(hashlib.sha256(open(snapshot_download({REPO!r}) + "/{LARGE}", "rb").read()).hexdigest())
"""


@pytest.mark.parametrize("served", [True], indirect=True)
def test_a_model_comes_through_olah_once_and_its_token_stays_here(
    served: ServedSite, hub_python: Path, tmp_path: Path
) -> None:
    requests = {"HF_ENDPOINT": served.models, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    for home in ("one", "two"):
        done = served.run(tmp_path / home, str(hub_python), "-c", TAKEN, HF_TOKEN=TOKEN, **requests)
        assert (done.returncode, done.stdout.strip()) == (0, sha256(FILES[LARGE])), done.stderr[-2000:]
        served.hub.content[LARGE] = bytes(len(FILES[LARGE]))  # what is fetched again would be seen
    assert set(served.hub.tokens) == {None}
    assert served.run(tmp_path / "none", str(hub_python), "-c", TAKEN, **requests).returncode != 0
    assert get(f"{served.models}/api/models/{REPO}", served.ca)[0] == 401
