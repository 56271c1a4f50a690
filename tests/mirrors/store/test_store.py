"""The store: what is in it has its hash, is read-only, and has as many names as are wanted."""

import errno
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envcheck.errors import PromiseError, UnavailableError
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.store import objects, releases
from envcheck.mirrors.store.objects import Store
from envcheck.mirrors.store.tree import Contents
from tests.http_server import Answer, Server, Servers
from tests.mirrors.store.conftest import damaged, republished, sha256
from tests.processes import ran


def test_a_local_file_is_adopted_as_a_copy_of_the_hash_it_must_have(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "a.bin"
    source.write_bytes(b"abc")
    digest = store.add(b"abc", "other")
    store.evict(digest)
    store.adopt(source, digest)
    source.write_bytes(b"xyz")
    assert store.sound(digest)
    with pytest.raises(PromiseError, match="another sha256"):
        store.adopt(source, digest)
    assert [path.name for path in store.path(digest).parent.iterdir()] == [digest]


def test_what_is_taken_again_takes_no_room_and_what_rotted_is_replaced(store: Store, tmp_path: Path) -> None:
    digest = store.add(b"abc", "a.txt")
    before = store.path(digest).stat().st_ino
    source = tmp_path / "a.txt"
    source.write_bytes(b"abc")
    store.take(source, digest, "a.txt")
    assert (store.path(digest).stat().st_ino, source.exists()) == (before, False)
    store.path(digest).chmod(0o644)
    store.path(digest).write_bytes(b"abX")
    source.write_bytes(b"abc")
    store.take(source, digest, "a.txt")
    assert store.sound(digest)


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_where_no_link_can_be_a_view_is_a_copy(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(self: Path, target: Path) -> None:  # noqa: ARG001 (Path's signature)
        raise OSError(code, os.strerror(code))

    digest = store.add(b"abc", "a.txt")
    monkeypatch.setattr(Path, "hardlink_to", refuse)
    store.view(digest, tmp_path / "to" / "a.txt")
    assert (tmp_path / "to" / "a.txt").read_bytes() == b"abc"
    assert (tmp_path / "to" / "a.txt").stat().st_ino != store.path(digest).stat().st_ino
    assert list((tmp_path / "to").iterdir()) == [tmp_path / "to" / "a.txt"]


def test_gc_evicts_by_last_use_and_keeps_what_a_version_or_another_link_holds(
    store: Store, contents: Contents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases.release(store, contents, keep=2)
    first, second, seen = (store.add(sign * 1000, "x") for sign in (b"1", b"2", b"3"))
    store.view(seen, tmp_path / "seen")
    for digest in (first, seen):
        os.utime(store.root / "info" / digest[:2] / f"{digest}.json", (1, 1))
    monkeypatch.setattr(releases, "_LOW", 0.849)
    room = int(sum(one.size for one in store.objects()) / 0.8501)
    done = releases.gc(store, size=room, dry=True)
    assert ([one.sha256 for one in done.evicted], store.has(first)) == ([first], True)
    done = releases.gc(store, size=room, dry=False)
    assert ([one.sha256 for one in done.evicted], done.left) == ([first], 0)
    (store.root / "versions/1/manifest.json").unlink()  # its links keep its files even then
    done = releases.gc(store, size=1, dry=False)
    assert [one.sha256 for one in done.evicted] == [second]
    assert done.left > 0
    assert store.has(contents.wheels[0].sha256)


def test_gc_removes_what_killed_processes_left_a_day_ago(store: Store) -> None:
    digest = store.add(b"abc", "a.whl")
    folder = store.path(digest).parent
    for name, used in (("old", 1.0), ("new", None)):
        store.view(digest, store.root / f".view-{name}" / "a.whl")
        (folder / f".{name}.part").write_bytes(b"x")
        if used is not None:
            for path in (store.root / f".view-{name}", folder / f".{name}.part"):
                os.utime(path, (used, used))
    assert releases.gc(store, size=1, dry=False).evicted == []
    assert [path.name for path in store.root.glob(".view-*")] == [".view-new"]
    assert [path.name for path in folder.glob(".*")] == [".new.part"]
    (store.root / ".view-new/a.whl").unlink()
    assert [one.sha256 for one in releases.gc(store, size=1, dry=False).evicted] == [digest]


CONTENT = random.Random(3).randbytes(3_000_000)  # noqa: S311 (data)
SHA256 = sha256(CONTENT)


def test_a_file_is_fetched_into_its_place_read_only_and_anew_if_it_is_damaged(store: Store, servers: Servers) -> None:
    url = f"{servers.start(Server(lambda _: Answer(200, CONTENT))).url}/a.whl"
    wanted = WantedFile((url,), SHA256, None, Path("a.whl"))
    done = store.put(wanted, TransferOptions(Client()))
    assert (done.moved, store.name(SHA256)) == (len(CONTENT), "a.whl")
    assert store.path(SHA256).stat().st_mode & 0o777 == 0o444
    assert store.put(wanted, TransferOptions(Client())).moved == 0
    assert [path.name for path in store.path(SHA256).parent.iterdir()] == [SHA256]
    store.path(SHA256).chmod(0o644)
    store.path(SHA256).write_bytes(b"x" * len(CONTENT))
    store.put(wanted, TransferOptions(Client()))
    assert damaged(store) == []


def test_gc_in_another_process_takes_nothing_while_a_file_is_fetched(store: Store, servers: Servers) -> None:
    def gc() -> subprocess.CompletedProcess[str]:
        return ran([sys.executable, "-m", "envcheck", "store", "--store", store.root, "gc", "--max-size", "1"])

    def halves() -> Iterator[bytes]:
        yield CONTENT[:1_000_000]
        assert "another process uses files of the store" in gc().stderr
        yield CONTENT[1_000_000:]

    headers = {"Content-Length": str(len(CONTENT))}
    url = servers.start(Server(lambda _: Answer(200, halves(), headers))).url
    first = store.add(b"first", "first")
    with store.held():
        store.put(WantedFile((f"{url}/a",), SHA256, len(CONTENT), Path("a")), TransferOptions(Client(), connections=1))
        assert {one.sha256 for one in store.objects()} == {first, SHA256}
    assert gc().returncode == 0
    assert store.objects() == []


def test_a_store_that_is_read_only_can_be_used(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = store.add(b"abc", "a.txt")
    real = os.open

    def refuse(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    with store.held():
        store.touch(digest)
        assert store.sound(digest)


def test_bytes_that_the_disk_cannot_read_are_damage_and_any_other_error_is_not(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest, code = store.add(b"abc", "a.txt"), [errno.EIO]

    def fail(*_: object) -> str:
        raise OSError(code[0], os.strerror(code[0]))

    monkeypatch.setattr(objects, "digest_of", fail)
    assert not store.sound(digest)
    code[0] = errno.EMFILE
    with pytest.raises(OSError, match="Too many open files"):
        store.sound(digest)
    code[0] = errno.EUCLEAN
    assert releases.remove_damaged(store, [digest]) == ["a.txt"]
    assert not store.has(digest)


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
