"""Versions: made whole, switched in one step, and taken back."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import msgspec
import pytest

from envcheck.errors import ConfigError, PromiseError, UnavailableError
from envcheck.mirrors import versions
from envcheck.mirrors.contents import Contents
from envcheck.mirrors.store import Store


def test_a_version_holds_every_file_with_its_hash_and_licence(store: Store, contents: Contents) -> None:
    assert versions.publish(store, contents, keep=3) == 1
    root = store.root / "current"
    told = versions.manifest(store, 1)
    there = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert there == {file.path for file in told.files} | {versions.MANIFEST}
    one = next(file for file in told.files if file.path.endswith("alpha-1.0-py3-none-any.whl"))
    assert (one.licence, one.redistributable, one.sha256) == ("MIT", True, contents.wheels[0].sha256)
    assert (root / one.path).stat().st_ino == store.path(one.sha256).stat().st_ino


def test_the_same_contents_make_the_same_tree(store: Store, contents: Contents) -> None:
    turned = msgspec.structs.replace(contents, wheels=contents.wheels[::-1])
    versions.publish(store, contents, keep=3)
    versions.publish(store, turned, keep=3, merge=False)
    first, second = versions.manifest(store, 1).files, versions.manifest(store, 2).files
    assert first == second


def test_publishing_adds_to_what_is_served_unless_told_otherwise(store: Store, contents: Contents) -> None:
    alpha, beta, torch = ([wheel] for wheel in contents.wheels)
    versions.publish(store, Contents(wheels=alpha), keep=9)
    versions.publish(store, Contents(wheels=beta), keep=9)
    versions.publish(store, Contents(wheels=torch), keep=9, merge=False)
    names = [[w.name.partition("-")[0] for w in versions.manifest(store, n).contents.wheels] for n in (1, 2, 3)]
    assert names == [["alpha"], ["alpha", "beta"], ["torch"]]


def test_rollback_and_switch(store: Store, contents: Contents) -> None:
    for _ in range(3):
        versions.publish(store, contents, keep=9)
    assert versions.rollback(store) == 2
    assert (versions.current(store), (store.root / "current").readlink()) == (2, Path("versions/2"))
    versions.switch(store, 3)
    versions.switch(store, 1)
    with pytest.raises(ConfigError, match="no version before 1"):
        versions.rollback(store)
    with pytest.raises(ConfigError, match=r"no version 7; there are: 1, 2, 3"):
        versions.switch(store, 7)


def test_so_many_are_kept_and_the_one_that_was_served(store: Store, contents: Contents) -> None:
    for _ in range(4):
        versions.publish(store, contents, keep=2)
    assert versions.numbers(store) == [3, 4]
    versions.switch(store, 3)
    versions.publish(store, contents, keep=1)
    assert versions.numbers(store) == [3, 5]


def test_what_is_not_in_the_store_is_not_published(store: Store, contents: Contents) -> None:
    store.evict(contents.wheels[0].sha256)
    with pytest.raises(UnavailableError, match="1 of the files to publish are not there"):
        versions.publish(store, contents, keep=2)
    assert versions.numbers(store) == []
    assert versions.current(store) is None


def test_a_half_version_of_a_killed_publisher_is_taken_away(store: Store, contents: Contents) -> None:
    left = store.root / "versions/.1.new"
    left.mkdir(parents=True)
    (left / "half").touch()
    assert versions.publish(store, contents, keep=2) == 1
    assert [path.name for path in (store.root / "versions").iterdir()] == ["1"]
    assert not (store.root / "versions/1/half").exists()


def test_an_unreadable_manifest_pins_by_an_error(store: Store, contents: Contents) -> None:
    versions.publish(store, contents, keep=2)
    manifest = store.root / "versions/1/manifest.json"
    manifest.unlink()
    manifest.write_text("{")
    with pytest.raises(PromiseError, match="not to be read"):
        versions.pinned(store)


def test_a_reader_always_finds_a_whole_tree(store: Store, contents: Contents) -> None:
    """While versions come and go, `current` is never missing and its manifest never half."""
    versions.publish(store, contents, keep=2)
    ended = threading.Event()
    wrong: list[str] = []

    def look() -> None:
        try:
            while not ended.is_set():
                root = (store.root / "current").resolve(strict=True)
                json.loads((root / "manifest.json").read_bytes())
        except (OSError, ValueError) as error:
            wrong.append(repr(error))

    reader = threading.Thread(target=look)
    reader.start()
    for _ in range(10):
        versions.publish(store, contents, keep=20)
        versions.rollback(store)
    ended.set()
    reader.join()
    assert wrong == []
