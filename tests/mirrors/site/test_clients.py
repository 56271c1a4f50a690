"""The clients that people have, through a running site over TLS: curl, aria2c, apt, skopeo; and its limits."""

from __future__ import annotations

import collections
import dataclasses
import gzip
import hashlib
import http.client
import json
import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Certificate, resigned
from tests.mirrors.site.conftest import World, envcheck, running
from tests.mirrors.site.test_registry import CONFIG, LAYER, push
from tests.mirrors.site.upstreams import answers, free_port
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.tools


def tool(name: str) -> str:
    """Return a real client."""
    text = shutil.which(name)
    if text is None:
        pytest.skip(f"no {name} here (`make test` unpacks it where apt is)")
    return text


@dataclasses.dataclass(frozen=True)
class ServedSite:
    """A running site at two addresses, its upstreams, and the registry behind one of its ports."""

    world: World
    site: Path
    port: int
    ca: Path
    registry: subprocess.Popen[bytes]

    def at(self, path: str, address: str = "127.0.0.1") -> str:
        """Return the URL of a path, at one of its addresses."""
        return f"https://{address}:{self.port}{path}"

    @property
    def far(self) -> str:
        """Return the path of a file of 20 MB."""
        return f"/files/{self.world.far.origin.removeprefix('http://')}/packages/{self.world.wheels['farlib'].name}"

    def log(self) -> list[dict[str, Any]]:
        """Return the access log so far; nginx writes a line once the client is done."""
        return [json.loads(line) for line in (self.site / "logs/access.json").read_text().splitlines()]


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a client with no proxy and none of this machine's configuration."""
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "no_proxy": "*", **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=100)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory, authority: Certificate) -> Certificate:
    """Return a certificate of the same authority for two addresses."""
    return resigned(authority.ca, tmp_path_factory.mktemp("wide"), "127.0.0.1", "127.0.0.6")


@pytest.fixture
def served(world: World, wide: Certificate) -> Iterator[ServedSite]:
    """Return a running site before a registry that it reaches over TLS."""
    program, root = tool("docker-registry"), world.root / "registry"
    root.mkdir()
    at = f"127.0.0.6:{free_port('127.0.0.6')}"
    tls = f"\n  tls: {{certificate: {wide.certificate}, key: {wide.key}}}\n"
    plain = CONFIG.format(root=root, at=at)
    (root / "config.yml").write_text(plain)
    with subprocess.Popen([program, "serve", str(root / "config.yml")], stderr=subprocess.DEVNULL) as process:
        answers(f"http://{at}/", process)
        push(f"http://{at}")
        process.terminate()
    (root / "config.yml").write_text(plain.replace(f'http: {{addr: "{at}"}}', f'http:\n  addr: "{at}"{tls}'))
    process = subprocess.Popen([program, "serve", str(root / "config.yml")], stderr=subprocess.DEVNULL)
    answers(f"https://{at}/", process)
    profile = world.root / "site.yaml"
    profile.write_text(f"{profile.read_text()}ca: {wide.ca}\n")
    options = ["--tls", str(wide.certificate), str(wide.key), "--ca", str(wide.ca), "--no-hf"]
    options += ["--address", "127.0.0.1", "--address", "127.0.0.6", "--registry", f"docker.io=https://{at}"]
    options += ["--tree", f"debian={world.index.origin}/debian/"]
    site, port = world.render(*options)
    try:
        with running(site):
            yield ServedSite(world, site, port, wide.ca, process)
    finally:
        process.terminate()
        process.wait(PATIENCE)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_skopeo_copies_an_image_by_the_rendered_settings_and_then_without_its_upstream(
    served: ServedSite, tmp_path: Path
) -> None:
    skopeo = tool("skopeo")
    shown = envcheck("mirror", "show", str(served.site / "client.yaml"), "--format", "registries")
    assert shown.returncode == 0, shown.stderr
    conf, policy = tmp_path / ".config/containers/registries.conf", tmp_path / "policy.json"
    conf.parent.mkdir(parents=True)
    conf.write_text(shown.stdout)
    policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    environment = {"SSL_CERT_FILE": str(served.ca), "HOME": str(tmp_path)}
    layer = hashlib.sha256(LAYER).hexdigest()
    stored = served.site / "cache/registry/docker.io/docker/registry/v2/repositories/lib/image/_layers"
    for name in ("one", "two"):
        to = tmp_path / name
        command = [skopeo, "--policy", str(policy), "copy", "docker://docker.io/lib/image:one", f"dir:{to}"]
        done = run(*command, **environment)
        assert done.returncode == 0, done.stderr
        assert (to / layer).read_bytes() == LAYER
        # Of its layer and its configuration, which the site's registry writes once it has sent them on.
        assert eventually(lambda: len(list(stored.glob("sha256/*/link"))), 2) == 2
        served.registry.terminate()
        served.registry.wait(PATIENCE)
    assert eventually(lambda: {line["part"] for line in served.log()}, {"registry"}) == {"registry"}


