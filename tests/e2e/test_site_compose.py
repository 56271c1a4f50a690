"""A mirror site in containers: the rendered compose file as it is, its images made of this machine's own programs.

No registry need be reachable: the images are variables of the file, and here they name local ones.
"""

import dataclasses
import gzip
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from envcheck.registry.documents import digest_of
from tests.e2e.conftest import Image, Machine
from tests.http_server import Servers
from tests.mirrors.site.conftest import Upstream, free_ports, get, page
from tests.processes import program
from tests.registries import docker_registry
from tests.registry.oci.fakes import LAYER, opened, push_parts
from tests.waiting import eventually
from tests.wheels import wheel

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
PROGRAMS = ("nginx", "docker-registry", "prometheus", "mtail", "prometheus-node-exporter")
LOCAL = "envcheck-test-site:1"
IMAGES = ("NGINX_IMAGE", "REGISTRY_IMAGE", "MTAIL_IMAGE", "NODE_EXPORTER_IMAGE", "PROMETHEUS_IMAGE")
DOCKERFILE = (
    f"FROM {{base}}\nUSER 0\nCOPY {' '.join(PROGRAMS)} /usr/bin/\n"
    "RUN ln -s docker-registry /usr/bin/registry && ln -s prometheus-node-exporter /usr/bin/node_exporter\n"
)


