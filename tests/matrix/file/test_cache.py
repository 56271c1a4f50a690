"""The cache is never believed over the file, and never in the way."""

from pathlib import Path

import pytest

from envcheck.data import data_path
from envcheck.errors import ConfigError
from envcheck.matrix.file import load as reader

RAW = data_path("matrix.yaml").read_bytes()


@pytest.fixture(autouse=True)
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "envcheck"


def test_what_was_read_is_not_read_again_and_a_changed_file_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    matrix = reader.load()
    monkeypatch.setattr(reader, "loads", lambda *_: pytest.fail("read again"))
    assert reader.load() == matrix == reader.load(data_path("matrix.yaml"))
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    changed = tmp_path / "changed.yaml"
    changed.write_bytes(RAW + b"\nunknown: 1\n")
    with pytest.raises(ConfigError, match="unknown"):
        reader.load(changed)


def test_a_damaged_entry_is_read_again_and_mended(entries: Path) -> None:
    matrix = reader.load()
    (entry,) = entries.iterdir()
    whole = entry.read_bytes()
    for damaged in (b"", whole[:-1], whole[:40] + b"\x00" + whole[41:], b"not ours"):
        entry.write_bytes(damaged)
        assert reader.load() == matrix
        assert entry.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert reader.load().torch
