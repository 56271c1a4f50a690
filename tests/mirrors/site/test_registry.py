"""A whole site: its pull-through registry, its metrics, its units and its compose file."""

import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from envcheck.mirrors.site import programs, render
from tests.mirrors.site.conftest import envcheck, running
from tests.mirrors.site.test_render import site as everything
from tests.mirrors.site.upstreams import answers, free_port, free_ports, get
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.tools
CONFIG = """
version: 0.1
log: {{level: error, accesslog: {{disabled: false}}}}
storage: {{filesystem: {{rootdirectory: {root}/data}}}}
http: {{addr: "{at}"}}
"""
LAYER = b"a layer" * 100_000
MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def manifest_of(config: bytes, layer: bytes) -> bytes:
    kinds = ("application/vnd.docker.container.image.v1+json", "application/vnd.docker.image.rootfs.diff.tar.gzip")
    result, inner = (
        {"mediaType": kind, "size": len(blob), "digest": digest(blob)}
        for kind, blob in zip(kinds, (config, layer), strict=True)
    )
    return json.dumps({"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": result, "layers": [inner]}).encode()


MANIFEST = manifest_of(b"{}", LAYER)


def put(origin: str, path: str, body: bytes, kind: str, method: str = "PUT") -> http.client.HTTPResponse:
    with contextlib.closing(http.client.HTTPConnection(origin.removeprefix("http://"), timeout=30)) as connection:
        connection.request(method, path, body=body, headers={"Content-Type": kind})
        answer = connection.getresponse()
        answer.read()
        return answer


def push(origin: str, name: str = "lib/image", tag: str = "one", config: bytes = b"{}", layer: bytes = LAYER) -> None:
    for blob in (layer, config):
        begun = put(origin, f"/v2/{name}/blobs/uploads/", b"", "text/plain", "POST")
        parts = urlsplit(begun.headers["Location"])
        to = f"{parts.path}?{parts.query}&digest={digest(blob)}"
        assert put(origin, to, blob, "application/octet-stream").status == 201
    assert put(origin, f"/v2/{name}/manifests/{tag}", manifest_of(config, layer), MANIFEST_TYPE).status == 201


@pytest.fixture
def upstream_registry(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes], Path]]:
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("no docker-registry here (`make test` unpacks it where apt is)")
    root = tmp_path / "registry"
    root.mkdir()
    at = f"127.0.0.7:{free_port('127.0.0.7')}"
    (root / "config.yml").write_text(CONFIG.format(root=root, at=at))
    with (root / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(root / "config.yml")], stdout=log, stderr=log)
    answers(f"http://{at}/", process)
    push(f"http://{at}")
    yield f"http://{at}", process, root / "log"
    process.terminate()
    process.wait(PATIENCE)


@pytest.fixture
def registry_site(
    tmp_path: Path, nginx: str, upstream_registry: tuple[str, object, object]
) -> tuple[Path, int, tuple[str, ...]]:
    assert nginx
    root, port = tmp_path / "site", free_ports(130)
    options = ("--no-hf", "--no-pytorch", "--link", "http://127.0.0.9", "--port", str(port), "--min-free", "0")
    words = ("mirror", "site", "render", str(root), *options, "--registry", f"test={upstream_registry[0]}")
    done = envcheck(*words)
    assert done.returncode == 0, done.stderr
    return root, port, words


def wait(there: Callable[[], bool]) -> None:
    assert eventually(there, expected=True)


def metrics(port: int) -> str:
    return get(f"http://127.0.0.1:{port + 100}/metrics")[1].decode()


def pulled(port: int) -> list[bytes]:
    base = f"http://127.0.0.1:{port + 2}/v2/lib/image"
    status, manifest, _ = get(f"{base}/manifests/one", Accept=MANIFEST_TYPE)
    assert status == 200, manifest
    document = json.loads(manifest)
    blobs = [get(f"{base}/blobs/{one['digest']}") for one in (document["config"], *document["layers"])]
    assert [status for status, _, _ in blobs] == [200, 200]
    return [manifest, *(body for _, body, _ in blobs)]


def test_an_image_is_pulled_through_once_and_then_without_its_upstream(
    registry_site: tuple[Path, int, tuple[str, ...]], upstream_registry: tuple[str, subprocess.Popen[bytes], Path]
) -> None:
    root, port, words = registry_site
    _, process, log = upstream_registry
    with running(root, "node-exporter", "prometheus", watched=True):
        assert pulled(port) == [MANIFEST, b"{}", LAYER]
        stored = root / "cache/registry/test/docker/registry/v2/repositories/lib/image/_layers"
        wait(lambda: len(list(stored.glob("sha256/*/link"))) == 2)
        # Registry 2.8 asks twice for what it has not, for the client and for itself; each is logged when it ends.
        requests, before = 0, -1
        while requests != before:
            time.sleep(0.5)
            requests, before = log.read_text().count(f"GET /v2/lib/image/blobs/{digest(LAYER)}"), requests
        assert requests in {1, 2}
        assert pulled(port) == [MANIFEST, b"{}", LAYER]
        assert log.read_text().count(f"GET /v2/lib/image/blobs/{digest(LAYER)}") == requests
        process.terminate()
        process.wait(PATIENCE)
        assert pulled(port) == [MANIFEST, b"{}", LAYER]
        assert put(f"http://127.0.0.1:{port + 2}", "/v2/lib/image/manifests/two", MANIFEST, MANIFEST_TYPE).status == 403
        counts = re.compile(r'requests_total\{outcome="(\w+)",part="registry"\} (\d+)')
        # mtail counts what comes after it has opened the log: the refusal and the last pull, and nothing twice.
        assert eventually(lambda: dict(counts.findall(metrics(port))).get("refused", ""), "1") == "1"
        assert 3 <= int(dict(counts.findall(metrics(port)))["ok"]) <= 9
    # A pull-through registry asks its upstream before it starts.
    assert envcheck(*words, "--offline").returncode == 0
    with running(root):
        assert pulled(port) == [MANIFEST, b"{}", LAYER]
    assert envcheck(*words).returncode == 0
    assert "remoteurl" in (root / "registry/test.yml").read_text()


def test_what_a_killed_nginx_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    names = ("f" * 32 + ".0000000012", "e" * 32 + ".0000000013", "f" * 32)
    old, young, cached = (tmp_path / f"cache/files/a/bc/{name}" for name in names)
    (tmp_path / "cache/index").mkdir(parents=True)
    old.parent.mkdir(parents=True)
    for path in (old, young, cached):
        path.touch()
    for path in (old, cached):
        os.utime(path, (0, 0))
    sweep = next(task for task in programs(everything(tmp_path)).tasks if task.name == "sweep")
    subprocess.run(sweep.commands[0].split(), check=True)
    assert sorted(old.parent.iterdir()) == sorted([young, cached])


def test_compose_has_every_part(tmp_path: Path) -> None:
    services = yaml.safe_load(render(everything(tmp_path))["compose.yaml"])["services"]
    assert list(services) == ["registry-docker.io", "olah", "rclone", "mtail", "node-exporter", "prometheus", "nginx"]
    assert services["nginx"]["command"][-1] == "daemon off;"
    assert services["olah"]["environment"]["SSL_CERT_FILE"] == everything(tmp_path).ca
