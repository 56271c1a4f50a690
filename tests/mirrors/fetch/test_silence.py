"""A source that accepts the connection and sends nothing is given up after two waits, whatever is asked of it.

Requests that wait at the same time are counted too: 4 for files, 8 for pages.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.errors import UnavailableError
from envcheck.mirrors.fetch.batch import fetch_all
from envcheck.mirrors.fetch.plan.pieces import Failure, Span
from envcheck.mirrors.fetch.plan.scheduler import PieceScheduler
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.fetch.retries import NoSourceError, read_body, try_sources
from envcheck.mirrors.fetch.transfer import fetch
from envcheck.mirrors.index.locate import LockedPackage, locate
from envcheck.mirrors.net import stall
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import SilentError
from envcheck.mirrors.net.silence import ROUNDS, WHILE, Silence
from envcheck.mirrors.profiles.model import Index
from tests.http_server import RawServer

Serve = Callable[..., Any]
Silent = Callable[..., RawServer]
Want = Callable[..., WantedFile]
# Seconds that a read waits here, and the pause between two attempts.
READ = 1.0
PAUSE = 1.0
# Seconds that a busy machine may add. What is asked too often takes many reads more, or is counted.
BUSY = 8.0
SMALL = b"small"
HEAD = b"HTTP/1.1 %s\r\nContent-Length: 99999\r\n%s\r\n"


def _means(**options: Any) -> TransferOptions:
    return TransferOptions(Client(connect=2.0, read=READ), **options)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("connections", [1, 8])
@pytest.mark.parametrize("size", [99999, None, 1 << 23])
@pytest.mark.parametrize(
    "before", [b"", HEAD % (b"200 OK", b""), HEAD % (b"206 P", b"Content-Range: bytes 0-99998/99999\r\n")]
)
def test_the_only_source_is_silent(
    silent: Silent, tmp_path: Path, before: bytes, size: int | None, connections: int
) -> None:
    """Two waits and the pause between them, with every form of the question: 51 s with the usual 25 s a read."""
    server = silent(before)
    want = WantedFile((f"{server.url}/file.bin",), "0" * 64, size, tmp_path / "file.bin")
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="no source can provide it"):
        fetch(want, _means(connections=connections))
    assert len(server.requests) <= 4
    assert time.monotonic() - began < 2 * READ + PAUSE + BUSY


@pytest.mark.timeout(60)
def test_many_files_of_a_silent_source_cost_as_much_as_one(silent: Silent, tmp_path: Path) -> None:
    server = silent()
    wants = [WantedFile((f"{server.url}/file.bin",), f"{n:064}", 1000, tmp_path / f"{n}") for n in range(24)]
    began = time.monotonic()
    with pytest.raises(UnavailableError, match=r"and 23 more file"):
        fetch_all(wants, _means(), lambda _: None)
    assert len(server.requests) <= 2 * 4
    assert time.monotonic() - began < 2 * READ + PAUSE + BUSY


@pytest.mark.timeout(60)
@pytest.mark.parametrize("size", [len(SMALL), None])
def test_another_source_takes_over_after_one_wait_for_all_files(
    silent: Silent, serve: Serve, tmp_path: Path, size: int | None
) -> None:
    server = silent()
    urls = (f"{server.url}/file.bin", serve(content=SMALL).url)
    digest = hashlib.sha256(SMALL).hexdigest()
    wants = [WantedFile(urls, digest, size, tmp_path / f"{n}") for n in range(24)]
    began = time.monotonic()
    assert len(fetch_all(wants, _means(), lambda _: None)) == 24
    assert len(server.requests) <= 2 * 4
    assert time.monotonic() - began < READ + BUSY


@pytest.mark.timeout(60)
def test_a_slow_and_sound_source_is_waited_for(serve: Serve, wanted_file: Want, content: bytes) -> None:
    """Each answer begins when a read has waited for two seconds of the five that it may."""
    want = wanted_file(serve(delay=2.0))
    means = TransferOptions(Client(connect=2.0, read=5.0), connections=4)
    fetch(dataclasses.replace(want, size=None), means)
    assert want.path.read_bytes() == content


def test_the_usual_limits_let_a_first_byte_come_after_20_seconds_and_end_within_a_minute() -> None:
    read = Client()._options["timeout"].read_timeout  # noqa: SLF001 (the default is what is promised)
    assert 20 < read <= stall.SECONDS
    assert ROUNDS * stall.SECONDS + PAUSE < 60


@pytest.mark.timeout(60)
def test_a_page_that_stalls_is_asked_for_twice(silent: Silent) -> None:
    server = silent(HEAD % (b"200 OK", b""))
    began = time.monotonic()
    with pytest.raises(NoSourceError):
        try_sources([server.url], lambda at: read_body(Client(read=READ), at, 1 << 20))
    assert len(server.requests) <= 2
    assert time.monotonic() - began < 2 * READ + PAUSE + BUSY


@pytest.mark.timeout(60)
def test_pages_of_a_silent_index_cost_two_waits_and_one_where_another_lists_them(silent: Silent, serve: Serve) -> None:
    server = silent()
    needs = [LockedPackage(f"p{n}", (f"{n:064}",)) for n in range(40)]
    began = time.monotonic()
    with pytest.raises(UnavailableError, match=r"p0: 127.0.0.1:[0-9]+: it stalled"):
        locate(needs, {"pypi": [Index(url=server.url)]}, Client(read=READ))
    assert len(server.requests) <= 2 * 8
    assert time.monotonic() - began < 2 * READ + PAUSE + BUSY
    page = "".join(f'<a href="p{n}-1.tar.gz#sha256={n:064}">p</a>' for n in range(40)).encode()
    other = serve(content=page).url.removesuffix("/file.bin")
    began = time.monotonic()
    located_files = locate(needs, {"pypi": [Index(url=server.url), Index(url=other)]}, Client(read=3 * READ))
    assert len(located_files) == 40
    assert len(server.requests) <= 3 * 8
    assert time.monotonic() - began < 3 * READ + BUSY


def test_what_waits_at_the_same_time_is_one_round_and_a_host_is_asked_again_after_a_while() -> None:
    now = [0.0]
    silence, url = Silence(lambda: now[0]), "https://m.example/a"
    now[0] = 25.0
    for _ in range(16):
        silence.note(url, 0.0)
    assert (silence.rounds(url), silence.given_up(url)) == (1, False)
    assert silence.last([url, "https://b.example/"]) == ("https://b.example/", url)
    now[0] = 51.0
    silence.note("https://m.example/b", 26.0)
    assert silence.given_up(url)
    assert not silence.given_up("https://m.example:8443/a")
    now[0] = 51.0 + WHILE
    assert not silence.given_up(url)
    silence.heard(url)
    assert (silence.rounds(url), silence.last([url, "https://b.example/"])[0]) == (0, url)


@pytest.mark.timeout(30)
def test_a_host_that_is_given_up_is_not_asked(silent: Silent) -> None:
    client, server = Client(read=READ), silent()
    for _ in range(ROUNDS):
        with pytest.raises(SilentError, match=r"it stalled$"):
            client.get(server.url)
    began = time.monotonic()
    with pytest.raises(SilentError, match="again and again"):
        client.get(server.url)
    assert len(server.requests) <= ROUNDS
    assert time.monotonic() - began < READ


@pytest.mark.timeout(30)
def test_what_gives_a_body_is_heard(serve: Serve, silent: Silent) -> None:
    client, server = Client(read=2.0), serve(delay=6.0)
    with pytest.raises(SilentError):
        client.get(server.url)
    assert client.silence.rounds(server.url) == 1
    server.faults = dataclasses.replace(server.faults, delay=0.0)
    with client.get(server.url) as answer:
        assert client.silence.rounds(server.url) == 1
        assert answer.text(1 << 30)
    assert client.silence.rounds(server.url) == 0
    stalls = silent(HEAD % (b"200 OK", b"")).url
    with client.get(stalls) as answer, pytest.raises(SilentError):
        answer.text(1 << 30)
    assert client.silence.rounds(stalls) == 1


def _lone(gave: int) -> tuple[PieceScheduler, list[Any]]:
    """Return a board of one source, which gave so many pieces and is asked for several others."""
    board = PieceScheduler(8 << 20, 1 << 20, 1, per_source=4, done={})
    for _ in range(gave):
        task = board.take(0.0)
        assert task is not None
        board.answered(task, None)
        board.arrived(task, None)
    tasks = [board.take(0.0)]
    assert tasks[0] is not None
    board.answered(tasks[0], None)
    return board, [*tasks, board.take(0.0), board.take(0.0)]


def test_one_connection_that_stalls_takes_no_room_from_a_source_that_gives() -> None:
    board, tasks = _lone(gave=1)
    mute = Failure("it stalled", slow=True, silent=True)
    board.failed(tasks[0], mute, 25.0)
    assert board.sources[0].room == 4
    board.arrived(tasks[1], None)
    board.failed(tasks[2], mute, 51.0)
    assert not board.sources[0].dropped
    destinations = board.take(60.0)
    assert destinations is not None
    assert destinations.span == Span(tasks[0].span.start, tasks[0].span.stop)
    board.failed(destinations, mute, 85.0)
    assert board.sources[0].dropped


def test_a_source_that_never_gave_is_asked_by_one_connection_then_given_up() -> None:
    board, tasks = _lone(gave=0)
    mute = Failure("it stalled", slow=True, silent=True)
    for task in tasks:
        board.failed(task, mute, 25.0)
    assert (board.sources[0].room, board.sources[0].dropped) == (1, False)
    alone = board.take(30.0)
    assert alone is not None
    assert board.take(30.0) is None
    board.failed(alone, mute, 55.0)
    assert board.sources[0].dropped


def test_a_source_that_was_silent_before_the_file_gets_one_request() -> None:
    board = PieceScheduler(8 << 20, 1 << 20, 1, per_source=4, done={})
    board.suspect(0)
    task = board.take(0.0)
    assert task is not None
    assert task.alone
    board.failed(task, Failure("it stalled", slow=True, silent=True), 25.0)
    assert board.sources[0].dropped
