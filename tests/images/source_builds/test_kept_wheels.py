"""A compiled wheel is found again by its build, and only whole."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from envcheck.errors import UnavailableError
from envcheck.images import source_recipe as recipe
from envcheck.images.source_recipe import ExtensionBuild
from envcheck.images.wheels import sha256
from envcheck.mirrors.store.objects import Store
from tests.wheels import wheel

MakeBuild = Callable[..., ExtensionBuild]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def build(make_build: MakeBuild, store: Store, tmp_path: Path) -> ExtensionBuild:
    build = make_build("torch2.13.0-cpu-py311")
    path = wheel(tmp_path, "scatter-ops")
    recipe.keep(store, build, path, sha256(path))
    return build


@pytest.mark.parametrize("change", ["cut", "another build's", "a path", "no hash", "evicted", "other bytes"])
def test_what_is_not_whole_is_not_used(store: Store, build: ExtensionBuild, change: str) -> None:
    kept = recipe.kept_wheel(store, build)
    assert kept is not None
    (path,) = (path for path in (store.root / "built").iterdir() if path.suffix == ".json")
    record = json.loads(path.read_text())
    changes = {"another build's": {"key": "b" * 64}, "a path": {"name": "../x.whl"}, "no hash": {"sha256": None}}
    if change == "cut":
        path.write_text(path.read_text()[:50])
    elif change == "evicted":
        store.evict(kept.sha256)
    elif change == "other bytes":
        store.path(kept.sha256).chmod(0o644)
        store.path(kept.sha256).write_bytes(b"x")
    else:
        path.write_text(json.dumps(record | changes[change]))
    assert recipe.kept_wheel(store, build) is None


def test_a_store_that_cannot_be_written_is_refused_before_anything_is_compiled(store: Store) -> None:
    recipe.require_writable(store)
    (store.root / "built").rename(store.root / "moved")
    (store.root / "built").write_text("")
    with pytest.raises(UnavailableError, match="a wheel that is compiled is kept there; give a store that this user"):
        recipe.require_writable(store)
