"""A bootstrapped base: the same recipe has the same name, and its mirror is no part of it."""

import subprocess
from pathlib import Path

import pytest

from envcheck.errors import UnavailableError
from envcheck.images.engines import bootstrap as bases
from envcheck.images.targets import OS_PACKAGES
from envcheck.matrix.facts.model import Base
from envcheck.mirrors.profiles.host_config import AptSource
from envcheck.mirrors.profiles.model import Profile
from tests.tables import each

BOOKWORM = Base(python="3.11", distro="debian", suite="bookworm", image="debian:bookworm-slim")
JAMMY = Base(python="3.10", distro="ubuntu", suite="jammy", image="ubuntu:22.04")
MIRROR = "http://mirror.example"
HOST = [AptSource(uris=[f"{MIRROR}/debian"], suites=["bookworm", "bookworm-updates"])]


def test_release_updates_and_security_are_used_where_they_are_served() -> None:
    lines = bases.source_lines(BOOKWORM, [MIRROR], serves=lambda _: True)
    assert lines == [
        f"deb {MIRROR}/debian bookworm main",
        f"deb {MIRROR}/debian bookworm-updates main",
        f"deb {MIRROR}/debian-security bookworm-security main",
    ]
    assert bases.source_lines(BOOKWORM, [MIRROR], serves=lambda url: url.endswith("/bookworm")) == lines[:1]


@each("mirrors", [[], [MIRROR]])
def test_a_suite_nobody_serves_says_what_to_do(mirrors: list[str]) -> None:
    with pytest.raises(UnavailableError, match="no apt mirror known here serves jammy; name a registry or an apt mir"):
        bases.source_lines(JAMMY, mirrors, serves=lambda _: False)


def test_the_profiles_mirrors_come_before_this_machines_own() -> None:
    assert bases.mirrors_for(BOOKWORM, Profile(name="p", apt=["http://site.example"]), HOST) == ["http://site.example"]
    assert bases.mirrors_for(BOOKWORM, Profile(name="p"), HOST) == [MIRROR]
    assert bases.mirrors_for(BOOKWORM, Profile(name="p", closed=True), HOST) == []


def test_the_recipe_holds_all_a_base_must_have_and_drops_the_mirror() -> None:
    how = bases.recipe(
        BOOKWORM, "x86_64", OS_PACKAGES, [f"deb {MIRROR}/debian bookworm main"], None, Path("/t/rootfs.tar")
    )
    assert how[0] == "mmdebstrap"
    assert "--include=ca-certificates,python3,python3-venv,tini" in how
    assert "--architectures=amd64" in how
    assert "--dpkgopt=path-exclude=/usr/share/locale/*" in how
    assert "--dpkgopt=path-include=/usr/share/doc/*/copyright" in how
    assert "--dpkgopt=path-include=/usr/share/doc/apt/examples/*" in how
    assert not [word for word in how if word.startswith("--hook-dir")]
    hooked = bases.recipe(BOOKWORM, "x86_64", OS_PACKAGES, [], None, Path("/t"), hooks=Path("/hooks"))
    assert "--hook-dir=/hooks" in hooked
    hook = next(word for word in how if word.startswith("--customize-hook="))
    assert "rm -f etc/apt/sources.list" in hook
    assert MIRROR not in hook
    assert how[-3:] == ["bookworm", "/t/rootfs.tar", f"deb {MIRROR}/debian bookworm main"]


def test_a_private_ca_reaches_apt_and_leaves_no_file() -> None:
    how = bases.recipe(BOOKWORM, "x86_64", OS_PACKAGES, [], "/site/ca.pem", Path("/t/rootfs.tar"))
    assert '--aptopt=Acquire::https::CAInfo "/site/ca.pem"' in how
    assert any("rm -f" in word and "99mmdebstrap" in word for word in how)


def test_a_base_holds_no_host_key_of_an_ssh_server(tmp_path: Path) -> None:
    """Installing openssh-server makes them, and every container of every image on that base would share them."""
    argv = bases.recipe(BOOKWORM, "x86_64", ("openssh-server",), [], None, tmp_path / "base.tar")
    (hook,) = [each.partition("=")[2] for each in argv if each.startswith("--customize-hook=") and "ssh" in each]
    (tmp_path / "etc/ssh").mkdir(parents=True)
    for name in ("ssh_host_rsa_key", "ssh_host_rsa_key.pub", "sshd_config"):
        (tmp_path / "etc/ssh" / name).touch()
    subprocess.run(["sh", "-c", hook, "sh", tmp_path], check=True)
    assert [path.name for path in (tmp_path / "etc/ssh").iterdir()] == ["sshd_config"]
