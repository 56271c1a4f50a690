"""A source that accepts the connection and sends nothing is given up after two waits, whatever is asked of it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
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
from envcheck.mirrors.net.client import Client, SilentError
from envcheck.mirrors.net.silence import ROUNDS, WHILE, Silence
from envcheck.mirrors.profiles.model import Index

Serve = Callable[..., Any]
Want = Callable[..., WantedFile]
# Seconds that a read waits here, and the pause between two attempts.
READ = 1.0
PAUSE = 1.0
SMALL = b"small"
HEAD = b"HTTP/1.1 %s\r\nContent-Length: 99999\r\n%s\r\n"


@pytest.fixture
def silent() -> Iterator[Callable[[bytes], str]]:
    """Give a function that starts a server which sends this after each request, and then nothing; `url` is a file."""
    listening: list[socket.socket] = []

    def serve(before: bytes) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        listening.append(server)

        def one(client: socket.socket) -> None:
            with client, contextlib.suppress(OSError):
                while asked := client.recv(1 << 16):
                    first = b"bytes=0-0" in asked and before != b""
                    client.sendall(b"HTTP/1.1 206 P\r\nContent-Range: bytes 0-0/99999\r\n\r\n" if first else before)

        def loop() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=one, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=loop, daemon=True).start()
        return f"http://127.0.0.1:{server.getsockname()[1]}/file.bin"

    yield serve
    for server in listening:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def _means(**options: Any) -> TransferOptions:
    return TransferOptions(Client(connect=2.0, read=READ), **options)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("connections", [1, 8])
@pytest.mark.parametrize("size", [99999, None, 1 << 23])
@pytest.mark.parametrize(
    "before", [b"", HEAD % (b"200 OK", b""), HEAD % (b"206 P", b"Content-Range: bytes 0-99998/99999\r\n")]
)
def test_the_only_source_is_silent(
    silent: Callable[[bytes], str], tmp_path: Path, before: bytes, size: int | None, connections: int
) -> None:
    """Two waits and the pause between them, with every form of the question: 51 s with the usual 25 s a read."""
    want = WantedFile((silent(before),), "0" * 64, size, tmp_path / "file.bin")
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="no source can provide it"):
        fetch(want, _means(connections=connections))
    assert time.monotonic() - began < 2 * READ + PAUSE + 1.5


@pytest.mark.timeout(60)
def test_many_files_of_a_silent_source_cost_as_much_as_one(silent: Callable[[bytes], str], tmp_path: Path) -> None:
    url = silent(b"")
    wants = [WantedFile((url,), f"{n:064}", 1000, tmp_path / f"{n}") for n in range(24)]
    began = time.monotonic()
    with pytest.raises(UnavailableError, match=r"and 23 more file"):
        fetch_all(wants, _means(), lambda _: None)
    assert time.monotonic() - began < 2 * READ + PAUSE + 3


@pytest.mark.timeout(60)
@pytest.mark.parametrize("size", [len(SMALL), None])
def test_another_source_takes_over_after_one_wait_for_all_files(
    silent: Callable[[bytes], str], serve: Serve, tmp_path: Path, size: int | None
) -> None:
    urls = (silent(b""), serve(content=SMALL).url)
    digest = hashlib.sha256(SMALL).hexdigest()
    wants = [WantedFile(urls, digest, size, tmp_path / f"{n}") for n in range(24)]
    began = time.monotonic()
    assert len(fetch_all(wants, _means(), lambda _: None)) == 24
    assert time.monotonic() - began < READ + 3


@pytest.mark.timeout(60)
def test_a_slow_and_sound_source_is_waited_for(serve: Serve, wanted: Want, content: bytes) -> None:
    """Each answer begins at four fifths of what a read may wait: 20 s of 25."""
    want = wanted(serve(delay=READ * 0.8))
    fetch(dataclasses.replace(want, size=None), _means())
    assert want.path.read_bytes() == content


def test_the_usual_limits_let_a_first_byte_come_after_20_seconds_and_end_within_a_minute() -> None:
    read = Client()._options["timeout"].read_timeout  # noqa: SLF001 (the default is what is promised)
    assert 20 < read <= stall.SECONDS
    assert ROUNDS * stall.SECONDS + PAUSE < 60


@pytest.mark.timeout(60)
def test_a_page_that_stalls_is_asked_for_twice(silent: Callable[[bytes], str]) -> None:
    url = silent(HEAD % (b"200 OK", b""))
    began = time.monotonic()
    with pytest.raises(NoSourceError):
        try_sources([url], lambda at: read_body(Client(read=READ), at, 1 << 20))
    assert time.monotonic() - began < 2 * READ + PAUSE + 1


@pytest.mark.timeout(60)
def test_pages_of_a_silent_index_cost_two_waits_and_one_where_another_lists_them(
    silent: Callable[[bytes], str], serve: Serve
) -> None:
    mute = silent(b"").removesuffix("/file.bin")
    needs = [LockedPackage(f"p{n}", (f"{n:064}",)) for n in range(40)]
    began = time.monotonic()
    with pytest.raises(UnavailableError, match=r"p0: 127.0.0.1:[0-9]+: it stalled"):
        locate(needs, {"pypi": [Index(url=mute)]}, Client(read=READ))
    assert time.monotonic() - began < 2 * READ + PAUSE + 1
    page = "".join(f'<a href="p{n}-1.tar.gz#sha256={n:064}">p</a>' for n in range(40)).encode()
    other = serve(content=page).url.removesuffix("/file.bin")
    began = time.monotonic()
    found = locate(needs, {"pypi": [Index(url=mute), Index(url=other)]}, Client(read=3 * READ))
    assert len(found) == 40
    assert time.monotonic() - began < 3 * READ + 2


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
def test_a_host_that_is_given_up_is_not_asked(silent: Callable[[bytes], str]) -> None:
    client, url = Client(read=0.3), silent(b"")
    for _ in range(ROUNDS):
        with pytest.raises(SilentError, match=r"it stalled$"):
            client.get(url)
    began = time.monotonic()
    with pytest.raises(SilentError, match="again and again"):
        client.get(url)
    assert time.monotonic() - began < 0.2


@pytest.mark.timeout(30)
def test_what_gives_a_body_is_heard(serve: Serve, silent: Callable[[bytes], str]) -> None:
    client, server = Client(read=0.3), serve(delay=1.0)
    with pytest.raises(SilentError):
        client.get(server.url)
    assert client.silence.rounds(server.url) == 1
    server.faults = dataclasses.replace(server.faults, delay=0.0)
    with client.get(server.url) as answer:
        assert client.silence.rounds(server.url) == 1
        assert answer.text(1 << 30)
    assert client.silence.rounds(server.url) == 0
    stalls = silent(HEAD % (b"200 OK", b""))
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
    again = board.take(60.0)
    assert again is not None
    assert again.span == Span(tasks[0].span.start, tasks[0].span.stop)
    board.failed(again, mute, 85.0)
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
