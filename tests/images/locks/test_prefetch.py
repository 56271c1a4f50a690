"""Prefetch: what a lock names is brought into the store, compared with its hash, and then built without any network."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envcheck.errors import PromiseError
from envcheck.images import build_context as contexts
from envcheck.images import wheels
from envcheck.images.dockerfile import write_locks
from envcheck.images.lockfile import Lock
from envcheck.images.spec import ImageSpec
from envcheck.matrix.facts.model import Matrix
from envcheck.mirrors.fetch.request import TransferOptions
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.profiles.model import Profile
from envcheck.mirrors.store.objects import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def means(_name: str) -> TransferOptions:
    return TransferOptions(Client(connect=1.0, read=1.0))


def bring(store: Store, spec: ImageSpec, profile: Profile) -> None:
    wheels.bring(store, spec.locks, spec.cell.python, profile, means)


def pins(locks: list[Lock]) -> set[str]:
    return {digest for lock in locks for pin in lock.pins for digest in pin.sha256}


def test_every_file_is_brought_and_a_second_time_nothing_is_asked(
    store: Store, spec: ImageSpec, profile: Profile, site: Any
) -> None:
    bring(store, spec, profile)
    assert {one.sha256 for one in store.objects()} == pins(spec.locks)
    site.requests.clear()
    bring(store, spec, profile)
    assert site.requests == []
    held = wheels.held(store, spec.locks, spec.cell.python)
    assert {one.name.partition("-")[0] for one in held} >= {"torch", "numpy", "sympy"}


def test_wrong_bytes_reach_no_name_of_the_store(
    store: Store, spec: ImageSpec, profile: Profile, tmp_path: Path
) -> None:
    numpy = next((tmp_path / "index").glob("numpy-*.whl"))
    numpy.write_bytes(numpy.read_bytes()[:-1] + b"x")
    with pytest.raises(PromiseError, match="numpy"):
        bring(store, spec, profile)
    wrong = next(pin.sha256[0] for lock in spec.locks for pin in lock.pins if pin.name == "numpy")
    assert not store.has(wrong)


def test_an_offline_context_names_no_source_but_its_files(
    store: Store, spec: ImageSpec, profile: Profile, tmp_path: Path
) -> None:
    bring(store, spec, profile)
    stored = wheels.held(store, spec.locks, spec.cell.python)
    with wheels.viewed(store, stored) as folder:
        context = contexts.write([spec], profile, tmp_path / "context", wheels=folder)
        linked = [path.stat().st_ino for path in folder.iterdir()]
    assert sorted(linked) == sorted(store.path(digest).stat().st_ino for digest in pins(spec.locks))
    assert list(store.root.glob(".view-*")) == []
    assert (context.wheels, context.network, context.secrets) == (folder, "none", {})
    rows = [row for file in context.path.glob("mirror/*/sources.tsv") for row in file.read_text().splitlines()]
    assert {row.split("\t", 1)[1] for row in rows} == {"files-of-the-store\tcarried\t-"}
    assert {row.split("\t")[0] for row in rows} == {"nvidia", "torch", "base", "envcheck"}
    here = {path.name for path in (context.path / "mirror").iterdir()}
    assert here == {"os", "nvidia", "torch", "base", "envcheck"}


def _envcheck(arguments: list[str], home: Path, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    own = {"PATH": os.environ["PATH"], "HOME": str(home), "ENVCHECK_HOME": str(home), "PYTHONPATH": os.getcwd()}  # noqa: PTH109
    argv = [*before, sys.executable, "-m", "envcheck", *arguments]
    return subprocess.run(argv, env=own, capture_output=True, text=True, check=False)


def test_build_prefetch_and_then_again_with_the_network_cut(
    matrix: Matrix, spec: ImageSpec, site: Any, tmp_path: Path
) -> None:
    """The second build stands in a network namespace of its own: not even the loopback is up there."""
    cut = ("unshare", "--map-root-user", "--net") if os.getuid() else ("unshare", "--net")
    if shutil.which("unshare") is None or subprocess.run([*cut, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespace can be made here")
    (tmp_path / "matrix.yaml").write_bytes(msgspec.json.encode(matrix))
    write_locks(tmp_path / "images", spec.cell, spec.locks)
    (tmp_path / "site.yaml").write_text(json.dumps({"pypi": [{"url": f"{site.url}/simple"}]}))
    build = ["--matrix", str(tmp_path / "matrix.yaml"), "build", str(spec.cell), "--engine", "venv", "--prefetch"]
    build += ["--images", str(tmp_path / "images"), "--mirror", str(tmp_path / "site.yaml"), "--json"]
    absent = _envcheck([*build, "--output", str(tmp_path / "no")], tmp_path, cut)
    assert absent.returncode == 3
    assert absent.stderr.splitlines()[-1].startswith("envcheck: ")
    first = _envcheck([*build, "--output", str(tmp_path / "one")], tmp_path)
    assert first.returncode == 0, first.stderr
    site.requests.clear()
    second = _envcheck([*build, "--output", str(tmp_path / "two")], tmp_path, cut)
    assert second.returncode == 0, second.stderr
    assert json.loads(second.stdout)["promises"]["torch"] == "2.8.0+cu128"
    assert (tmp_path / "two/bin/python").exists()
    assert site.requests == []
