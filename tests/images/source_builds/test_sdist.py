"""An sdist is pinned once with its hash, and what its build needs is read, not run."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.errors import ConfigError, NotFoundError, PromiseError, UnavailableError
from envcheck.images import source_recipe as sdist
from envcheck.images.source_recipe import ExtensionBuild, Sdist
from envcheck.images.spec import ImageSpec
from envcheck.mirrors.fetch.request import TransferOptions
from envcheck.mirrors.net.client import hub_client
from envcheck.mirrors.profiles.model import Index, Profile
from envcheck.mirrors.store.objects import Store
from tests.wheels import wheel

MakeSdist = Callable[..., Path]
NEEDS = '[build-system]\nrequires = ["setuptools>=61", "torch", "builder"]\nbuild-backend = "setuptools.build_meta"\n'


def test_what_builds_it_is_read_without_torch(make_sdist: MakeSdist) -> None:
    path = make_sdist(files={"pyproject.toml": NEEDS})
    assert sdist.build_requires(path, "x 1") == ["setuptools>=61", "builder"]
    assert sdist.build_requires(make_sdist(), "x 1") == ["setuptools", "wheel"]
    # A file of that name further down is another project's.
    nested = make_sdist(files={"vendored/pyproject.toml": NEEDS})
    assert sdist.build_requires(nested, "x 1") == ["setuptools", "wheel"]


@pytest.mark.parametrize("text", ["[build-system", '[build-system]\nrequires = ["not a name"]\n', "build-system = 3\n"])
def test_a_damaged_pyproject_is_one_line(make_sdist: MakeSdist, text: str) -> None:
    with pytest.raises(ConfigError, match=r"the sdist of x 1 is damaged: .+; take another version"):
        sdist.build_requires(make_sdist(files={"pyproject.toml": text}), "x 1")


@pytest.fixture
def devel(make_build: Callable[..., ExtensionBuild], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ImageSpec:
    monkeypatch.setenv("ENVCHECK_HOME", str(tmp_path / "home"))
    return make_build("torch2.13.0-cpu-py311").devel


@pytest.fixture
def index(
    make_sdist: MakeSdist,
    tmp_path: Path,
    devel: ImageSpec,
    simple_index: Callable[[Path], Path],
    serve: Callable[[Path], Any],
) -> tuple[Path, Profile]:
    """Return the root of an index with the sdist and what builds it, and its profile."""
    held = {pin.name: pin.version for lock in devel.locks for pin in lock.pins}
    wheel(tmp_path / "wheels", "builder", "2.0")
    wheel(tmp_path / "wheels", "setuptools", held["setuptools"])
    root = simple_index(tmp_path / "wheels").parent
    path = make_sdist(files={"pyproject.toml": NEEDS})
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    (root / path.name).write_bytes(path.read_bytes())
    (root / "simple/scatter-ops").mkdir()
    (root / "simple/scatter-ops/index.html").write_text(
        f'<a href="../../scatter_ops-0.9.tar.gz#sha256={"b" * 64}">x</a>'
        f'<a href="../../{path.name}#sha256={digest}">x</a>'
    )
    return root, Profile(name="t", pypi=[Index(url=f"{serve(root).url}/simple")], closed=True)


def bring(store: Store, devel: ImageSpec, profile: Profile, version: str = "1.0") -> Sdist:
    means = TransferOptions(hub_client(profile))
    return sdist.bring(store, devel, "scatter-ops", version, profile, lambda _: means)


def test_a_source_is_pinned_with_what_builds_it_and_kept(
    index: tuple[Path, Profile], devel: ImageSpec, tmp_path: Path
) -> None:
    root, profile = index
    store = Store(tmp_path / "store")
    first = bring(store, devel, profile)
    assert store.sound(first.sha256)
    assert [(pin.name, pin.version) for pin in first.requires] == [("builder", "2.0")]
    (root / "simple/scatter-ops/index.html").write_text("")  # the index is not asked again
    assert bring(store, devel, profile) == first == sdist.pinned(devel, "scatter-ops", "1.0")


def test_other_bytes_than_the_pinned_ones_are_refused(
    index: tuple[Path, Profile], devel: ImageSpec, tmp_path: Path
) -> None:
    root, profile = index
    first = bring(Store(tmp_path / "store"), devel, profile)
    file = root / "scatter_ops-1.0.tar.gz"
    file.write_bytes(b"x" * file.stat().st_size)
    with pytest.raises(PromiseError, match=r"scatter_ops-1\.0\.tar\.gz"):
        bring(Store(tmp_path / "other"), devel, profile)
    assert not Store(tmp_path / "other").has(first.sha256)


def test_a_release_without_an_sdist_is_named(index: tuple[Path, Profile], devel: ImageSpec, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"the index lists no sdist of scatter-ops 3\.0"):
        bring(Store(tmp_path / "store"), devel, index[1], "3.0")
    with pytest.raises((UnavailableError, NotFoundError)):
        bring(Store(tmp_path / "store"), devel, index[1], "0.9")  # listed, but not served


def test_an_edited_pin_is_refused(index: tuple[Path, Profile], devel: ImageSpec, tmp_path: Path) -> None:
    bring(Store(tmp_path / "store"), devel, index[1])
    (kept,) = (tmp_path / "home/sdist-locks").iterdir()
    text = kept.read_text()
    for edited in (text.replace("scatter-ops==", "other-ops=="), text[:-20], "nothing"):
        kept.write_text(edited)
        with pytest.raises(ConfigError, match="delete it: the next build makes it anew"):
            bring(Store(tmp_path / "store"), devel, index[1])
