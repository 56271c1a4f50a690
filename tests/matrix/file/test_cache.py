"""The cache is never believed over the file, and never in the way."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.file import load as cache
from tests.tables import each

RAW = b"the bytes of a file"


@pytest.fixture
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "envcheck"


def never() -> NoReturn:
    pytest.fail("the file was parsed again")


def entry(entries: Path) -> Path:
    (path,) = entries.iterdir()
    return path


def test_the_second_time_nothing_is_parsed(entries: Path, matrix: Matrix) -> None:
    assert cache.cached(RAW, lambda: matrix, Matrix) is matrix
    assert entry(entries).stat().st_mode & 0o077 == 0
    assert cache.cached(RAW, never, Matrix) == matrix


def test_another_file_is_another_entry(entries: Path, matrix: Matrix) -> None:
    cache.cached(RAW, lambda: matrix, Matrix)
    other = msgspec.structs.replace(matrix, images=[])
    assert cache.cached(RAW + b" changed", lambda: other, Matrix) is other
    assert len(list(entries.iterdir())) == 2


@each("damage", [b"", b"short", b"\x00" * 5000])
def test_a_damaged_entry_is_parsed_again_and_replaced(entries: Path, matrix: Matrix, damage: bytes) -> None:
    cache.cached(RAW, lambda: matrix, Matrix)
    entry(entries).write_bytes(damage)
    assert cache.cached(RAW, lambda: matrix, Matrix) is matrix
    assert cache.cached(RAW, never, Matrix) == matrix


def test_one_flipped_bit_is_noticed(entries: Path, matrix: Matrix) -> None:
    cache.cached(RAW, lambda: matrix, Matrix)
    data = bytearray(entry(entries).read_bytes())
    data[len(data) // 2] ^= 1
    entry(entries).write_bytes(data)
    assert cache.cached(RAW, lambda: matrix, Matrix) is matrix


def test_whole_but_foreign_content_is_not_believed(entries: Path, matrix: Matrix) -> None:
    cache.cached(RAW, lambda: matrix, Matrix)
    import hashlib  # noqa: PLC0415

    payload = msgspec.msgpack.encode({"schema": "something/else"})
    entry(entries).write_bytes(hashlib.sha256(payload).digest() + payload)
    assert cache.cached(RAW, lambda: matrix, Matrix) is matrix


def test_a_cache_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, matrix: Matrix
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cache.cached(RAW, lambda: matrix, Matrix) is matrix


def test_old_entries_are_dropped(entries: Path, matrix: Matrix) -> None:
    for number in range(12):
        cache.cached(RAW + bytes([number]), lambda: matrix, Matrix)
    assert len(list(entries.iterdir())) == 8
