"""Exports and imports that are killed, ended or repeated, as a user's own commands in processes of their own."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envcheck.mirrors.hub import revision as hub_revision
from envcheck.mirrors.store import versions
from envcheck.mirrors.store.manifest import Contents
from envcheck.mirrors.store.objects import Store
from tests.mirrors.store.conftest import broken, damaged

ROOT = Path(__file__).parents[3]
MIB = 1 << 20


def envcheck(store: Store, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start `envcheck store` as a user does."""
    # nohup has SIGHUP ignored, and so would this have it.
    command = [
        "env",
        "--default-signal=HUP",
        sys.executable,
        "-m",
        "envcheck",
        "store",
        "--store",
        str(store.root),
        *arguments,
    ]
    env = {"PATH": os.environ["PATH"], "HOME": str(store.root), "PYTHONPATH": str(ROOT), **environment}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def output_of(store: Store, *arguments: str, **environment: str) -> str:
    with envcheck(store, *arguments, **environment) as running:
        out, errors = running.communicate()
    assert running.returncode == 0, errors
    return out


def data(number: int, size: int) -> bytes:
    return random.Random(number).randbytes(size)  # noqa: S311 (data)


def model(store: Store, *contents: bytes, repo: str = "o/r") -> Contents:
    entries = [
        hub_revision.HubFile(path=f"f{number}", size=len(content), sha256=store.add(content, f"f{number}"))
        for number, content in enumerate(contents)
    ]
    return Contents(models=[hub_revision.Revision(repo=repo, revision="0" * 40, files=entries)])


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a store that serves 25 MB, which take a moment."""
    made = Store(tmp_path_factory.mktemp("large") / "store")
    versions.publish(made, model(made, *(data(number, 3 * MIB) for number in range(8))), keep=1)
    return made


@pytest.fixture(scope="module")
def carried(large: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return its bundle."""
    to = tmp_path_factory.mktemp("carried") / "b"
    output_of(large, "export", "-o", str(to), "--part-size", "7M")
    return to


def _begun(to: Path) -> bool:
    return (to / ".bundle/bundle.tar.001").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_an_export_that_is_ended_takes_away_what_it_began(large: Store, tmp_path: Path, number: int) -> None:
    with envcheck(large, "export", "-o", str(tmp_path / "b"), "--part-size", "3M") as running:
        while not _begun(tmp_path / "b"):
            assert running.poll() is None
        running.send_signal(number)
        out, errors = running.communicate()
    assert running.returncode == 128 + number
    assert (out, errors.count("Traceback")) == ("", 0)
    assert list((tmp_path / "b").iterdir()) == []


def test_what_a_killed_export_left_goes_when_the_next_begins(large: Store, carried: Path, tmp_path: Path) -> None:
    to = tmp_path / "b"
    with envcheck(large, "export", "-o", str(to), "--part-size", "3M") as running:
        while not _begun(to):
            assert running.poll() is None
        running.kill()
    assert [path for path in to.iterdir() if not path.name.startswith(".")] == []
    assert len(list((to / ".bundle").iterdir())) > 1
    output_of(large, "export", "-o", str(to), "--part-size", "7M")
    assert {path.name: path.read_bytes() for path in to.iterdir()} == {
        path.name: path.read_bytes() for path in carried.iterdir()
    }


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Serve a store's first version, and return what looks whether that is still what is served, and whole."""
    store = Store(tmp_path / "site")
    versions.publish(store, model(store, data(100, 5 * MIB), repo="o/old"), keep=3)

    def look() -> None:
        number = versions.current(store)
        assert number == 1
        assert broken(store, number) == []
        assert damaged(store) == []

    yield look
    look()


def test_an_import_that_is_killed_anywhere_leaves_what_is_served(
    site: Callable[[], None], carried: Path, tmp_path: Path
) -> None:
    """At random points of the whole command: reading, unpacking, taking in, publishing."""
    store = Store(tmp_path / "site")
    began = time.monotonic()
    trial = Store(tmp_path / "trial")
    output_of(trial, "import", str(carried))
    takes = time.monotonic() - began
    for point in range(8):
        with envcheck(store, "import", str(carried)) as running:
            time.sleep(takes * random.Random(point).uniform(0.2, 0.9))  # noqa: S311 (a moment)
            running.kill()
        if versions.current(store) != 1:  # it was quicker this time, and is whole
            assert broken(store, 2) == []
            versions.make_current(store, 1)
            (store.root / "versions/2").rename(tmp_path / f"done{point}")
        site()
    shutil.rmtree(store.root / "import", ignore_errors=True)
    with envcheck(store, "import", str(carried)) as running:
        while not any(store.root.glob("import/*")):
            assert running.poll() is None
        running.terminate()
    assert not (store.root / "import").exists()
    site()
    assert "is served" in output_of(store, "import", str(carried))
    assert damaged(store) == []
    versions.make_current(store, 1)
