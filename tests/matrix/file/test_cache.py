"""The cache is never believed over the file, and never in the way."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.file import load as cache

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


def test_a_damaged_entry_is_parsed_again_and_replaced(entries: Path, matrix: Matrix) -> None:
    cache.cached(RAW, lambda: matrix, Matrix)
    flipped = bytearray(entry(entries).read_bytes())
    flipped[len(flipped) // 2] ^= 1
    for damage in (b"", b"short", b"\x00" * 5000, bytes(flipped)):
        entry(entries).write_bytes(damage)
        assert cache.cached(RAW, lambda: matrix, Matrix) is matrix
        assert cache.cached(RAW, never, Matrix) == matrix


def test_a_cache_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, matrix: Matrix
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cache.cached(RAW, lambda: matrix, Matrix) is matrix
