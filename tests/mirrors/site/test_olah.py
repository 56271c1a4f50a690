"""A model through a site: huggingface_hub, a bearer token that only nginx sees, a real olah behind it, over TLS."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import Certificate
from tests.http_server import Servers
from tests.mirrors.hub.conftest import FILES, LARGE, REPO, Hub, sha256
from tests.mirrors.site.conftest import envcheck, running
from tests.mirrors.site.upstreams import free_ports, get

pytestmark = pytest.mark.tools
TOKEN = "right"  # noqa: S105 (a test's)
TAKEN = f"""
import hashlib
from huggingface_hub import snapshot_download
at = snapshot_download({REPO!r})
print(hashlib.sha256(open(at + "/{LARGE}", "rb").read()).hexdigest())
"""


@dataclasses.dataclass(frozen=True)
class ServedSite:
    """An endpoint, a site before it and what its clients need."""

    hub: Hub
    site: Path
    port: int
    python: str
    ca: Path
    rendered: tuple[str, ...]
    processes: dict[str, subprocess.Popen[bytes]]

    def taken(self, cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Download the model as a user does, with nothing of this machine's configuration."""
        plain = {"PATH": os.environ["PATH"], "HOME": str(cache), "HF_HUB_CACHE": str(cache), "no_proxy": "*"}
        plain |= {"HF_ENDPOINT": f"https://127.0.0.1:{self.port + 1}", "SSL_CERT_FILE": str(self.ca)}
        plain |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", **environment}
        return subprocess.run([self.python, "-c", TAKEN], env=plain, capture_output=True, text=True, check=False)


@pytest.fixture
def served(
    tmp_path: Path, nginx: str, authority: Certificate, servers: Servers, hub_python: Path
) -> Iterator[ServedSite]:
    """Return a running site with olah in it."""
    python = str(hub_python)
    assert nginx
    hub, site, port = servers.start(Hub()), tmp_path / "site", free_ports(130)
    hub.rows[:] = [{**row, "lfs": {**row["lfs"], "pointerSize": 132}} if "lfs" in row else row for row in hub.rows]
    (tmp_path / "tokens").write_text(f'"Bearer {TOKEN}" 1;\n')
    (tmp_path / "site.yaml").write_text(f"hf: {{endpoint: {hub.url}}}\n")
    options = ("--mirror", str(tmp_path / "site.yaml"), "--hf-tokens", str(tmp_path / "tokens"), "--port", str(port))
    tls = ("--tls", str(authority.certificate), str(authority.key), "--no-pytorch", "--link", "https://x.example")
    words = ("mirror", "site", "render", str(site), *options, *tls, "--min-free", "0")
    done = envcheck(*words)
    assert done.returncode == 0, done.stderr
    path = f"{Path(python).parent}:{os.environ['PATH']}"
    with running(site, environment={"PATH": path}) as processes:
        yield ServedSite(hub, site, port, python, authority.ca, words, processes)


def test_a_model_comes_through_the_site_once_and_its_token_stays_there(served: ServedSite, tmp_path: Path) -> None:
    done = served.taken(tmp_path / "one", HF_TOKEN=TOKEN)
    assert (done.returncode, done.stdout.strip()) == (0, sha256(FILES[LARGE])), done.stderr[-2000:]
    assert set(served.hub.tokens) == {None}
    served.hub.content[LARGE] = bytes(len(FILES[LARGE]))  # what is fetched again would be seen
    repeated = served.taken(tmp_path / "two", HF_TOKEN=TOKEN)
    assert (repeated.returncode, repeated.stdout) == (0, done.stdout)
    assert served.taken(tmp_path / "none").returncode != 0
    assert get(f"https://127.0.0.1:{served.port + 1}/api/models/{REPO}", served.ca)[0] == 401
    parts = [json.loads(line)["part"] for line in (served.site / "logs/access.json").read_text().splitlines()]
    assert set(parts) == {"hf"}
