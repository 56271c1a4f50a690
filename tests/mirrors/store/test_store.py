"""The store: what is in it has its hash, is read-only, and has as many names as are wanted."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from envcheck.errors import PromiseError
from envcheck.mirrors.store import evict, versions
from envcheck.mirrors.store.evict import EvictionLimits
from envcheck.mirrors.store.manifest import Contents
from envcheck.mirrors.store.objects import Store, StoredObject
from tests.mirrors.store.conftest import damaged

LITTLE = EvictionLimits(size=1)


def test_what_is_put_there_is_read_only_and_known_by_its_hash(store: Store) -> None:
    digest = store.add(b"abc", "a.txt")
    assert store.path(digest) == store.root / "sha256" / digest[:2] / digest
    assert stat.S_IMODE(store.path(digest).stat().st_mode) == 0o444
    assert (store.has(digest), store.name(digest)) == (True, "a.txt")
    assert [(one.sha256, one.size) for one in store.objects()] == [(digest, 3)]


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


def test_a_view_is_a_hard_link(store: Store, tmp_path: Path) -> None:
    digest = store.add(b"abc", "a.txt")
    store.view(digest, tmp_path / "deep" / "a.txt")
    store.view(digest, tmp_path / "deep" / "a.txt")
    assert (tmp_path / "deep" / "a.txt").stat().st_ino == store.path(digest).stat().st_ino


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


def _object(name: str, size: int, used: float, links: int = 1) -> StoredObject:
    return StoredObject(name, size, used, links)


def test_the_least_recently_used_goes_first_and_nothing_pinned_or_linked_ever() -> None:
    objects = [_object("new", 10, 9), _object("pinned", 10, 1), _object("seen", 10, 2, 2), _object("old", 10, 3)]
    assert [one.sha256 for one in evict.objects_to_evict(objects, {"pinned"}, 5)] == ["old"]
    assert [one.sha256 for one in evict.objects_to_evict(objects, {"pinned"}, 11)] == ["old", "new"]
    assert [one.sha256 for one in evict.objects_to_evict(objects, {"pinned"}, 1000)] == ["old", "new"]
    assert evict.objects_to_evict(objects, {"pinned"}, 0) == []


def test_gc_evicts_by_last_use_and_keeps_what_a_version_holds(store: Store, contents: Contents) -> None:
    versions.publish(store, contents, keep=2)
    first, second = store.add(b"1" * 1000, "first"), store.add(b"2" * 1000, "second")
    os.utime(store.root / "info" / first[:2] / f"{first}.json", (1, 1))
    room = int(sum(one.size for one in store.objects()) / 0.8501)
    missing, left, *_ = evict.gc(store, EvictionLimits(size=room, low=0.849), dry=False, note=lambda _: None)
    assert ([one.sha256 for one in missing], left) == ([first], 0)
    missing, left, *_ = evict.gc(store, LITTLE, dry=False, note=lambda _: None)
    assert [one.sha256 for one in missing] == [second]
    assert left > 0
    assert damaged(store) == []


def test_gc_sweeps_what_killed_processes_left_a_day_ago(store: Store) -> None:
    folder = store.path(store.add(b"abc", "a")).parent
    old, new = folder / ".old.part", folder / ".new.part"
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (1, 1))
    evict.gc(store, EvictionLimits(), dry=False, note=lambda _: None)
    assert (old.exists(), new.exists()) == (False, True)


def test_gc_lets_go_of_what_a_killed_build_had_in_view(store: Store) -> None:
    digest = store.add(b"abc", "a.whl")
    for name, used in ((".view-old", 1.0), (".view-new", None)):
        store.view(digest, store.root / name / "a.whl")
        if used is not None:
            os.utime(store.root / name, (used, used))
    assert evict.gc(store, LITTLE, dry=False, note=lambda _: None)[0] == []
    assert [path.name for path in store.root.glob(".view-*")] == [".view-new"]
    (store.root / ".view-new/a.whl").unlink()
    assert [one.sha256 for one in evict.gc(store, LITTLE, dry=False, note=lambda _: None)[0]] == [digest]


def test_gc_keeps_what_a_process_at_work_holds_or_has_used_since(store: Store) -> None:
    old, listed, later = (store.add(name * 1000, "x") for name in (b"1", b"2", b"3"))
    for digest in (old, listed, later):
        os.utime(store.root / "info" / digest[:2] / f"{digest}.json", (1, 1))
    with store.held([listed]):
        store.touch(later)
        missing, left, *_ = evict.gc(store, LITTLE, dry=False, note=lambda _: None)
        assert ([one.sha256 for one in missing], left) == ([old], 2000)
        assert len(list((store.root / "held").iterdir())) == 1
    assert list((store.root / "held").iterdir()) == []
    (store.root / "held/killed").write_text(f"{listed}\n")
    missing, *_ = evict.gc(store, LITTLE, dry=False, note=lambda _: None)
    assert {one.sha256 for one in missing} == {listed, later}
    assert list((store.root / "held").iterdir()) == []
