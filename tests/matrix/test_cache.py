"""The cache is never believed over the file, and never in the way."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from envcheck.matrix import cache
from envcheck.matrix.model import Matrix

RAW = b"the bytes of a file"


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "envcheck"


def never() -> NoReturn:
    pytest.fail("the file was parsed again")


def entry(where: Path) -> Path:
    (found,) = where.iterdir()
    return found


def test_the_second_time_nothing_is_parsed(where: Path, matrix: Matrix) -> None:
    assert cache.through(RAW, lambda: matrix) is matrix
    assert entry(where).stat().st_mode & 0o077 == 0
    assert cache.through(RAW, never) == matrix


def test_another_file_is_another_entry(where: Path, matrix: Matrix) -> None:
    cache.through(RAW, lambda: matrix)
    other = msgspec.structs.replace(matrix, images=[])
    assert cache.through(RAW + b" changed", lambda: other) is other
    assert len(list(where.iterdir())) == 2


@pytest.mark.parametrize("damage", [b"", b"short", b"\x00" * 5000])
def test_a_damaged_entry_is_parsed_again_and_replaced(where: Path, matrix: Matrix, damage: bytes) -> None:
    cache.through(RAW, lambda: matrix)
    entry(where).write_bytes(damage)
    assert cache.through(RAW, lambda: matrix) is matrix
    assert cache.through(RAW, never) == matrix


def test_one_flipped_bit_is_noticed(where: Path, matrix: Matrix) -> None:
    cache.through(RAW, lambda: matrix)
    data = bytearray(entry(where).read_bytes())
    data[len(data) // 2] ^= 1
    entry(where).write_bytes(data)
    assert cache.through(RAW, lambda: matrix) is matrix


def test_whole_but_foreign_content_is_not_believed(where: Path, matrix: Matrix) -> None:
    cache.through(RAW, lambda: matrix)
    import hashlib  # noqa: PLC0415

    payload = msgspec.msgpack.encode({"schema": "something/else"})
    entry(where).write_bytes(hashlib.sha256(payload).digest() + payload)
    assert cache.through(RAW, lambda: matrix) is matrix


def test_a_cache_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, matrix: Matrix
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cache.through(RAW, lambda: matrix) is matrix


def test_old_entries_are_dropped(where: Path, matrix: Matrix) -> None:
    for number in range(12):
        cache.through(RAW + bytes([number]), lambda: matrix)
    assert len(list(where.iterdir())) == 8
