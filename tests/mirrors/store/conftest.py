"""A store with two small wheels and a model in it, and a file server that applies headers.json as nginx would."""

import dataclasses
import functools
import hashlib
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from envcheck.mirrors.hub import HubFile, Revision, git_sha1
from envcheck.mirrors.store import releases
from envcheck.mirrors.store.objects import Store
from envcheck.mirrors.store.tree import Contents, Wheel
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
    files = [
        HubFile(
            path="config.json",
            size=len(small),
            sha256=store.add(small, "config.json"),
            sha1=git_sha1(small),
        ),
        HubFile(path="sub/model.bin", size=len(large), sha256=store.add(large, "model.bin")),
    ]
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


def broken(store: Store, number: int) -> list[str]:
    root, files = store.root / "versions" / str(number), releases.read_manifest(store, number).files
    return [f.path for f in files if not (root / f.path).is_file() or sha256((root / f.path).read_bytes()) != f.sha256]


def damaged(store: Store) -> list[str]:
    """Return the objects and the files of versions that are not what they must be."""
    objects = [stored.sha256 for stored in store.objects() if not store.sound(stored.sha256)]
    return objects + [path for number in releases.numbers(store) for path in broken(store, number)]


def wheel(store: Store, path: Path, index: str = "pypi") -> Wheel:
    digest = sha256(path.read_bytes())
    store.adopt(path, digest)
    with zipfile.ZipFile(path) as archive:
        metadata = archive.read(next(name for name in archive.namelist() if name.endswith("/METADATA")))
    return Wheel(
        name=path.name,
        sha256=digest,
        size=path.stat().st_size,
        index=index,
        metadata=store.add(metadata, f"{path.name}.metadata"),
        requires_python=">=3.8",
    )


def published(root: Path, below: str, request: Request) -> Answer:
    """Return a file of a published tree, or of what is below it there, as nginx would by headers.json."""
    answer = directory(root / below, "index.json" if below else "index.html")(request)
    known = json.loads((root / "headers.json").read_text())["headers"].get(f"{below}{request.path}", {})
    return dataclasses.replace(answer, headers={**answer.headers, "Content-Type": "text/html", **known})


@pytest.fixture
def serve(store: Store, servers: Servers) -> Callable[..., Server]:
    return lambda below="": servers.start(Server(functools.partial(published, store.root / "current", below)))
