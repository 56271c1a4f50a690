"""What a store has lost is found, named by the versions that serve it, and mended from what else has the bytes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from envcheck.errors import PromiseError
from envcheck.mirrors.store import evict, publishing, versions
from envcheck.mirrors.store import verify as store_verify
from envcheck.mirrors.store.manifest import Contents
from envcheck.mirrors.store.objects import Store
from tests.mirrors.store.conftest import broken, republished, sha256


@pytest.fixture
def twice(store: Store, contents: Contents) -> Store:
    """Return a store with two versions."""
    for number in range(2):
        publishing.publish(store, republished(contents, number), keep=5)
    return store


def rot(path: Path) -> None:
    """Change a byte of a file, which every name of it has."""
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"~")
    path.chmod(0o444)


def served(store: Store, name: str) -> list[Path]:
    """Return where the trees have the files of that name."""
    return sorted(store.root.glob(f"versions/*/**/{name}"))


def whole(store: Store) -> bool:
    """Tell whether every file of every version is what it must be."""
    return not any(broken(store, number) for number in versions.numbers(store))


def test_a_sound_store_has_no_faults(twice: Store) -> None:
    heard: list[int] = []
    assert store_verify.verify(twice, lambda _name, size: heard.append(size)) == []
    assert len(heard) == len(twice.objects())


def test_what_rotted_is_named_with_its_versions_and_taken_out_of_them(twice: Store, contents: Contents) -> None:
    """A client that hashes nothing, as huggingface_hub, must get no file rather than a wrong one."""
    bad = contents.wheels[1]
    rot(twice.path(bad.sha256))
    (fault,) = store_verify.verify(twice)
    assert (fault.file, fault.versions, fault.what, fault.mended) == (bad.name, [1, 2], "it has another hash", None)
    moved = next((twice.root / "quarantine").iterdir()).name
    assert fault.left == f"moved to quarantine/{moved}; removed from version 1, 2"
    assert not twice.has(bad.sha256)
    assert served(twice, bad.name) == []
    (again_,) = store_verify.verify(twice)
    assert (again_.what, again_.left, again_.versions) == ("it is not there", "no other copy found", [1, 2])
    with pytest.raises(PromiseError, match="it is not there"):
        versions.rollback(twice)


def _alone(path: Path) -> None:
    """Make a file an inode of its own, as a file system without links would."""
    shutil.copy2(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


def test_an_object_is_mended_from_a_copy_in_a_tree(twice: Store, contents: Contents) -> None:
    bad = contents.wheels[0]
    _alone(served(twice, bad.name)[0])
    rot(twice.path(bad.sha256))
    (fault,) = store_verify.verify(twice)
    assert fault.versions == [2]
    assert fault.mended == f"versions/1/files/{bad.sha256}/{bad.name}"
    assert whole(twice)
    assert twice.sound(bad.sha256)
    assert store_verify.verify(twice) == []


def test_a_tree_is_mended_from_the_store(twice: Store, contents: Contents) -> None:
    first, second = served(twice, contents.wheels[0].name)
    _alone(first)
    rot(first)
    second.unlink()
    (fault,) = store_verify.verify(twice)
    assert (fault.versions, fault.mended) == ([1, 2], "the store's own")
    assert whole(twice)
    assert first.stat().st_ino == second.stat().st_ino == twice.path(contents.wheels[0].sha256).stat().st_ino


def test_an_object_that_only_the_trees_still_have_comes_back(twice: Store, contents: Contents) -> None:
    twice.path(contents.wheels[0].sha256).unlink()
    (fault,) = store_verify.verify(twice)
    assert fault.what == "it is not in the store"
    assert str(fault.mended).endswith(contents.wheels[0].name)
    assert twice.sound(contents.wheels[0].sha256)
    assert store_verify.verify(twice) == []


def test_pages_are_made_anew_and_metadata_is_read_out_of_its_wheel(twice: Store, contents: Contents) -> None:
    page = twice.root / "versions/1/simple/alpha/index.html"
    rot(page)
    rot(twice.path(str(contents.wheels[0].metadata)))
    faults = {fault.file: fault for fault in store_verify.verify(twice)}
    assert faults["simple/alpha/index.html"].mended == "what the version holds"
    assert faults[f"{contents.wheels[0].name}.metadata"].mended == "its wheel"
    assert len(faults) == 2
    assert whole(twice)
    assert store_verify.verify(twice) == []


def test_a_mirror_mends_what_nothing_here_can(twice: Store, contents: Contents) -> None:
    good, bad = (twice.path(wheel.sha256).read_bytes() for wheel in contents.wheels[:2])
    for wheel in contents.wheels[:2]:
        rot(twice.path(wheel.sha256))

    def bring(lacking: set[str], held: Contents) -> dict[str, str]:
        assert lacking == {wheel.sha256 for wheel in contents.wheels[:2]}
        assert {wheel.name for wheel in held.wheels} == {wheel.name for wheel in contents.wheels}
        twice.add(good, "a.whl")
        return {sha256(bad): "m.example: 404"}

    data = {fault.file: fault for fault in store_verify.verify(twice, refetch=bring)}
    alpha, beta = (data[wheel.name] for wheel in contents.wheels[:2])
    assert (alpha.mended, beta.mended) == ("what the profile names", None)
    assert beta.left == "m.example: 404; removed from version 1, 2"
    assert len(served(twice, contents.wheels[0].name)) == 2
    assert served(twice, contents.wheels[1].name) == []


def test_a_manifest_that_cannot_be_read_is_told_and_the_rest_is_looked_at(twice: Store, contents: Contents) -> None:
    manifest = twice.root / "versions/1/manifest.json"
    manifest.unlink()
    manifest.write_text("{")
    rot(twice.path(contents.wheels[0].sha256))
    first, second = store_verify.verify(twice)
    assert (first.file, first.versions) == ("versions/1/manifest.json", [1])
    assert "remove versions/1" in str(first.left)
    assert second.versions == [2]


def test_a_version_that_is_let_go_of_meanwhile_lacks_nothing(twice: Store, contents: Contents) -> None:
    def publish(_name: str, _size: int) -> None:
        publishing.publish(twice, republished(contents, 9), keep=1)

    assert store_verify.verify(twice, publish) == []
    assert versions.numbers(twice) == [2, 3]
    (twice.root / "versions/2/manifest.json").unlink()

    def discard(_name: str, _size: int) -> None:
        shutil.rmtree(twice.root / "versions/2", ignore_errors=True)

    assert store_verify.verify(twice, discard) == []


def test_a_rotten_object_of_no_version_is_put_away(store: Store) -> None:
    digest = store.add(b"abc", "a.txt")
    rot(store.path(digest))
    (fault,) = store_verify.verify(store)
    assert (fault.file, fault.versions, fault.mended) == ("a.txt", [], None)
    assert str(fault.left).startswith("moved to quarantine/")
    assert (store_verify.verify(store), evict.usage(store).quarantined) == ([], 3)


@pytest.mark.parametrize("harm", [lambda path: os.truncate(path, 0), rot])
def test_size_and_bytes_are_both_looked_at(twice: Store, contents: Contents, harm: Callable[[Path], None]) -> None:
    bad = contents.models[0].files[1]
    twice.path(bad.sha256 or "").chmod(0o644)
    harm(twice.path(bad.sha256 or ""))
    (fault,) = store_verify.verify(twice)
    assert fault.file == f"hf/owner/tiny/resolve/{contents.models[0].revision}/sub/model.bin"