@dataclasses.dataclass(frozen=True)
class ComposedSite:
    """A site that compose has started, its upstreams, and an engine that pulls through it."""

    machine: Machine
    root: Path
    port: int
    upstreams: Servers
    origin: str

    def compose(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run docker compose on the rendered file, with the images there are."""
        file = ("compose", "-f", f"{self.root}/compose.yaml", "--env-file", str(self.root.parent / "images.env"))
        return self.machine.docker(*file, *arguments)

    def installed(self, to: Path) -> None:
        """Install a package through the site, with nothing cached and its hash demanded."""
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--no-cache-dir",
            "--disable-pip-version-check",
            "--require-hashes",
        ]
        command = [*pip, "--index-url", f"http://127.0.0.1:{self.port}/pypi/simple", "--target", str(to)]
        env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PIP_CONFIG_FILE": "/dev/null", "no_proxy": "*"}
        command += ["-r", str(self.root.parent / "lock")]
        completed = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert completed.returncode == 0, completed.stderr


@pytest.fixture(scope="module")
def programs(machine: Machine, image: Image) -> str:
    """Return an image with this machine's servers in it."""
    with tempfile.TemporaryDirectory() as context:
        for name in PROGRAMS:
            shutil.copy(program(name), context)
        Path(context, "Dockerfile").write_text(DOCKERFILE.format(base=image.reference))
        output = f"--output=type=image,name={LOCAL},compression=uncompressed"
        completed = machine.docker("build", "--quiet", output, context)
    assert completed.returncode == 0, completed.stderr
    return LOCAL


@pytest.fixture(scope="module")
def composed(machine: Machine, programs: str) -> Iterator[ComposedSite]:
    """Return a running site: a package index and a registry of one image are its upstreams."""
    assert programs
    # Whom nginx' workers run as in a container must reach the site, and pytest keeps its own directories to its user.
    scratch = Path(tempfile.mkdtemp(prefix="envcheck-site-"))
    scratch.chmod(0o755)
    upstreams, port = Servers(), free_ports(130)
    index = upstreams.start(Upstream(scratch / "index", "127.0.0.2"))
    made = wheel(index.tree / "own", "nearlib", ballast=9_000_000)
    page(index.tree / "simple", "nearlib", {f"/own/{made.name}": made})
    (scratch / "lock").write_text(f"nearlib==1.0 --hash=sha256:{hashlib.sha256(made.read_bytes()).hexdigest()}\n")
    (scratch / "profile.yaml").write_text(f"pypi: [{{url: {index.url}/simple}}]\n")
    (scratch / "registry").mkdir()
    at = upstreams.enter_context(docker_registry(scratch / "registry"))
    options = ["--mirror", str(scratch / "profile.yaml"), "--link", index.url, "--no-pytorch", "--no-hf"]
    options += ["--port", str(port), "--min-free", "0", "--registry", f"docker.io=http://{at}"]
    (scratch / "images.env").write_text("".join(f"{name}={LOCAL}\n" for name in IMAGES))
    site = ComposedSite(machine, scratch / "site", port, upstreams, at)
    done = machine.envcheck("mirror", "site", "render", str(site.root), *options)
    assert done.returncode == 0, done.stderr
    try:
        yield site
    finally:
        site.compose("down")
        upstreams.close()
        shutil.rmtree(scratch)


@pytest.fixture(scope="module")
def mirrored(composed: ComposedSite) -> Iterator[ComposedSite]:
    """Have the engine pull through the site, by the daemon.json that envcheck renders for it, joined to its own."""
    shown = composed.machine.envcheck("mirror", "show", str(composed.root / "client.yaml"), "--format", "daemon")
    assert shown.returncode == 0, shown.stderr
    run = Path(composed.machine.env["DOCKER_HOST"].removeprefix("unix://")).parent
    own = (run / "daemon.json").read_text()
    dockerd = int((run / "pid").read_text())
    (run / "daemon.json").write_text(json.dumps({**json.loads(own), **json.loads(shown.stdout)}))
    os.kill(dockerd, signal.SIGHUP)
    expected = f"http://127.0.0.1:{composed.port + 2}/"
    info = ("info", "--format", "{{.RegistryConfig.Mirrors}}")
    assert eventually(lambda: expected in composed.machine.docker(*info).stdout, expected=True)
    yield composed
    (run / "daemon.json").write_text(own)
    os.kill(dockerd, signal.SIGHUP)


def states(site: ComposedSite) -> dict[str, str]:
    listed = site.compose("ps", "--all", "--format", "{{.Service}} {{.State}}").stdout
    return dict(line.split() for line in listed.splitlines())


def test_a_site_runs_in_containers_serves_without_its_upstream_and_leaves_nothing(
    mirrored: ComposedSite, tmp_path: Path
) -> None:
    site, machine = mirrored, mirrored.machine
    done = site.compose("up", "--detach")
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(states(site)) == {"registry-docker.io", "mtail", "node-exporter", "prometheus", "nginx"}
    assert set(states(site).values()) == {"running"}
    site.installed(tmp_path / "one")
    _push(site)
    pulled = machine.docker("pull", "library/small:1")
    assert pulled.returncode == 0, pulled.stderr
    _cut_off(site)
    site.installed(tmp_path / "two")
    assert machine.docker("rmi", "library/small:1").returncode == 0
    completed = machine.docker("pull", "library/small:1")
    assert completed.returncode == 0, completed.stderr
    built = machine.docker("build", "--no-cache", "--pull", "--quiet", "-", stdin="FROM library/small:1\nCMD x\n")
    assert built.returncode == 0, built.stderr

    def metrics() -> str:
        return get(f"http://127.0.0.1:{site.port + 100}/metrics")[1].decode()

    assert eventually(lambda: 'requests_total{outcome="ok",part="files"} 2\n' in metrics(), expected=True)
    assert 'downloads_total{outcome="error"} 0\n' in metrics()
    targets = f"http://127.0.0.1:{site.port + 101}/api/v1/targets"
    assert eventually(lambda: b'"health":"up"' in get(targets)[1], expected=True)
    assert site.compose("down").returncode == 0
    assert states(site) == {}


def _push(site: ComposedSite) -> None:
    """Put a small image into the upstream's registry: one that the engine never had, so that it pulls every blob."""
    unpacked = io.BytesIO()
    with tarfile.open(fileobj=unpacked, mode="w") as tar:
        (member := tarfile.TarInfo("file")).size = 200_000
        tar.addfile(member, io.BytesIO(os.urandom(member.size)))
    architecture = site.machine.docker("version", "--format", "{{.Server.Arch}}").stdout.strip()
    content = {"type": "layers", "diff_ids": [digest_of(unpacked.getvalue())]}
    config = json.dumps({"architecture": architecture, "os": "linux", "config": {}, "rootfs": content}).encode()
    layer = gzip.compress(unpacked.getvalue())
    push_parts(opened(site.origin, "library/small"), config, layer, "1", f"{LAYER}+gzip")


def _cut_off(site: ComposedSite) -> None:
    """End the upstreams once the registry of the site has stored what it sent."""
    stored = site.root / "cache/registry/docker.io/docker/registry/v2"
    links = "repositories/library/small/_layers/sha256/*/link"  # to its one layer and to its configuration
    assert eventually(lambda: len(list(stored.glob(links))), 2) == 2
    site.upstreams.close()
