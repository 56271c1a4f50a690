"""Whatever a mirror does: what has another hash never gets the file's name, and what can be had is had."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from envcheck.errors import ConfigError, PromiseError, UnavailableError
from envcheck.mirrors.fetch.limits import BandwidthLimiter
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.fetch.transfer import fetch

Serve = Callable[..., Any]
Want = Callable[..., WantedFile]
MIB = 1 << 20


def leftovers(wanted_file: WantedFile) -> list[str]:
    return sorted(path.name for path in wanted_file.path.parent.iterdir() if path.name != wanted_file.path.name)


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def test_a_file_arrives_whole_and_leaves_nothing_beside_it(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes
) -> None:
    want = wanted_file(serve())
    done = fetch(want, means)
    assert want.path.read_bytes() == content
    assert leftovers(want) == []
    assert (done.size, done.moved, done.found) == (len(content), len(content), 0)


def test_a_file_that_is_there_is_hashed_and_not_fetched(
    serve: Serve, wanted_file: Want, means: TransferOptions
) -> None:
    server = serve()
    fetch(wanted_file(server), means)
    before = server.sent
    assert fetch(wanted_file(server), means).moved == 0
    assert server.sent == before


def test_a_wrong_file_at_the_name_is_replaced_and_that_is_said(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes, notes: list[str]
) -> None:
    want = wanted_file(serve())
    want.path.parent.mkdir()
    want.path.write_bytes(flipped(content, 5))
    with pytest.raises(UnavailableError):
        fetch(dataclasses.replace(want, urls=()), means)
    assert want.path.read_bytes() == flipped(content, 5)
    fetch(want, means)
    assert want.path.read_bytes() == content
    assert len(notes) == 2
    assert f"{want.path} is a different file: the download replaces it" in notes[1]


def test_a_link_at_the_name_is_replaced_and_what_it_leads_to_is_kept(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes, notes: list[str]
) -> None:
    want = wanted_file(serve())
    want.path.parent.mkdir()
    other = want.path.with_name("other")
    other.write_bytes(b"mine")
    want.path.symlink_to(other)
    fetch(want, means)
    assert (want.path.is_symlink(), want.path.read_bytes(), other.read_bytes()) == (False, content, b"mine")
    assert len(notes) == 1
    assert "the download replaces the link" in notes[0]


def test_a_directory_of_the_files_name_is_named(serve: Serve, wanted_file: Want, means: TransferOptions) -> None:
    want = wanted_file(serve())
    want.path.mkdir(parents=True)
    with pytest.raises(ConfigError, match=re.escape(f"{want.path} is a directory, not a file")):
        fetch(want, means)
    assert leftovers(want) == []


@pytest.mark.parametrize(
    "faults",
    [
        {"status": 503, "first": 2},
        {"status": 429, "retry_after": "1", "first": 2},
        {"truncate": 1000, "first": 3},
        {"stall": 2.0, "first": 2},
        {"ranges": False},
        {"etag": lambda request: '"one"' if request < 4 else '"two"'},
        {"etag": lambda _request: None},
        {"etag": lambda request: f'W/"{request}"'},
        {"etag": lambda request: f'"{request}"'},
        {"ranges": False, "truncate": 1000, "first": 2},
        {"ranges": False, "truncate": 1000, "first": 2, "sized": False},
    ],
    ids=[
        "5xx",
        "429",
        "cut off",
        "stalls",
        "no ranges",
        "changes",
        "no etag",
        "weak etag",
        "fickle",
        "cut off whole",
        "no length",
    ],
)
def test_one_server_with_a_fault_that_can_be_lived_with(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes, faults: dict[str, Any]
) -> None:
    want = wanted_file(serve(**faults))
    fetch(want, means)
    assert want.path.read_bytes() == content
    assert leftovers(want) == []


@pytest.mark.parametrize(
    "faults",
    [
        {"status": 404},
        {"status": 403},
        {"status": 500},
        {"status": 416},
        {"other_range": True},
        {"content": b"short"},
        {"redirect": "http://127.0.0.250:1/nobody"},
        {"redirect": "ftp://127.0.0.250/file"},
        {"extra": 100},
        {"extra": 100, "sized": False},
    ],
    ids=[
        "404",
        "403",
        "500",
        "416",
        "other range",
        "other size",
        "dead redirect",
        "odd redirect",
        "too much",
        "and no length",
    ],
)
def test_the_second_source_gives_what_the_first_does_not(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes, faults: dict[str, Any]
) -> None:
    bad, good = serve(**faults), serve()
    want = wanted_file(bad, good)
    fetch(want, means)
    assert want.path.read_bytes() == content
    assert good.sent >= len(content) / 2


def test_nobody_has_it(serve: Serve, wanted_file: Want, means: TransferOptions) -> None:
    want = wanted_file(serve(status=404), serve(status=403))
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.2:\d+: it answers 404; 127\.0\.0\.3:\d+: it answers 403"):
        fetch(want, means)
    assert not want.path.exists()


@pytest.mark.parametrize("ranges", [True, False])
def test_wrong_bytes_of_the_right_size_and_etag_are_refused(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes, *, ranges: bool
) -> None:
    want = wanted_file(serve(content=flipped(content, 3 * MIB), ranges=ranges))
    with pytest.raises(PromiseError, match="no source has the file with sha256"):
        fetch(want, means)
    assert not want.path.exists()


def test_the_bad_piece_is_found_and_only_what_is_needed_is_asked_of_the_second_source(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes, notes: list[str]
) -> None:
    bad, good = serve(content=flipped(content, 2 * MIB + 7)), serve()
    want = wanted_file(bad, good)
    fetch(want, means)
    assert want.path.read_bytes() == content
    assert good.sent == 3 * MIB
    assert any("1 bad piece came from 127.0.0.2" in note for note in notes)


def test_several_bad_pieces_are_replaced(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes
) -> None:
    want = wanted_file(serve(content=flipped(flipped(content, 2 * MIB), 7 * MIB)), serve())
    fetch(want, means)
    assert want.path.read_bytes() == content


@pytest.mark.parametrize(("one", "other"), [([2], [7]), ([7], [2]), ([1, 8], [0, 5]), ([5], [0, 1, 9])])
def test_two_sources_with_other_bad_pieces_make_one_good_file(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes, one: list[int], other: list[int]
) -> None:
    """Each has pieces wrong; the first one's are found at the second, and the second's are not taken over."""
    first = functools.reduce(lambda bad, piece: flipped(bad, piece * MIB), one, content)
    second = functools.reduce(lambda bad, piece: flipped(bad, piece * MIB), other, content)
    want = wanted_file(serve(content=first), serve(content=second))
    fetch(want, means)
    assert want.path.read_bytes() == content


@pytest.mark.parametrize("first", [{"ranges": False}, {}])
@pytest.mark.parametrize("size", [None, 10 * MIB + 12345])
def test_where_pieces_cannot_be_compared_the_whole_file_is_taken_from_the_other_source(
    serve: Serve,
    wanted_file: Want,
    means: TransferOptions,
    content: bytes,
    notes: list[str],
    first: dict[str, Any],
    size: int | None,
) -> None:
    bad, good = serve(content=flipped(content, 3 * MIB), **first), serve(ranges=False, truncate=1000, first=3)
    want = wanted_file(bad, good, size=size)
    done = fetch(want, means)
    assert want.path.read_bytes() == content
    assert leftovers(want) == []
    assert done.sources == {good.url.split("/")[2]: len(content)}
    assert any(f"fetched the whole file again from {good.url.split('/')[2]}" in note for note in notes)


def test_two_sources_of_whole_files_that_are_both_wrong_give_nothing(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes
) -> None:
    bad, worse = (serve(content=flipped(content, at * MIB), ranges=False) for at in (3, 5))
    want = wanted_file(bad, worse)
    with pytest.raises(PromiseError, match="no source has the file with sha256"):
        fetch(want, means)
    assert list(want.path.parent.iterdir()) == []


def test_a_piece_of_two_mirrors_is_said_to_be_of_several_sources(
    serve: Serve, wanted_file: Want, means: TransferOptions
) -> None:
    want = wanted_file(serve(most=400_000, gone_after=1), serve())
    assert {*fetch(want, means).sources} == {want.urls[1].split("/")[2], "several sources"}


def test_an_empty_file(serve: Serve, wanted_file: Want, means: TransferOptions) -> None:
    want = wanted_file(serve(content=b""), sha256=hashlib.sha256(b"").hexdigest(), size=None)
    fetch(want, means)
    assert want.path.read_bytes() == b""


def test_the_digest_of_nothing_is_no_pass_for_a_file(serve: Serve, wanted_file: Want, means: TransferOptions) -> None:
    want = wanted_file(serve(content=b""), size=None)
    with pytest.raises(PromiseError):
        fetch(want, means)


def test_a_size_nobody_told_is_asked_for(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes
) -> None:
    want = wanted_file(serve(status=404), serve(), size=None)
    fetch(want, means)
    assert want.path.read_bytes() == content


def test_redirects_are_followed_anew_for_each_piece(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes
) -> None:
    target = serve()
    front = serve(redirect=target.url)
    want = wanted_file(front)
    fetch(want, means)
    assert want.path.read_bytes() == content
    assert len(front.requests) == len(target.requests) == 11


def test_two_fetch_one_file_and_one_of_them_moves_it(serve: Serve, wanted_file: Want, means: TransferOptions) -> None:
    server = serve(delay=0.05)
    want = wanted_file(server)
    threads = [threading.Thread(target=fetch, args=(want, means)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.sent == want.size
    assert leftovers(want) == []


def test_what_came_before_a_failure_is_not_fetched_again(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes
) -> None:
    dying, sound = serve(gone_after=6), serve()
    with pytest.raises(UnavailableError):
        fetch(wanted_file(dying), means)
    want = wanted_file(sound)
    assert not want.path.exists()
    done = fetch(want, means)
    assert done.found == 6 * MIB
    assert sound.sent == len(content) - done.found
    assert want.path.read_bytes() == content


def test_a_limit_holds(serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes) -> None:
    began = time.monotonic()
    fetch(wanted_file(serve()), dataclasses.replace(means, limiter=BandwidthLimiter(8 * MIB)))
    assert time.monotonic() - began >= len(content) / (8 * MIB) - 1


def test_no_more_connections_than_allowed(serve: Serve, wanted_file: Want, means: TransferOptions) -> None:
    most = [0, 0]
    lock = threading.Lock()
    server = serve(delay=0.02)
    plain = server.process_request_thread

    def counted(*args: Any) -> None:
        with lock:
            most[0] += 1
            most[1] = max(most)
        plain(*args)
        with lock:
            most[0] -= 1

    server.process_request_thread = counted
    fetch(wanted_file(server), dataclasses.replace(means, connections=3))
    assert 0 < most[1] <= 3


@pytest.mark.parametrize("lies", [False, True])
def test_an_interrupted_fetch_is_gone_on_with_even_if_its_journal_lies(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes, *, lies: bool
) -> None:
    """Pieces said to be there that are not: the hash says so, and they are fetched again."""
    want = wanted_file(serve(delay=0.2))

    def interrupt(_there: int, _all: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(want, dataclasses.replace(means, progress=interrupt))
    assert not want.path.exists()
    assert len(leftovers(want)) == 2
    if lies:
        journal = next(path for path in want.path.parent.iterdir() if path.name.endswith(".journal"))
        with journal.open("a") as file:
            file.writelines(f'{{"piece": {piece}, "source": "{want.urls[0]}"}}\n' for piece in range(11))
    fetch(want, means)
    assert want.path.read_bytes() == content
    assert want.path.stat().st_mode & 0o777 == 0o644
