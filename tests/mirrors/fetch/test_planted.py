"""What another user plants in a shared directory is never written to, waited on or taken for an unfinished file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck import safe_files
from envcheck.errors import ConfigError
from envcheck.mirrors.fetch.disk import partial_file
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.fetch.transfer import fetch

Serve = Callable[..., Any]
Want = Callable[..., WantedFile]
VICTIM = b"precious\n" * 1000


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_bytes(VICTIM)
    path.chmod(0o640)
    return path


def untouched(victim: Path) -> bool:
    return victim.read_bytes() == VICTIM and victim.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["part", "journal", "journal.new", "local"])
@pytest.mark.parametrize("kind", ["link", "dangling", "hard link", "pipe"])
def test_a_planted_name_is_replaced_and_not_followed(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes, victim: Path, name: str, kind: str
) -> None:
    want = wanted_file(serve())
    want.path.parent.mkdir()
    part = partial_file.part_path(want)
    planted = {"part": part, "journal": partial_file.journal_path(part)}
    planted |= {"journal.new": Path(f"{planted['journal']}.new"), "local": Path(f"{part}.local")}
    absent = victim.with_name("absent")
    if kind == "pipe":
        os.mkfifo(planted[name])
    elif kind == "hard link":
        planted[name].hardlink_to(victim)
    else:
        planted[name].symlink_to(victim if kind == "link" else absent)
    fetch(want, means)
    assert want.path.read_bytes() == content
    assert not want.path.is_symlink()
    assert untouched(victim)
    assert not absent.exists()


@pytest.mark.parametrize("owner", ["ours", "another"])
def test_an_unfinished_file_that_others_may_write_to_is_not_gone_on_with(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes, owner: str
) -> None:
    """Who holds it open could change it after its hash was compared."""
    if owner == "another" and os.geteuid() != 0:
        pytest.skip("a file of another user is made by root only")
    want = wanted_file(serve())
    want.path.parent.mkdir()
    part = partial_file.part_path(want)
    part.write_bytes(content)
    if owner == "another":
        os.chown(part, 65534, 65534)
    else:
        part.chmod(0o666)
    with part.open("r+b") as held:
        fetch(want, means)
        held.write(b"changed")
        held.flush()
    assert want.path.read_bytes() == content
    assert want.path.stat().st_uid == os.geteuid()


def test_a_directory_in_the_place_of_an_unfinished_file_is_one_line(
    serve: Serve, wanted_file: Want, means: TransferOptions
) -> None:
    want = wanted_file(serve())
    (partial_file.part_path(want) / "below").mkdir(parents=True)
    with pytest.raises(ConfigError, match="has the name of a temporary file"):
        fetch(want, means)


def test_a_pipe_at_the_final_name_is_replaced(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes
) -> None:
    want = wanted_file(serve())
    want.path.parent.mkdir()
    os.mkfifo(want.path)
    fetch(want, means)
    assert want.path.read_bytes() == content


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o027, 0o640), (0o002, 0o664)])
def test_the_umask_is_honoured(serve: Serve, wanted_file: Want, means: TransferOptions, mask: int, mode: int) -> None:
    want = wanted_file(serve())
    before = os.umask(mask)
    try:
        fetch(want, means)
    finally:
        os.umask(before)
    assert want.path.stat().st_mode & 0o777 == mode


def test_a_name_of_the_greatest_length_can_be_fetched(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes, tmp_path: Path
) -> None:
    want = wanted_file(serve())
    want = WantedFile(want.urls, want.sha256, want.size, tmp_path / ("ä" * 127))
    fetch(want, means)
    assert want.path.read_bytes() == content


def test_a_directory_that_is_a_link_is_refused_below_the_one_that_was_named(tmp_path: Path) -> None:
    real = tmp_path / "real"
    named = tmp_path / "named"
    real.mkdir()
    named.symlink_to(real)
    assert safe_files.directory(named, "a", "b").is_dir()
    (real / "c").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="has the name of a directory"):
        safe_files.directory(named, "c", "d")
