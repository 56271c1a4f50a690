"""`envcheck store`: what it says, what it refuses, its exit codes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from envcheck.cli import Settings
from envcheck.cli.commands.store import command
from envcheck.errors import ConfigError, EnvcheckError, PromiseError, UnavailableError
from envcheck.mirrors.hub import HubFile, Revision, format_lock
from envcheck.mirrors.store import releases
from envcheck.mirrors.store.objects import Store
from envcheck.mirrors.store.tree import Contents

Run = Callable[..., Result]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store")
    digest = made.add(b"weights", "model.bin")
    files = [HubFile(path="model.bin", size=7, sha256=digest)]
    model = Revision(repo="o/r", revision="0" * 40, files=files)
    for branches in ({}, {"o/r@main": "0" * 40}):
        releases.release(made, Contents(models=[model], branches=branches), keep=5)
    return made


@pytest.fixture
def run(store: Store) -> Run:
    def invoke(*arguments: str, root: Path = store.root) -> Result:
        settings = Settings(matrix=None, verbose=False, quiet=False)
        return CliRunner().invoke(command, ["--store", str(root), *arguments], obj=settings, standalone_mode=False)

    return invoke


def failed(result: Result, kind: type[EnvcheckError]) -> str:
    assert isinstance(result.exception, kind), result.output
    return str(result.exception)


def test_versions_are_listed_and_taken_back(run: Run, store: Store) -> None:
    assert run("release", "--rollback").stdout == "version 1 is served\n"
    document = json.loads(run("versions", "--json").stdout)
    assert [(one["number"], one["current"], one["models"]) for one in document["versions"]] == [
        (1, True, 1),
        (2, False, 1),
    ]
    assert "no version before 1" in failed(run("release", "--rollback"), ConfigError)
    assert "--rollback serves a version that exists" in failed(run("release", "x", "--rollback"), ConfigError)
    assert releases.current(store) == 1


def test_an_unreadable_manifest_is_named_beside_the_other_versions(run: Run, store: Store) -> None:
    manifest = store.root / "versions/1/manifest.json"
    manifest.unlink()
    done = run("versions")
    assert done.return_value == 1
    assert f"{manifest}: not a valid manifest" in done.stdout
    assert "version 2    current  0 wheels, 1 model, " in done.stdout


def test_a_damaged_file_is_named_and_not_served_again(run: Run, store: Store, tmp_path: Path) -> None:
    one = next(one for one in store.objects() if one.size == 7)
    store.path(one.sha256).chmod(0o644)
    store.path(one.sha256).write_bytes(b"WEIGHTS")
    assert "cannot serve version 1" in failed(run("release", "--rollback"), PromiseError)
    assert "another hash than its name" in failed(run("export", "-o", str(tmp_path / "b")), PromiseError)
    (tmp_path / "model.lock").write_bytes(format_lock(releases.read_manifest(store, 1).contents.models[0]))
    (tmp_path / "none.yaml").write_text("closed: true\n")
    words = ("--model-lock", str(tmp_path / "model.lock"), "--mirror", str(tmp_path / "none.yaml"))
    done = run("release", *words)
    assert "model.bin: damaged in the store, removed" in done.stderr
    assert "model.bin is not in the store" in failed(done, UnavailableError)
    assert not (store.root / "current/hf/o/r/resolve/main/model.bin").exists()


def test_gc_is_1_when_all_that_is_left_is_published(run: Run, store: Store) -> None:
    free = store.add(b"x" * 1000, "free")
    done = run("gc", "--max-size", "100", "--dry-run")
    assert (done.return_value, store.has(free)) == (1, True)
    done = run("gc", "--max-size", "100")
    assert (done.return_value, store.has(free)) == (1, False)
    assert "evicted 1 object," in done.stdout
    assert not run("gc", "--max-size", "1G").return_value


def test_a_model_is_released_from_its_lock(run: Run, store: Store, tmp_path: Path) -> None:
    digest = store.add(b"other", "model.bin")
    model = Revision(repo="o/s", revision="1" * 40, files=[HubFile(path="m.bin", size=5, sha256=digest)])
    (tmp_path / "model.lock").write_bytes(format_lock(model))
    for answer in ("version 3 is served: ", "version 3 is served already"):
        assert answer in run("release", "--model-lock", str(tmp_path / "model.lock")).stdout
    assert (store.root / "current/hf/o/s/resolve/main/m.bin").read_bytes() == b"other"
    assert (store.root / "current/hf/o/r/resolve/main/model.bin").exists()
    store.evict(digest)
    message = failed(run("release", "--model-lock", str(tmp_path / "model.lock")), UnavailableError)
    assert "has no hf.endpoint" in message
