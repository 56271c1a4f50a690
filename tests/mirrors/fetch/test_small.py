"""Small files come in one request each, and what a page claims of a size blocks nobody."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.errors import PromiseError, UnavailableError
from envcheck.mirrors.fetch.batch import fetch_all
from envcheck.mirrors.fetch.disk import partial_file
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.fetch.transfer import fetch
from envcheck.mirrors.index.simple_api import parse_page

Serve = Callable[..., Any]
Want = Callable[..., WantedFile]
SMALL = b"a small file\n" * 700
HASH = hashlib.sha256(SMALL).hexdigest()
LIES = [7, 10**18, -4, 0, None]


def small(want: WantedFile) -> WantedFile:
    return dataclasses.replace(want, sha256=HASH, size=len(SMALL))


def test_a_small_file_takes_one_request_and_leaves_nothing_beside_it(
    serve: Serve, wanted_file: Want, means: TransferOptions
) -> None:
    server = serve(content=SMALL)
    want = small(wanted_file(server))
    done = fetch(want, means)
    assert want.path.read_bytes() == SMALL
    assert [(one.path, one.range) for one in server.requests] == [("/file.bin", None)]
    assert (done.moved, done.found, list(done.sources.values())) == (len(SMALL), 0, [len(SMALL)])
    assert [path.name for path in want.path.parent.iterdir()] == ["file.bin"]


def test_small_files_are_synced_together_and_alone_each_by_itself(
    serve: Serve, wanted_file: Want, means: TransferOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _file: synced.append("file"))
    monkeypatch.setattr(partial_file, "_syncfs", lambda _file: synced.append("all"))
    want = small(wanted_file(serve(content=SMALL)))
    fetch_all([dataclasses.replace(want, path=tmp_path / f"{n}") for n in range(20)], means, lambda _: None)
    assert synced == ["all"]
    fetch(want, means)
    assert synced == ["all", "file", "file"]


@pytest.mark.parametrize("fault", [{"content": SMALL[:-1] + b"x"}, {"status": 404}, {"truncate": 10}, {"content": b""}])
def test_a_bad_source_of_a_small_file_is_passed_over(
    serve: Serve, wanted_file: Want, means: TransferOptions, fault: dict[str, Any]
) -> None:
    want = small(wanted_file(serve(**{"content": SMALL, **fault}), serve(content=SMALL)))
    fetch(want, means)
    assert want.path.read_bytes() == SMALL


def test_wrong_bytes_of_a_small_file_get_no_name(serve: Serve, wanted_file: Want, means: TransferOptions) -> None:
    want = small(wanted_file(serve(content=SMALL[:-1] + b"x")))
    with pytest.raises(PromiseError):
        fetch(want, means)
    assert list(want.path.parent.iterdir()) == []


@pytest.mark.parametrize("hint", LIES)
def test_a_size_that_a_page_claims_blocks_nobody(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes, hint: int | None
) -> None:
    want = dataclasses.replace(wanted_file(serve()), size=None, hint=hint)
    fetch_all([want], means, lambda _: None)
    assert want.path.read_bytes() == content


@pytest.mark.parametrize("liar_first", [True, False])
@pytest.mark.parametrize("lie", [b"", b"1234567"])
def test_a_liar_before_or_after_an_honest_mirror_blocks_nobody(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes, lie: bytes, *, liar_first: bool
) -> None:
    """The page and the server of the liar agree."""
    liar, honest = serve(content=lie), serve()
    servers = (liar, honest) if liar_first else (honest, liar)
    want = dataclasses.replace(wanted_file(*servers), size=None, hint=len(lie))
    fetch_all([want], means, lambda _: None)
    assert want.path.read_bytes() == content


def test_a_server_that_tells_a_size_beyond_the_disk_blocks_nobody(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = dataclasses.replace(wanted_file(serve(), serve()), size=None, hint=10**14)
    plain = partial_file.reserve

    def reserve(file: int, size: int, part: Path) -> None:
        if size == 10**14:
            message = "no room"
            raise UnavailableError(message, fix="make room")
        plain(file, size, part)

    monkeypatch.setattr(partial_file, "reserve", reserve)
    monkeypatch.setattr("envcheck.mirrors.fetch.transfer._source_sizes", lambda *_: iter([10**14, len(content)]))
    fetch(want, means)
    assert want.path.read_bytes() == content


def test_a_run_after_one_that_was_cut_off_resumes_whatever_a_page_claims(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes
) -> None:
    server = serve(gone_after=5)
    want = dataclasses.replace(wanted_file(server), size=None, hint=7)
    with pytest.raises(UnavailableError):
        fetch(want, means)
    server.faults.gone_after = None
    assert fetch(want, means).found > 0
    assert want.path.read_bytes() == content


@pytest.mark.parametrize(("message", "size"), [("7", 7), ("1000000000000000000", None), ("-4", None), ('"x"', None)])
@pytest.mark.parametrize("more", ["null", "true", "1.5"])
def test_a_size_on_a_page_that_can_be_none_is_left_out(message: str, size: int | None, more: str) -> None:
    page = '{"files": [{"filename": "a", "url": "a", "size": %s}, {"filename": "b", "url": "b", "size": %s}]}'
    files = parse_page((page % (message, more)).encode(), "json", "http://t/")
    assert [file.size for file in files] == [size, None]
