"""A source that drips, or asks to be left alone for days, is given up in bounded time with one line that says why."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.errors import UnavailableError
from envcheck.mirrors.fetch import whole
from envcheck.mirrors.fetch.limits import LONGEST_WAIT, SLOW_ANSWERS
from envcheck.mirrors.fetch.plan import scheduler
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.fetch.retries import NoSourceError, RetryLaterError, read_body, try_sources
from envcheck.mirrors.fetch.transfer import fetch
from envcheck.mirrors.index import simple_api
from envcheck.mirrors.net import stall
from envcheck.mirrors.net.client import Client

Serve = Callable[..., Any]
Want = Callable[..., WantedFile]
DAY = "86400"
FAR = "Fri, 31 Dec 2999 23:59:59 GMT"
LONG = {
    DAY: "asks to wait 86400 s",
    str(10**18): f"asks to wait {10**18} s",
    "9" * 400: "asks to wait more than 10^18 s",
    FAR: r"asks to wait [0-9]{11} s",
}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give an answer half a second to move."""
    monkeypatch.setattr(stall, "SECONDS", 0.5)


def only_line(error: UnavailableError) -> str:
    """Return what a user reads, which is one line."""
    assert "\n" not in str(error)
    return str(error)


@pytest.mark.usefixtures("short")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("connections", [1, 4])
def test_the_only_source_drips(
    serve: Serve, wanted_file: Want, means: TransferOptions, connections: int, *, ranges: bool
) -> None:
    """Several connections drip, then one alone; a source without ranges is asked in streams after its first answer."""
    server = serve(drip=0.05, ranges=ranges)
    with pytest.raises(UnavailableError) as caught:
        fetch(wanted_file(server), dataclasses.replace(means, connections=connections))
    assert "it sent less than 25 KiB in 0.5 s; name another mirror (--mirror), or run it again" in only_line(
        caught.value
    )
    together = connections if ranges else 1
    assert len(server.requests) <= together + (SLOW_ANSWERS - 1 if ranges else SLOW_ANSWERS)


@pytest.mark.usefixtures("short")
@pytest.mark.timeout(60)
def test_the_only_source_of_a_small_file_drips(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes
) -> None:
    server = serve(content=content[:1000], drip=0.05)
    with pytest.raises(UnavailableError) as caught:
        fetch(dataclasses.replace(wanted_file(server), size=1000), means)
    assert "less than 25 KiB" in only_line(caught.value)
    assert len(server.requests) <= 1 + SLOW_ANSWERS


@pytest.mark.usefixtures("short")
@pytest.mark.timeout(60)
def test_a_page_that_drips_is_asked_for_twice(serve: Serve) -> None:
    server = serve(drip=0.05)
    with pytest.raises(NoSourceError) as caught:
        try_sources([server.url], lambda url: read_body(Client(), url, 1 << 20))
    assert "less than 25 KiB" in str(caught.value.reasons[server.url])
    assert len(server.requests) == SLOW_ANSWERS


