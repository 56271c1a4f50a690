"""A store with two small wheels and a model in it, and a file server that applies headers.json as nginx would."""

import dataclasses
import functools
import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from envcheck.mirrors.hub import HubFile, Revision, git_sha1
from envcheck.mirrors.store import releases
from envcheck.mirrors.store.objects import Store
from envcheck.mirrors.store.tree import Contents, Wheel, describe_wheel
from tests import wheels
from tests.http_server import Answer, Request, Server, Servers, directory

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def make_wheel(tmp_path: Path) -> Callable[..., Path]:
    facts = "Requires-Python: >=3.8\n"

    def make(name: str, version: str = "1.0", requires: tuple[str, ...] = ()) -> Path:
        return wheels.wheel(tmp_path / "made", name, version, requires=requires, metadata=facts)

    return make


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def model(store: Store) -> Revision:
    small, large = b'{"model_type": "t"}\n', random.Random(1).randbytes(300_000)  # noqa: S311 (data)
    files = [hub_file(store, "config.json", small), hub_file(store, "sub/model.bin", large, lfs=True)]
    return Revision(repo="owner/tiny", revision=COMMIT, files=files)


@pytest.fixture
def contents(store: Store, make_wheel: Callable[..., Path], model: Revision) -> Contents:
    alpha = wheel(store, make_wheel("alpha", requires=("beta>=1",)))
    beta = wheel(store, make_wheel("beta"))
    torch = wheel(store, make_wheel("torch", "2.8.99+cpu"), "pytorch/cpu")
    return Contents(wheels=[alpha, beta, torch], models=[model], branches={"owner/tiny@main": COMMIT})


def republished(contents: Contents, number: int) -> Contents:
    """Return the contents with one branch more, so that they make a version of their own."""
    return msgspec.structs.replace(contents, branches={**contents.branches, f"owner/tiny@v{number}": COMMIT})


def damaged(store: Store) -> list[str]:
    """Return the objects and the files of versions that are not what they must be."""
    wrong = [stored.sha256 for stored in store.objects() if not store.sound(stored.sha256)]
    for number in releases.numbers(store):
        files = {store.root / f"versions/{number}" / f.path: f for f in releases.read_manifest(store, number).files}
        wrong += [f.path for at, f in files.items() if not at.is_file() or sha256(at.read_bytes()) != f.sha256]
    return wrong


def wheel(store: Store, path: Path, index: str = "pypi") -> Wheel:
    digest = sha256(path.read_bytes())
    store.adopt(path, digest)
    return describe_wheel(store, digest, path.name, index)


def hub_file(store: Store, path: str, content: bytes, *, lfs: bool = False) -> HubFile:
    digest, sha1 = store.add(content, Path(path).name), None if lfs else git_sha1(content)
    return HubFile(path=path, size=len(content), sha256=digest, sha1=sha1)


def published(root: Path, below: str, request: Request) -> Answer:
    """Return a file of a published tree, or of what is below it there, as nginx would by headers.json."""
    answer = directory(root / below, "index.json" if below else "index.html")(request)
    known = json.loads((root / "headers.json").read_text())["headers"].get(f"{below}{request.path}", {})
    return dataclasses.replace(answer, headers={**answer.headers, "Content-Type": "text/html", **known})


@pytest.fixture
def serve(store: Store, servers: Servers) -> Callable[..., Server]:
    return lambda below="": servers.start(Server(functools.partial(published, store.root / "current", below)))
