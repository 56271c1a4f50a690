"""apt through a running site over TLS, and the limit of connections of one client."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Certificate
from tests.mirrors.site.conftest import World, running
from tests.waiting import eventually

pytestmark = pytest.mark.tools


def tool(name: str) -> str:
    """Return a real client."""
    text = shutil.which(name)
    if text is None:
        pytest.skip(f"no {name} here (`make test` unpacks it where apt is)")
    return text


@dataclasses.dataclass(frozen=True)
class ServedSite:
    """A running site and its upstreams."""

    world: World
    site: Path
    port: int
    ca: Path

    def at(self, path: str) -> str:
        """Return the URL of a path."""
        return f"https://127.0.0.1:{self.port}{path}"

    def log(self) -> list[dict[str, Any]]:
        """Return the access log so far; nginx writes a line once the client is done."""
        return [json.loads(line) for line in (self.site / "logs/access.json").read_text().splitlines()]


@pytest.fixture
def served(world: World, authority: Certificate) -> Iterator[ServedSite]:
    """Return a running site with a cached tree of Debian packages, over TLS."""
    profile = world.root / "site.yaml"
    profile.write_text(f"{profile.read_text()}ca: {authority.ca}\n")
    options = ["--tls", str(authority.certificate), str(authority.key), "--ca", str(authority.ca), "--no-hf"]
    site, port = world.render(*options, "--tree", f"debian={world.index.origin}/debian/")
    with running(site):
        yield ServedSite(world, site, port, authority.ca)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


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
