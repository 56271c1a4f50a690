"""Files over 50 GB: their pieces, offsets and answers; and one past 2^32 from a server that gives ranges alone.

`benchmarks/over_50_gb.py` fetches one of more than 50 GB, which takes root and a minute.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import types
from http import HTTPStatus
from pathlib import Path

import pytest

from benchmarks import over_50_gb as large
from envcheck.mirrors.fetch.disk import journal, partial_file, running_hash
from envcheck.mirrors.fetch.plan import range_responses
from envcheck.mirrors.fetch.plan.pieces import RangeTask, Span, piece_size, spans
from envcheck.mirrors.fetch.request import TransferOptions
from envcheck.mirrors.hub import download as hub_download
from envcheck.mirrors.hub import revision as hub_revision
from envcheck.mirrors.net.client import Client

MIB = 1 << 20
ZEROS = bytes(MIB)
SIZES = [50_000_000_001, 60 * (1 << 30) + 7, 5_000_000_000_000]


@pytest.mark.parametrize("size", SIZES)
def test_its_pieces_are_all_of_it_and_few(size: int) -> None:
    piece = piece_size(size)
    actual = spans(size, piece)
    assert actual[0].start == 0
    assert actual[-1].stop == size
    assert all(one.stop == after.start for one, after in itertools.pairwise(actual))
    assert len(actual) <= 2048
    assert piece & (piece - 1) == 0


@pytest.mark.parametrize("size", SIZES)
def test_its_last_range_is_asked_for_and_taken(size: int) -> None:
    pieces = spans(size, piece_size(size))
    task = RangeTask(len(pieces) - 1, pieces[-1], 0, '"tag"')
    first, last = pieces[-1].start, size - 1
    assert range_responses.range_headers(task) == {"Range": f"bytes={first}-{last}", "If-Range": '"tag"'}
    data = {"Content-Range": f"bytes {first}-{last}/{size}", "Content-Length": str(last - first + 1), "ETag": '"tag"'}
    assert range_responses.range_failure(task, HTTPStatus.PARTIAL_CONTENT, data, size, 0.0) is None
    assert range_responses.file_size(HTTPStatus.PARTIAL_CONTENT, data) == size
    assert range_responses.file_size(HTTPStatus.OK, {"Content-Length": str(size)}) == size


@pytest.mark.parametrize("wrapped", [50_000_000_001 % (1 << 32), (1 << 31) - 1, 50_000_000_000])
def test_a_size_that_was_cut_to_32_bits_is_refused(wrapped: int) -> None:
    size = 50_000_000_001
    task = RangeTask(0, Span(0, 1 << 20), 0)
    data = {"Content-Range": f"bytes 0-{(1 << 20) - 1}/{wrapped}"}
    failure = range_responses.range_failure(task, HTTPStatus.PARTIAL_CONTENT, data, size, 0.0)
    assert failure is not None
    assert failure.reason == f"its file has {wrapped} bytes, not {size}"


def test_its_journal_is_short_and_read_again(tmp_path: Path) -> None:
    size = 50_000_000_001
    header = journal.Header("a" * 64, size, piece_size(size), "boot")
    there = dict.fromkeys(range(len(spans(size, header.piece)) - 1), "0" * 16)
    journal.Journal(tmp_path / "journal", header, there).close()
    text = (tmp_path / "journal").read_bytes()
    assert len(text) < 100_000
    assert journal.read(text, "boot") == (header, there)


def test_a_listing_and_a_lock_tell_its_size() -> None:
    size = 50_000_000_001
    row = {"type": "file", "path": "x", "size": 135, "oid": "a" * 40, "lfs": {"oid": "b" * 64, "size": size}}
    (entry,) = hub_revision.parse_tree(json.dumps([row]).encode())
    lock = hub_revision.Revision(repo=large.REPO, revision=large.COMMIT, files=[entry])
    assert hub_revision.parse_lock(hub_revision.format_lock(lock), "lock").files[0].size == size


class Quick:
    """A hash of what is not zeros and of where it is: sha256 of gigabytes of zeros takes too long."""

    def __init__(self) -> None:
        self._at, self._hasher = 0, hashlib.sha256()

    def update(self, block: bytes) -> None:
        """Take what comes next."""
        if block != ZEROS[: len(block)]:
            self._hasher.update(b"%d " % self._at + block)
        self._at += len(block)

    def hexdigest(self) -> str:
        """Return 64 digits."""
        self._hasher.update(b"%d" % self._at)
        return self._hasher.hexdigest()


def quick(file: large.Sparse) -> str:
    result = Quick()
    for start in range(0, file.size, MIB):
        result.update(file.read(start, min(file.size, start + MIB)))
    return result.hexdigest()


def test_past_2_to_the_32_with_links_that_expire_and_no_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a hub's CDN does to large files, with the limit where this file is over it; most of it is there already."""

    def room(file: int, size: int, part: Path) -> None:
        """Take no room on the disk for what is zeros: `tests/mirrors/fetch/test_disk.py` is about that."""
        assert part.stat().st_ino == os.fstat(file).st_ino
        os.ftruncate(file, size)

    monkeypatch.setattr(partial_file, "reserve", room)
    monkeypatch.setattr(running_hash, "hashlib", types.SimpleNamespace(sha256=Quick))
    file = large.Sparse((1 << 32) + 3_000_001)
    sha256 = quick(file)
    with large.served(file, sha256, most=1 << 32) as hub:
        lacking = large.begun(file, sha256, tmp_path)
        means = TransferOptions(Client(connections=4), connections=4)
        (done,) = hub_download.fetch_revision(large.revision(file, sha256), [hub.url], tmp_path, means, lambda _: None)
    assert large.right(file, tmp_path)
    assert (done.size, done.found, done.moved) == (file.size, file.size - lacking, lacking)
    starts = [int(str(requests).removeprefix("bytes=").partition("-")[0]) for requests in hub.ranges]
    assert max(starts) >= 1 << 32 > min(starts)
    assert hub.refused == 0
    assert hub.links == len(hub.ranges) == len(hub.used)
    path = tmp_path / "models--owner--large/blobs" / sha256
    assert path.stat().st_blocks * 512 < file.size // 10


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for size in (4_000_000, 150_000_000):
        file, to = large.Sparse(size), tmp_path / str(size)
        sha256 = file.sha256()
        with large.served(file, sha256) as hub:
            ran = large.fetch(hub, sha256, tmp_path, to)
        assert (ran.code, large.right(file, to)) == (0, True)
        peaks.append(ran.peak)
    assert peaks[1] < 1.25 * peaks[0]
