"""Exports and imports that are killed, ended or repeated, as a user's own commands in processes of their own."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envcheck.mirrors.hub import HubFile, Revision
from envcheck.mirrors.store import releases
from envcheck.mirrors.store.objects import Store
from envcheck.mirrors.store.tree import Contents
from tests.mirrors.store.conftest import damaged

ROOT = Path(__file__).parents[3]
MIB = 1 << 20


def envcheck(store: Store, *arguments: str) -> subprocess.Popen[str]:
    # nohup has SIGHUP ignored, and so would this have it.
    command = ["env", "--default-signal=HUP", sys.executable, "-m", "envcheck", "store", "--store", str(store.root)]
    env = {"PATH": os.environ["PATH"], "HOME": str(store.root), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([*command, *arguments], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def output_of(store: Store, *arguments: str) -> str:
    with envcheck(store, *arguments) as running:
        out, errors = running.communicate()
    assert running.returncode == 0, errors
    return out


def model(store: Store, *sizes: int, repo: str = "o/r") -> Contents:
    files = []
    for number, size in enumerate(sizes):
        digest = store.add(random.Random(size + number).randbytes(size), f"f{number}")  # noqa: S311 (data)
        files.append(HubFile(path=f"f{number}", size=size, sha256=digest))
    return Contents(models=[Revision(repo=repo, revision="0" * 40, files=files)])


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a store that serves 50 MB, which take a moment."""
    made = Store(tmp_path_factory.mktemp("large") / "store")
    releases.release(made, model(made, *[6 * MIB] * 8), keep=1)
    return made


@pytest.fixture(scope="module")
def carried(large: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("carried") / "b"
    output_of(large, "export", "-o", str(to))
    return to


def _ended(large: Store, to: Path, number: int) -> tuple[int, str, str]:
    with envcheck(large, "export", "-o", str(to)) as running:
        while not ((to / ".bundle.tar").exists() and (to / ".bundle.tar").stat().st_size > MIB):
            assert running.poll() is None
        running.send_signal(number)
        out, errors = running.communicate()
    return running.returncode, out, errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_an_export_that_is_ended_takes_away_what_it_began(large: Store, tmp_path: Path, number: int) -> None:
    code, out, errors = _ended(large, tmp_path / "b", number)
    assert (code, out, errors.count("Traceback")) == (128 + number, "", 0)
    assert list((tmp_path / "b").iterdir()) == []


def test_what_a_killed_export_left_goes_when_the_next_begins(large: Store, carried: Path, tmp_path: Path) -> None:
    to = tmp_path / "b"
    _ended(large, to, signal.SIGKILL)
    assert [path.name for path in to.iterdir()] == [".bundle.tar"]
    output_of(large, "export", "-o", str(to))
    assert {path.name: path.read_bytes() for path in to.iterdir()} == {
        path.name: path.read_bytes() for path in carried.iterdir()
    }


@pytest.mark.thorough
def test_an_import_that_is_killed_anywhere_leaves_what_is_served(carried: Path, tmp_path: Path) -> None:
    """At random points of the whole command: reading, unpacking, taking in, releasing."""
    store = Store(tmp_path / "site")
    releases.release(store, model(store, 5 * MIB, repo="o/old"), keep=3)
    began = time.monotonic()
    output_of(Store(tmp_path / "trial"), "import", str(carried))
    takes = time.monotonic() - began
    for point in range(20):
        with envcheck(store, "import", str(carried)) as running:
            time.sleep(takes * random.Random(point).uniform(0.2, 0.9))  # noqa: S311 (a moment)
            running.kill()
        if releases.current(store) != 1:  # it was quicker this time, and is whole
            releases.make_current(store, 1)
            (store.root / "versions/2").rename(tmp_path / f"done{point}")
        assert (releases.current(store), damaged(store)) == (1, [])
    assert "version 2 is served" in output_of(store, "import", str(carried))
    assert (damaged(store), (store.root / "import").exists()) == ([], False)
