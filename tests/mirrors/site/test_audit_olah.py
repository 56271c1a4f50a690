"""olah's cache by hand: every kind of name it has for a file, every header that is none, an entry that is in use."""

from __future__ import annotations

import fcntl
import hashlib
import json
import struct
import zlib
from pathlib import Path

import msgspec
import pytest

from envcheck.mirrors.hf import Entry as Locked
from envcheck.mirrors.hf import Revision, git_sha1
from envcheck.mirrors.site import audit_olah
from envcheck.mirrors.site.audit import Finding
from envcheck.mirrors.site.audit_disk import Unread
from envcheck.mirrors.site.audit_models import audit
from tests.mirrors.site.test_render import site

COMMIT = "0123456789abcdef0123456789abcdef01234567"
RIGHT, WRONG = b"right bytes", b"wrong bytes"
SHA256 = hashlib.sha256(RIGHT).hexdigest()


def header(etag: str, size: int, *, version: int = 10, block: int = 4, packed: int = 0) -> bytes:
    tag = etag.encode()
    head = struct.pack("<4sHHIQQBIH8s", b"OLAH", version, 1, 43 + len(tag) + 8, block, size, packed, 4, len(tag), b"")
    head += tag + bytes(4)
    return head + struct.pack("<I", zlib.crc32(head))


def put(root: Path, name: str, content: bytes, etag: str = "") -> Path:
    """Write an entry as olah does, in blocks of four bytes."""
    at = root / "cache/hf" / name
    (at / "blocks").mkdir(parents=True)
    for number, start in enumerate(range(0, len(content), 4)):
        (at / "blocks" / f"block_{number:08}.bin").write_bytes(content[start : start + 4])
    (at / "meta.bin").write_bytes(header(etag, len(content)))
    return at


def answer(root: Path, name: str, rows: object) -> Path:
    path = root / "cache/hf" / name
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    path.with_name(f"{path.name}.body").write_text(json.dumps(rows))
    return path


def found(root: Path, *models: Revision) -> list[Finding]:
    return list(audit(site(root), models))


def said(root: Path, *models: Revision) -> list[tuple[str, str]]:
    return [(one.verdict, one.by) for one in found(root, *models)]


@pytest.mark.parametrize(
    ("name", "etag", "by"),
    [
        (f"lfs/files/a/b/repo/{SHA256}", "", "name"),
        (f"files/models/owner/tiny/resolve/{COMMIT}/sub/a.bin", f'"{SHA256}"', "upstream"),
        (f"files/datasets/owner/tiny/resolve/{COMMIT}/a.bin", f'W/"{SHA256}"', "upstream"),
        (f"files/models/tiny/resolve/{COMMIT}/a.bin", f'"{SHA256}"', "upstream"),
    ],
)
def test_a_file_is_judged_by_its_name_or_by_what_the_hub_says(tmp_path: Path, name: str, etag: str, by: str) -> None:
    at = put(tmp_path, name, RIGHT, etag)
    assert said(tmp_path) == [("clean", by)]
    (at / "blocks/block_00000001.bin").write_bytes(b"lies")
    assert said(tmp_path) == [("poisoned", by)]
    assert not (at / "meta.bin").exists()
    assert list((at / "blocks").iterdir()) == []
    assert said(tmp_path) == []


def test_a_file_that_olah_has_under_the_hash_of_xet_is_judged_by_what_it_noted(tmp_path: Path) -> None:
    put(tmp_path, f"lfs/files/xet/{'f' * 64}", RIGHT, "f" * 64)
    assert said(tmp_path) == [("unknown", "")]
    note = tmp_path / "cache/hf/lfs/xet_index/ff" / f"{'f' * 64}.json"
    note.parent.mkdir(parents=True)
    note.write_text(json.dumps({"lfs_oid": SHA256}))
    assert said(tmp_path) == [("clean", "upstream")]
    note.write_text(json.dumps({"lfs_oid": "e" * 64}))
    assert said(tmp_path) == [("poisoned", "upstream")]


def test_small_files_have_gits_hash_and_a_lock_stands_over_the_hub(tmp_path: Path) -> None:
    name = f"files/models/tiny/resolve/{COMMIT}/a.txt"
    put(tmp_path, name, RIGHT, f'"{"e" * 40}"')
    assert said(tmp_path) == [("unknown", "")], "an ETag of forty digits may be anything's"
    row = {"path": "a.txt", "size": len(RIGHT), "oid": git_sha1(RIGHT)}
    told = answer(tmp_path, f"api/models/tiny/paths-info/{COMMIT}/a.txt/paths-info_post.json", [row])
    assert said(tmp_path) == [("clean", "upstream")]
    lock = Revision(repo="tiny", revision=COMMIT, files=[Locked(path="a.txt", size=len(RIGHT), sha256=SHA256)])
    assert said(tmp_path, lock) == [("clean", "lock")], "a lock without git's hash does not contradict it"
    wrong = Revision(repo="tiny", revision=COMMIT, files=[msgspec.structs.replace(lock.files[0], sha1="c" * 40)])
    assert said(tmp_path, wrong) == [("clean", "lock"), ("poisoned", "lock")]
    assert not told.exists()
    other = Revision(repo="tiny", revision=COMMIT, files=[Locked(path="a.txt", size=len(WRONG), sha256="d" * 64)])
    assert said(tmp_path, other) == [("poisoned", "lock")]
    assert said(tmp_path, other) == [("not cached", "")]


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"", "no header of olah's"),
        (b"x" * 100, "no header of olah's"),
        (header("", 4, version=11), "olah has it in format 11; this reads 10"),
        (header("", 4, packed=1), "olah has it compressed, which is not read"),
        (header("", 4)[:-1] + b"\0", "its header is damaged"),
        (header("", 1 << 60), "its header is damaged"),
        (header("", 4, block=0), "its header is damaged"),
    ],
)
def test_a_header_that_is_none_is_told(tmp_path: Path, head: bytes, why: str) -> None:
    (tmp_path / "meta.bin").write_bytes(head)
    assert list(audit_olah.entries(tmp_path)) == [Unread(tmp_path / "meta.bin", why, strange=True)]


def test_what_is_in_use_stays_and_is_said_and_goes_with_the_next_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = put(tmp_path, f"lfs/files/a/b/repo/{SHA256}", WRONG)
    monkeypatch.setattr(audit_olah, "_HOLD", 0.1)
    with (at / "meta.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        (one,) = found(tmp_path)
        assert (one.verdict, one.purged) == ("poisoned", ())
        assert one.about.endswith("is still there: it is in use")
        assert (at / "meta.bin").exists()
    (one,) = found(tmp_path)
    assert str(at / "meta.bin") in one.purged
    assert found(tmp_path) == []