def test_apt_installs_from_a_cached_tree_and_then_without_its_upstream(served: ServedSite, tmp_path: Path) -> None:
    apt, tree = tool("apt-get"), served.world.index.tree / "debian"
    home = _apt(tmp_path / "apt", f"deb [trusted=yes] {served.at('/trees/debian')} /\n", served.ca)
    first = _package(tree, tmp_path, "1")
    for command in (["update"], ["download", "ours"]):
        _run_apt(apt, home, *command)
    assert digest(home / first.name) == digest(first)
    _package(tree, tmp_path, "2")
    _run_apt(apt, home, "update")  # for ten minutes the site has what it had
    served.world.stop()
    for path in [*home.glob("lists/*Packages*"), home / first.name]:
        path.unlink()
    for command in (["update"], ["download", "ours"]):
        _run_apt(apt, home, *command)
    assert digest(home / first.name) == digest(first)

    def packages() -> list[str]:
        return [line["cache"] for line in served.log() if str(line["uri"]).endswith(".deb")]

    assert eventually(packages, ["MISS", "HIT"]) == ["MISS", "HIT"]
    lines = [line for line in served.log() if str(line["uri"]).startswith("/trees/debian/")]
    assert {line["part"] for line in lines} == {"files"}


def _apt(home: Path, source: str, ca: Path) -> Path:
    """Return a directory of apt's own, with nothing of this machine's in it."""
    for name in ("lists/partial", "cache/archives/partial", "etc/apt.conf.d", "etc/preferences.d"):
        (home / name).mkdir(parents=True)
    (home / "status").touch()
    (home / "etc/sources.list").write_text(source)
    (home / "apt.conf").write_text(
        f'Dir::Etc "{home}/etc"; Dir::State::Lists "{home}/lists"; Dir::Cache "{home}/cache";\n'
        f'Dir::State::status "{home}/status"; APT::Sandbox::User "root"; Acquire::https::CAInfo "{ca}";\n'
    )
    return home


def _run_apt(apt: str, home: Path, *command: str) -> None:
    env = {"PATH": os.environ["PATH"], "APT_CONFIG": str(home / "apt.conf")}
    completed = subprocess.run([apt, "-qq", *command], env=env, cwd=home, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    assert "Failed" not in completed.stderr


def _package(tree: Path, scratch: Path, version: str) -> Path:
    """Build a package into a flat repository, which then holds it alone."""
    about = f"Package: ours\nVersion: {version}\nArchitecture: all\nMaintainer: us <us@example>\nDescription: ours\n"
    (scratch / f"pkg{version}/DEBIAN").mkdir(parents=True)
    (scratch / f"pkg{version}/DEBIAN/control").write_text(about)
    (tree / "pool").mkdir(parents=True, exist_ok=True)
    deb = tree / f"pool/ours_{version}_all.deb"
    command = [tool("dpkg-deb"), "--build", str(scratch / f"pkg{version}"), str(deb)]
    subprocess.run(command, check=True, capture_output=True)
    listed = f"{about}Filename: pool/{deb.name}\nSize: {deb.stat().st_size}\nSHA256: {digest(deb)}\n"
    (tree / "Packages.gz").write_bytes(gzip.compress(listed.encode()))
    return deb


def test_one_client_has_so_many_connections_and_no_more(served: ServedSite) -> None:
    # A file that no socket's buffers hold: each download stays open until it is read.
    (served.site / "public/static/large").touch()
    os.truncate(served.site / "public/static/large", 200_000_000)
    context = ssl.create_default_context(cafile=str(served.ca))

    def begun(_: int) -> tuple[http.client.HTTPSConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPSConnection("127.0.0.1", served.port, timeout=30, context=context)
        connection.request("GET", "/static/large")
        return connection, connection.getresponse()

    def closed(connection: http.client.HTTPSConnection, answer: http.client.HTTPResponse) -> int:
        answer.close()
        connection.close()
        return answer.status

    with ThreadPoolExecutor(16) as pool:
        downloads = list(pool.map(begun, range(70)))
    assert sorted(closed(*one) for one in downloads) == [200] * 64 + [429] * 6
    # Who goes away is no failure of the mirror's, and its connections are free again.

    def outcomes() -> dict[str, int]:
        return dict(collections.Counter(one["outcome"] for one in served.log() if one["part"] == "static"))

    expected = {"client_abort": 64, "refused": 6}
    assert eventually(outcomes, expected) == expected
    assert closed(*begun(0)) == 200
