"""A whole site: its pull-through registry, its metrics, its units and its compose file."""

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from envcheck.mirrors.site import programs, render
from envcheck.registry.documents import OCI_MANIFEST, digest_of
from envcheck.registry.repository import Repository
from tests.mirrors.site.conftest import envcheck, free_ports, get, running
from tests.mirrors.site.test_render import site as everything
from tests.registries import docker_registry
from tests.registry.oci.fakes import opened, push_parts
from tests.waiting import eventually

pytestmark = pytest.mark.tools
LAYER = b"a layer" * 100_000


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[tuple[Repository, contextlib.ExitStack]]:
    """Return a repository of a real registry with an image, and what ends the registry."""
    (tmp_path / "registry").mkdir()
    with contextlib.ExitStack() as serving:
        repository = opened(serving.enter_context(docker_registry(tmp_path / "registry")), "lib/image")
        push_parts(repository, b"{}", LAYER, "one")
        yield repository, serving


@pytest.fixture
def registry_site(tmp_path: Path, upstream: tuple[Repository, object]) -> tuple[Path, int, tuple[str, ...]]:
    root, port = tmp_path / "site", free_ports(130)
    options = ("--no-hf", "--no-pytorch", "--link", "http://127.0.0.9", "--port", str(port), "--min-free", "0")
    words = ("mirror", "site", "render", str(root), *options, "--registry", f"test={upstream[0].reference.url}")
    done = envcheck(*words)
    assert done.returncode == 0, done.stderr
    return root, port, words


def pulled(port: int) -> list[bytes]:
    base = f"http://127.0.0.1:{port + 2}/v2/lib/image"
    status, manifest, _ = get(f"{base}/manifests/one", Accept=OCI_MANIFEST)
    assert status == 200, manifest
    document = json.loads(manifest)
    blobs = [get(f"{base}/blobs/{one['digest']}") for one in (document["config"], *document["layers"])]
    assert [status for status, _, _ in blobs] == [200, 200]
    return [manifest, *(body for _, body, _ in blobs)]


def test_an_image_is_pulled_through_once_and_then_without_its_upstream(
    registry_site: tuple[Path, int, tuple[str, ...]],
    upstream: tuple[Repository, contextlib.ExitStack],
    tmp_path: Path,
) -> None:
    root, port, words = registry_site
    image, log = upstream[0].manifest("one"), tmp_path / "registry/registry.log"
    whole, asked = [image.content, b"{}", LAYER], f"GET /v2/lib/image/blobs/{digest_of(LAYER)}"
    with running(root, "node-exporter", "prometheus", watched=True):
        assert pulled(port) == whole
        stored = root / "cache/registry/test/docker/registry/v2/repositories/lib/image/_layers"
        assert eventually(lambda: len(list(stored.glob("sha256/*/link"))), 2) == 2
        # Registry 2.8 asks twice for what it has not, for the client and for itself; each is logged when it ends.
        requests, before = 0, -1
        while requests != before:
            time.sleep(0.5)
            requests, before = log.read_text().count(asked), requests
        assert requests in {1, 2}
        assert pulled(port) == whole
        assert log.read_text().count(asked) == requests
        upstream[1].close()
        assert pulled(port) == whole
        assert get(f"http://127.0.0.1:{port + 2}/v2/lib/image/manifests/two", None, "PUT")[0] == 403
        counts = re.compile(r'requests_total\{outcome="(\w+)",part="registry"\} (\d+)')

        def counted() -> dict[str, str]:
            return dict(counts.findall(get(f"http://127.0.0.1:{port + 100}/metrics")[1].decode()))

        # mtail counts what comes after it has opened the log: the refusal and the last pull, and nothing twice.
        assert eventually(lambda: counted().get("refused", ""), "1") == "1"
        assert 3 <= int(counted()["ok"]) <= 9
    # A pull-through registry asks its upstream before it starts.
    assert envcheck(*words, "--offline").returncode == 0
    with running(root):
        assert pulled(port) == whole
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
