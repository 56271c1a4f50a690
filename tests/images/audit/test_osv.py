"""What of an OSV database is read: all that is named like a record, or a line that says it was not."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.errors import UnavailableError
from envcheck.images.audit.osv import load


def record(name: str = "torch") -> dict[str, Any]:
    affected = [{"package": {"ecosystem": "PyPI", "name": name}, "versions": ["1"]}]
    return {"id": "PYSEC-1", "modified": "2026-11-20T10:00:00Z", "affected": affected}


def zipped(path: Path, method: int = zipfile.ZIP_STORED, **members: str) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_", "."), content)
    return path


def test_an_export_is_read_as_osv_dev_gives_it(tmp_path: Path) -> None:
    (tmp_path / "PyPI").mkdir()
    with zipfile.ZipFile(tmp_path / "PyPI/all.zip", "w") as archive:
        archive.writestr("PYSEC-1.json", json.dumps(record()))
        archive.writestr("README", "no record")
    for path in (tmp_path, tmp_path / "PyPI", tmp_path / "PyPI/all.zip"):
        assert [one.id for one in load(path).records] == ["PYSEC-1"]
        assert load(path)[1:] == ([], 1)


def test_a_damaged_export_is_not_read_as_less(tmp_path: Path) -> None:
    whole = tmp_path / "all.zip"
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("a.json", json.dumps(record(name="other")))
        archive.writestr("b.json", json.dumps(record()))
    content = whole.read_bytes()
    whole.write_bytes(content.replace(b"torch", b"tosch", 1))
    assert any("b.json" in line for line in load(tmp_path).unreadable)
    whole.write_bytes(content[:-40])
    assert load(tmp_path).unreadable


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("start", [36, 44, 60])
def test_a_damaged_member_is_not_read(tmp_path: Path, method: int, start: int) -> None:
    path = zipped(tmp_path / "all.zip", method, a_json=json.dumps(record()) * 50)
    content = bytearray(path.read_bytes())
    for index in range(start, start + 20):
        content[index] ^= 0xFF
    path.write_bytes(content)
    (message,) = load(tmp_path).unreadable
    assert message.startswith(str(path))
    assert not message.endswith(": ")


@pytest.mark.parametrize(("offset", "value"), [(8, 1), (10, 77)], ids=["encrypted", "unknown method"])
def test_a_member_that_cannot_be_unpacked_is_not_read(tmp_path: Path, offset: int, value: int) -> None:
    path = zipped(tmp_path / "all.zip", a_json=json.dumps(record()))
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + offset] = value
    path.write_bytes(content)
    assert len(load(path).unreadable) == 1


def test_an_error_that_nobody_expected_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise EOFError

    monkeypatch.setattr(zipfile.ZipFile, "read", fail)
    path = zipped(tmp_path / "all.zip", a_json=json.dumps(record()))
    assert load(path).unreadable == [f"{path}!a.json: EOFError"]


def _bad_text(folder: Path) -> None:
    (folder / "b.json").write_bytes(b'{"id":"\xff\xfe","modified":"2026-11-01T00:00:00Z"}')


def _no_text_as_name(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.json")).write_text("{")


def _zip_in_zip(folder: Path) -> None:
    inner = zipped(folder / "inner", b_json=json.dumps(record()))
    with zipfile.ZipFile(folder / "outer.zip", "w") as archive:
        archive.write(inner, "all.ZIP")


@pytest.mark.parametrize(
    "make",
    [
        _bad_text,
        _no_text_as_name,
        _zip_in_zip,
        lambda folder: (folder / "b.json").symlink_to("/nowhere/x"),
        lambda folder: (folder / "all.zip").symlink_to("/nowhere/x"),
        lambda folder: (folder / "2026").symlink_to("/nowhere/x"),
        lambda folder: (folder / "self").symlink_to("self"),
        lambda folder: (folder / "b.json").mkdir(),
        lambda folder: (folder / "all.zip").mkdir(),
        lambda folder: os.mkfifo(folder / "b.json"),
        lambda folder: os.mkfifo(folder / "all.ZIP"),
    ],
)
def test_what_is_named_like_a_record_and_is_none_is_not_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    (tmp_path / "a.json").write_text(json.dumps(record()))
    make(tmp_path)
    read = load(tmp_path)
    assert (len(read.records), len(read.unreadable)) == (1, 1)
    read.unreadable[0].encode()


def test_a_directory_that_cannot_be_listed_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.json").write_text(json.dumps(record()))
    (tmp_path / "sub").mkdir()
    listed = Path.iterdir

    def iterdir(path: Path) -> Any:
        if path.name == "sub":
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert load(tmp_path).unreadable == [f"{tmp_path / 'sub'}: Permission denied"]


def test_a_linked_directory_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/b.json").write_text(json.dumps(record()))
    top = tmp_path / "osv"
    top.mkdir()
    for name in ("2025", "2026"):
        (top / name).symlink_to(tmp_path / "elsewhere")
    (top / "me").symlink_to(top)
    assert (len(load(top).records), load(top).unreadable) == (1, [])


def test_names_count_in_any_case_and_other_files_are_counted(tmp_path: Path) -> None:
    (tmp_path / "A.JSON").write_text(json.dumps(record()))
    zipped(tmp_path / "all.ZIP", b_Json=json.dumps(record()), readme="no record")
    (tmp_path / "README").write_text("no record")
    read = load(tmp_path)
    assert (len(read.records), read.unreadable, read.ignored) == (2, [], 2)


def test_a_database_that_cannot_be_looked_at_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stat(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", stat)
        with pytest.raises(UnavailableError, match="Permission denied"):
            load(tmp_path)


@pytest.mark.parametrize("make", ["nothing", "empty", "npm"])
def test_no_database_is_an_error_of_its_own(tmp_path: Path, make: str) -> None:
    path = tmp_path / "osv"
    if make != "nothing":
        path.mkdir()
    if make == "npm":
        other = [{"package": {"ecosystem": "npm", "name": "x"}, "versions": ["1"]}]
        (path / "x.json").write_text(json.dumps({**record(), "affected": other}))
    with pytest.raises(UnavailableError, match="with --osv"):
        load(path)
