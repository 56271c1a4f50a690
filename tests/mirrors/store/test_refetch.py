"""What a store has lost comes back from a mirror: wheels by their index, a model's files by their endpoint."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from envcheck.cli import Settings
from envcheck.cli.store.group import command
from envcheck.mirrors.store import publishing
from envcheck.mirrors.store import verify as store_verify
from envcheck.mirrors.store.manifest import Contents, object_sizes
from envcheck.mirrors.store.objects import Store
from tests.http_server import Server, Servers
from tests.mirrors.store.conftest import published
from tests.mirrors.store.test_heal import rot, whole


@pytest.fixture
def mirrored(store: Store, contents: Contents, servers: Servers, tmp_path: Path) -> Store:
    """Return a store that serves something, and another that serves the same as a mirror: its profile is written."""
    publishing.publish(store, contents, keep=2)
    there = Store(tmp_path / "mirror")
    for digest in object_sizes(contents):
        there.adopt(store.path(digest), digest)
    publishing.publish(there, contents, keep=2)
    trees = [functools.partial(published, there.root / "current", below) for below in ("", "hf")]
    sites = [servers.start(Server(tree)) for tree in trees]
    (tmp_path / "site.yaml").write_text(
        f"pypi: [{{url: {sites[0].url}/simple}}]\npytorch: [{{url: '{sites[0].url}/whl/{{variant}}'}}]\n"
        f"hf: {{endpoint: {sites[1].url}}}\n"
    )
    return there


@pytest.fixture
def verify(store: Store, tmp_path: Path) -> Callable[..., Any]:
    """Return what runs `envcheck store verify` with the mirror's profile."""

    def run(*arguments: str) -> Any:
        settings = Settings(matrix=None, verbose=False, quiet=True)
        words = ["--store", str(store.root), "verify", "--mirror", str(tmp_path / "site.yaml"), *arguments]
        return CliRunner().invoke(command, words, obj=settings, standalone_mode=False)

    return run


def test_a_mirror_gives_back_all_that_was_lost(
    store: Store, contents: Contents, mirrored: Store, verify: Callable[..., Any]
) -> None:
    for digest in object_sizes(contents):
        rot(store.path(digest))
    completed = verify()
    assert (completed.exception, completed.return_value) == (None, 1)
    lost = len(object_sizes(contents))
    assert f"{lost} damaged, {lost} of them repaired\n" in completed.stdout
    assert completed.stdout.count("repaired from what the profile names") == 5
    assert completed.stdout.count("repaired from its wheel") == 3
    assert max(map(len, completed.stdout.splitlines())) <= 80
    assert whole(store)
    assert (store_verify.verify(store), verify().return_value) == ([], 0)
    assert mirrored.objects()


def test_a_directory_of_this_machine_gives_back_what_it_has(
    store: Store, contents: Contents, tmp_path: Path, verify: Callable[..., Any]
) -> None:
    """Of whatever index a wheel is: a directory is looked into for all, and believed by hash alone."""
    publishing.publish(store, contents, keep=2)
    (tmp_path / "wheels").mkdir()
    for wheel in contents.wheels[1:]:
        (tmp_path / "wheels" / wheel.name).write_bytes(store.path(wheel.sha256).read_bytes())
    (tmp_path / "wheels" / contents.wheels[1].name).write_bytes(b"another of the same name")
    (tmp_path / "site.yaml").write_text(f"pypi: [{{url: {tmp_path}/wheels, kind: find-links}}]\nclosed: true\n")
    for wheel in contents.wheels[1:]:
        rot(store.path(wheel.sha256))
    completed = verify()
    assert "2 damaged, 1 of them repaired" in completed.stdout
    assert "torch-2.8.99+cpu-py3-none-any.whl\n    it has another hash; in version 1\n    repaired" in completed.stdout
    assert store.sound(contents.wheels[2].sha256)


def test_what_the_mirror_has_not_either_is_taken_out_and_told_why(
    store: Store, contents: Contents, mirrored: Store, verify: Callable[..., Any]
) -> None:
    alpha, small = contents.wheels[0], contents.models[0].files[0]
    for digest in (alpha.sha256, str(small.sha256)):
        rot(store.path(digest))
        for path in (mirrored.root / "current").rglob("*"):
            if path.is_file() and path.stat().st_ino == mirrored.path(digest).stat().st_ino:
                rot(path)
    completed = verify()
    assert completed.return_value == 1
    assert "2 damaged, 0 of them repaired" in completed.stdout
    assert "alpha-1.0-py3-none-any.whl" in completed.stdout
    assert "verify --mirror PROFILE" not in completed.stdout
    assert not store.has(alpha.sha256)
    assert not list(store.root.glob(f"versions/*/**/{alpha.name}"))
    assert not list(store.root.glob("versions/*/**/config.json"))
