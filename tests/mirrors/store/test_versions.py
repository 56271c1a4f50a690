"""Versions: made whole, switched in one step, and taken back."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from envcheck.errors import ConfigError, PromiseError, UnavailableError
from envcheck.mirrors.store import versions
from envcheck.mirrors.store.manifest import Contents
from envcheck.mirrors.store.objects import Store
from tests.mirrors.store.conftest import republished


def test_a_version_holds_every_file_with_its_hash(store: Store, contents: Contents) -> None:
    assert versions.publish(store, contents, keep=3) == (1, True)
    root = store.root / "current"
    manifest = versions.read_manifest(store, 1)
    there = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert there == {file.path for file in manifest.files} | {versions.MANIFEST}
    one = next(file for file in manifest.files if file.path.endswith("alpha-1.0-py3-none-any.whl"))
    assert one.sha256 == contents.wheels[0].sha256
    assert (root / one.path).stat().st_ino == store.path(one.sha256).stat().st_ino


def test_whoever_serves_a_version_may_read_it_whatever_the_umask(store: Store, contents: Contents) -> None:
    before = os.umask(0o077)
    try:
        versions.publish(store, contents, keep=3)
    finally:
        os.umask(before)
    tree = [store.root / "versions", *(store.root / "versions").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in tree if path.is_dir()} == {0o755}
    assert {path.stat().st_mode & 0o777 for path in tree if path.is_file()} == {0o444}
    tree[0].chmod(0o750)
    versions.publish(store, republished(contents, 1), keep=3)
    assert tree[0].stat().st_mode & 0o777 == 0o750


def test_what_is_served_already_makes_no_version(store: Store, contents: Contents) -> None:
    turned = msgspec.structs.replace(contents, wheels=contents.wheels[::-1])
    part = Contents(wheels=contents.wheels[:1])
    assert versions.publish(store, contents, keep=3) == (1, True)
    assert versions.publish(store, turned, keep=3, merge=False) == (1, False)
    assert versions.publish(store, part, keep=3) == (1, False)
    assert versions.numbers(store) == [1]
    assert versions.publish(store, part, keep=3, merge=False) == (2, True)


def test_what_rotted_in_the_store_is_not_published(store: Store, contents: Contents) -> None:
    path = store.path(contents.wheels[0].sha256)
    path.chmod(0o644)
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(PromiseError, match=r"alpha-1\.0-py3-none-any\.whl is damaged"):
        versions.publish(store, contents, keep=3)
    assert versions.current(store) is None


def test_publishing_adds_to_what_is_served_unless_told_otherwise(store: Store, contents: Contents) -> None:
    alpha, beta, torch = ([wheel] for wheel in contents.wheels)
    versions.publish(store, Contents(wheels=alpha), keep=9)
    versions.publish(store, Contents(wheels=beta), keep=9)
    versions.publish(store, Contents(wheels=torch), keep=9, merge=False)
    names = [[w.name.partition("-")[0] for w in versions.read_manifest(store, n).contents.wheels] for n in (1, 2, 3)]
    assert names == [["alpha"], ["alpha", "beta"], ["torch"]]


def test_rollback(store: Store, contents: Contents) -> None:
    for number in range(3):
        versions.publish(store, republished(contents, number), keep=9)
    assert versions.rollback(store) == 2
    assert (versions.current(store), (store.root / "current").readlink()) == (2, Path("versions/2"))
    versions.make_current(store, 3)
    versions.make_current(store, 1)
    with pytest.raises(ConfigError, match="no version before 1"):
        versions.rollback(store)


def test_so_many_are_kept_and_the_one_that_was_served(store: Store, contents: Contents) -> None:
    for number in range(4):
        versions.publish(store, republished(contents, number), keep=2)
    assert versions.numbers(store) == [3, 4]
    versions.make_current(store, 3)
    versions.publish(store, republished(contents, 5), keep=1)
    assert versions.numbers(store) == [3, 5]


def test_a_version_that_cannot_be_finished_gives_its_room_back(
    store: Store, contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions.publish(store, contents, keep=2)
    view, left = Store.view, [5]

    def until_full(self: Store, sha256: str, target: Path) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)
        view(self, sha256, target)

    monkeypatch.setattr(Store, "view", until_full)
    with pytest.raises(OSError, match="No space left"):
        versions.publish(store, republished(contents, 1), keep=2)
    assert left == [-1]
    assert [path.name for path in (store.root / "versions").iterdir()] == ["1"]
    assert versions.current(store) == 1


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
        versions.publish(store, republished(contents, number), keep=9)
    digest = versions.read_manifest(store, 1).files[0].sha256
    harm(store.root / "versions/1" / versions.read_manifest(store, 1).files[0].path)
    with pytest.raises(PromiseError, match=f"cannot serve version 1: files/{digest}.*{message}.*store release"):
        versions.rollback(store)
    assert versions.current(store) == 2


def test_damaged_files_leave_every_version_and_come_back_with_the_next_release(
    store: Store, contents: Contents
) -> None:
    for number in range(2):
        versions.publish(store, republished(contents, number), keep=9)
    wheel = contents.wheels[0]
    content = store.path(wheel.sha256).read_bytes()
    _harm(store.path(wheel.sha256))
    assert versions.remove_damaged(store, [wheel.sha256, contents.wheels[1].sha256]) == [wheel.name]
    served = f"files/{wheel.sha256}/{wheel.name}"
    assert [(store.root / f"versions/{number}" / served).exists() for number in (1, 2)] == [False, False]
    with pytest.raises(UnavailableError, match="to publish"):
        versions.publish(store, contents, keep=9)
    store.add(content, wheel.name)
    assert versions.publish(store, contents, keep=9) == (3, True)
    assert (store.root / "current" / served).read_bytes() == content


READ = """
import hashlib, json, os, sys
looked = 0
print("begun", flush=True)
while True:
    root = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
    read = lambda path: open(os.open(path, os.O_RDONLY, dir_fd=root), "rb").read()
    told = json.loads(read("manifest.json"))
    names = {w["name"] for w in told["contents"]["wheels"]}
    for file in told["files"]:
        assert hashlib.sha256(read(file["path"])).hexdigest() == file["sha256"], file["path"]
    pages = {f["filename"] for p in ("simple", "whl/cpu") for n in os.listdir(f"/proc/self/fd/{root}/{p}")
             if not n.startswith("index") for f in json.loads(read(f"{p}/{n}/index.json"))["files"]}
    assert pages == names, (pages, names)
    os.close(root)
    looked += 1
    print(looked, flush=True)
"""


def test_a_reader_always_finds_a_whole_tree(store: Store, contents: Contents) -> None:
    """While versions come and go, what opens `current` finds every file of one version, and no page of another."""
    few = msgspec.structs.replace(contents, wheels=contents.wheels[1:])
    versions.publish(store, contents, keep=2)
    versions.publish(store, few, keep=200, merge=False)
    command = [sys.executable, "-c", READ, str(store.root / "current")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "begun\n"
        for number in range(15):
            versions.publish(store, republished(few if number % 2 else contents, number), keep=200, merge=False)
            versions.make_current(store, 1 + number % 2)
        while int(reader.stdout.readline() or 15) < 15:
            assert reader.poll() is None
        reader.kill()
        assert reader.communicate()[1] == ""
