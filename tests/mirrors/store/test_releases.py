"""Versions: made whole, switched in one step, and taken back."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from envcheck.errors import PromiseError, UnavailableError
from envcheck.mirrors.store import releases
from envcheck.mirrors.store.objects import Store
from envcheck.mirrors.store.tree import Contents
from tests.mirrors.store.conftest import republished


def test_a_version_holds_every_file_with_its_hash(store: Store, contents: Contents) -> None:
    assert releases.release(store, contents, keep=3) == (1, True)
    root = store.root / "current"
    manifest = releases.read_manifest(store, 1)
    there = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert there == {file.path for file in manifest.files} | {releases.MANIFEST}
    one = next(file for file in manifest.files if file.path.endswith("alpha-1.0-py3-none-any.whl"))
    assert one.sha256 == contents.wheels[0].sha256
    assert (root / one.path).stat().st_ino == store.path(one.sha256).stat().st_ino


def test_whoever_serves_a_version_may_read_it_whatever_the_umask(store: Store, contents: Contents) -> None:
    before = os.umask(0o077)
    try:
        releases.release(store, contents, keep=3)
    finally:
        os.umask(before)
    tree = [store.root / "versions", *(store.root / "versions").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in tree if path.is_dir()} == {0o755}
    assert {path.stat().st_mode & 0o777 for path in tree if path.is_file()} == {0o444}
    tree[0].chmod(0o750)
    releases.release(store, republished(contents, 1), keep=3)
    assert tree[0].stat().st_mode & 0o777 == 0o750


def test_what_is_served_already_makes_no_version(store: Store, contents: Contents) -> None:
    turned = msgspec.structs.replace(contents, wheels=contents.wheels[::-1])
    part = Contents(wheels=contents.wheels[:1])
    assert releases.release(store, contents, keep=3) == (1, True)
    assert releases.release(store, turned, keep=3, merge=False) == (1, False)
    assert releases.release(store, part, keep=3) == (1, False)
    assert releases.numbers(store) == [1]
    assert releases.release(store, part, keep=3, merge=False) == (2, True)


def test_publishing_adds_to_what_is_served_unless_told_otherwise(store: Store, contents: Contents) -> None:
    alpha, beta, torch = ([wheel] for wheel in contents.wheels)
    releases.release(store, Contents(wheels=alpha), keep=9)
    releases.release(store, Contents(wheels=beta), keep=9)
    releases.release(store, Contents(wheels=torch), keep=9, merge=False)
    names = [[w.name.partition("-")[0] for w in releases.read_manifest(store, n).contents.wheels] for n in (1, 2, 3)]
    assert names == [["alpha"], ["alpha", "beta"], ["torch"]]


def test_so_many_are_kept_and_the_one_that_was_served(store: Store, contents: Contents) -> None:
    for number in range(4):
        releases.release(store, republished(contents, number), keep=2)
    assert releases.numbers(store) == [3, 4]
    releases.make_current(store, 3)
    releases.release(store, republished(contents, 5), keep=1)
    assert releases.numbers(store) == [3, 5]


def test_a_version_that_cannot_be_finished_gives_its_room_back(
    store: Store, contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases.release(store, contents, keep=2)
    view, left = Store.view, [5]

    def until_full(self: Store, sha256: str, target: Path) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)
        view(self, sha256, target)

    monkeypatch.setattr(Store, "view", until_full)
    with pytest.raises(OSError, match="No space left"):
        releases.release(store, republished(contents, 1), keep=2)
    assert left == [-1]
    assert [path.name for path in (store.root / "versions").iterdir()] == ["1"]
    assert releases.current(store) == 1


def _harm(path: Path) -> None:
    """Change a byte, and no size: every name of the file has it."""
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"~")


@pytest.mark.parametrize(
    ("harm", "message"),
    [(_harm, "it has another hash"), (Path.unlink, "it is not there"), (lambda path: os.truncate(path, 3), "3 bytes")],
)
def test_a_version_that_is_broken_is_not_served(
    store: Store, contents: Contents, harm: Callable[[Path], None], message: str
) -> None:
    for number in range(2):
        releases.release(store, republished(contents, number), keep=9)
    digest = releases.read_manifest(store, 1).files[0].sha256
    harm(store.root / "versions/1" / releases.read_manifest(store, 1).files[0].path)
    with pytest.raises(PromiseError, match=f"cannot serve version 1: files/{digest}.*{message}.*store release"):
        releases.rollback(store)
    assert releases.current(store) == 2


def test_damaged_files_leave_every_version_and_come_back_with_the_next_release(
    store: Store, contents: Contents
) -> None:
    for number in range(2):
        releases.release(store, republished(contents, number), keep=9)
    wheel = contents.wheels[0]
    content = store.path(wheel.sha256).read_bytes()
    _harm(store.path(wheel.sha256))
    assert releases.remove_damaged(store, [wheel.sha256, contents.wheels[1].sha256]) == [wheel.name]
    served = f"files/{wheel.sha256}/{wheel.name}"
    assert [(store.root / f"versions/{number}" / served).exists() for number in (1, 2)] == [False, False]
    with pytest.raises(UnavailableError, match="to release"):
        releases.release(store, contents, keep=9)
    store.add(content, wheel.name)
    assert releases.release(store, contents, keep=9) == (3, True)
    assert (store.root / "current" / served).read_bytes() == content


def test_one_manifest_that_cannot_be_read_hides_and_stops_nothing_else(store: Store, contents: Contents) -> None:
    for number in range(3):
        releases.release(store, republished(contents, number), keep=9)
    for number in (1, 3):
        (store.root / f"versions/{number}/manifest.json").unlink()
    listed = [(row.number, row.current, row.problem is None) for row in releases.list_versions(store)]
    assert listed == [(1, False, False), (2, False, True), (3, True, False)]
    with pytest.raises(PromiseError, match=r"versions/3/manifest\.json: not a valid manifest.*--replace"):
        releases.release(store, contents, keep=9)
    _harm(store.path(contents.wheels[0].sha256))
    assert releases.remove_damaged(store, [contents.wheels[0].sha256]) == [contents.wheels[0].name]
    assert releases.release(store, Contents(models=contents.models), keep=9, merge=False) == (4, True)