@pytest.mark.timeout(120)
def test_a_line_too_narrow_for_several_connections_is_used_by_one(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One alone brings five times what it should in two seconds; of eleven each brings half of it."""
    monkeypatch.setattr(stall, "SECONDS", 2.0)
    monkeypatch.setattr(stall, "BYTES", 1 << 20)
    monkeypatch.setattr(scheduler, "_MOVED", 1 << 30)
    want = wanted_file(serve(line=2.5e6))
    fetch(want, dataclasses.replace(means, client=Client(connect=10.0, read=10.0, connections=16), connections=16))
    assert want.path.read_bytes() == content


@pytest.mark.timeout(30)
@pytest.mark.parametrize("message", LONG)
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("known", [True, False])
def test_the_only_source_asks_for_days(
    serve: Serve, wanted_file: Want, means: TransferOptions, message: str, status: int, *, known: bool
) -> None:
    server = serve(status=status, retry_after=message)
    want = wanted_file(server)
    with pytest.raises(UnavailableError, match=f"it answers {status} and {LONG[message].replace('^', '.')}") as caught:
        fetch(want if known else dataclasses.replace(want, size=None), means)
    only_line(caught.value)
    assert len(server.requests) == 1


@pytest.mark.timeout(30)
@pytest.mark.parametrize("ranges", [True, False])
def test_a_source_that_asks_for_days_in_the_middle_is_given_up_and_what_came_is_kept(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes, *, ranges: bool
) -> None:
    server = serve(status=429, busy=lambda number: number > 1 + 4 * ranges, ranges=ranges, retry_after=DAY)
    want = wanted_file(server)
    with pytest.raises(UnavailableError, match=LONG[DAY]) as caught:
        fetch(want, means)
    assert ("the pieces that are whole are kept" in only_line(caught.value)) is ranges
    server.faults = type(serve().faults)()
    done = fetch(want, means)
    assert want.path.read_bytes() == content
    assert (done.found > 0) is ranges


@pytest.mark.timeout(30)
@pytest.mark.parametrize("known", [True, False])
def test_another_source_has_it(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes, *, known: bool
) -> None:
    want = wanted_file(serve(status=429, retry_after=DAY), serve())
    fetch(want if known else dataclasses.replace(want, size=None), means)
    assert want.path.read_bytes() == content


@pytest.mark.timeout(30)
def test_a_small_file_s_only_source_asks_for_days(serve: Serve, wanted_file: Want, means: TransferOptions) -> None:
    server = serve(status=429, retry_after=DAY)
    with pytest.raises(UnavailableError, match=LONG[DAY]):
        fetch(dataclasses.replace(wanted_file(server), size=whole.LARGEST), means)
    assert len(server.requests) == 2


@pytest.mark.timeout(30)
def test_a_page_whose_server_asks_for_days(serve: Serve) -> None:
    server = serve(status=429, retry_after=DAY)
    reads: list[Callable[[str], object]] = [
        lambda url: read_body(Client(), url, 1 << 20),
        lambda url: simple_api.read_page(Client(), url),
    ]
    for read in reads:
        with pytest.raises(NoSourceError) as caught:
            try_sources([server.url], read)
        assert LONG[DAY] in str(caught.value.reasons[server.url])
    assert len(server.requests) == len(reads)


def test_the_waits_that_a_page_s_server_asks_for_are_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []
    stop = threading.Event()
    monkeypatch.setattr(stop, "wait", waits.append)

    def busy(_url: str) -> None:
        message = "it answers 429"
        raise RetryLaterError(message, LONGEST_WAIT / 2)

    with pytest.raises(NoSourceError):
        try_sources(["http://t/"], busy, stop)
    assert waits == [0.0, LONGEST_WAIT / 2, LONGEST_WAIT / 2]


def test_who_is_waited_for_is_named_with_the_seconds_once(
    serve: Serve, wanted_file: Want, means: TransferOptions, notes: list[str]
) -> None:
    server = serve(status=503, retry_after="1", first=1)
    want = wanted_file(server)
    fetch(want, means)
    assert notes == [f"{want.urls[0].split('/')[2]}: it answers 503 and asks to wait 1 s"]


@pytest.mark.timeout(60)
def test_the_command_says_it_in_one_line(serve: Serve, tmp_path: Path) -> None:
    server = serve(status=429, retry_after=DAY)
    words = [sys.executable, "-m", "envcheck", "fetch", server.url, "--sha256", "0" * 64]
    began = time.monotonic()
    completed = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    host = server.url.split("/")[2]
    reason = f"{host}: it answers 429 and asks to wait 86400 s"
    line = f"envcheck: file.bin: no source can provide it: {reason}; check the URL, or run it again later"
    assert (completed.returncode, completed.stderr.splitlines()[-1].startswith(line)) == (3, True), completed.stderr
    assert "Traceback" not in completed.stderr
    assert time.monotonic() - began < 30
