"""Each thing a server does wrong, and what it may cost: counted by the server."""

from __future__ import annotations

import dataclasses
import email.utils
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from envcheck.errors import UnavailableError
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.fetch.transfer import fetch

Serve = Callable[..., Any]
Silent = Callable[..., Any]
Want = Callable[..., WantedFile]
MIB = 1 << 20


@pytest.mark.parametrize("sized", [True, False])
def test_answers_that_are_always_cut_off_are_gone_on_with_and_no_byte_comes_twice(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes, *, sized: bool
) -> None:
    """As behind a proxy that ends what takes too long: no piece ever comes in one answer, nor says that it is short."""
    server = serve(most=400_000, sized=sized)
    want = wanted_file(server)
    done = fetch(want, means)
    assert want.path.read_bytes() == content
    assert len(server.requests) > 2 * 10
    assert server.sent == done.moved == len(content)


def test_a_stalling_server_costs_no_byte_twice(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes
) -> None:
    server = serve(stall=2.0, first=4)
    fetch(wanted_file(server), means)
    # A server that stalls has sent the half of what was asked; what it sends to nobody afterwards is the other half.
    assert server.sent <= len(content) + 4 * MIB


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_waited_for(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes, form: str
) -> None:
    until = int(time.time()) + 2
    message = "2" if form == "seconds" else email.utils.formatdate(until, usegmt=True)
    server = serve(status=429, retry_after=message, first=1)
    want = wanted_file(server)
    fetch(want, means)
    assert want.path.read_bytes() == content
    assert server.requests[1].time >= until - 0.05
    assert server.requests[1].time - server.requests[0].time >= (1.9 if form == "seconds" else 0.9)


def test_who_is_busy_when_its_size_is_asked_for_is_waited_for(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes, notes: list[str]
) -> None:
    """As with a URL and a hash, and nothing else."""
    server = serve(status=429, retry_after="1", first=1)
    want = wanted_file(server, size=None)
    fetch(want, means)
    assert want.path.read_bytes() == content
    assert server.requests[1].time - server.requests[0].time >= 0.9
    assert notes == [f"{want.urls[0].split('/')[2]}: it answers 429 and asks to wait 1 s"]


def test_another_source_that_tells_the_size_is_not_kept_waiting_by_one_that_is_busy(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes
) -> None:
    slow, good = serve(status=429, retry_after="100"), serve()
    want = wanted_file(slow, good, size=None)
    fetch(want, means)
    assert want.path.read_bytes() == content


def test_who_sends_whole_files_only_and_is_busy_is_waited_for(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes
) -> None:
    server = serve(status=429, busy=lambda number: number == 2, ranges=False, retry_after="1")
    want = wanted_file(server)
    fetch(want, means)
    assert want.path.read_bytes() == content
    assert server.requests[2].time - server.requests[1].time >= 0.9


@pytest.mark.parametrize("kind", ["mute", "deaf", "refused", "unknown"])
def test_a_host_that_gives_no_answer_is_told_by_name_and_the_next_source_has_it(
    kind: str,
    serve: Serve,
    silent: Silent,
    deaf: tuple[str, int],
    wanted_file: Want,
    means: TransferOptions,
    content: bytes,
) -> None:
    fixed = {"refused": "http://127.0.0.250:1", "unknown": "http://nobody.invalid"}
    url = (fixed.get(kind) or {"mute": silent().url, "deaf": f"http://{deaf[0]}:{deaf[1]}"}[kind]) + "/file.bin"
    good = serve()
    want = dataclasses.replace(wanted_file(good), urls=(url, good.url))
    fetch(want, means)
    assert want.path.read_bytes() == content
    assert good.sent == len(content)
    want.path.unlink()
    alone = dataclasses.replace(want, urls=(url,), size=None)
    with pytest.raises(UnavailableError) as result:
        fetch(alone, means)
    why = {"mute": "it stalled", "deaf": "no connection in time", "refused": "no connection"}
    assert f"{url.split('/')[2]}: {why.get(kind, 'the name does not resolve')}" in str(result.value)
    assert list(want.path.parent.iterdir()) == []


def test_a_file_that_becomes_another_one_is_fetched_anew(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes
) -> None:
    """Its bytes and its ETag; what came of the old one is written over, and nothing of it stays."""
    server = serve(content=content[::-1], etag=lambda _: '"old"', first=4)
    want = wanted_file(server)
    done = fetch(want, means)
    assert want.path.read_bytes() == content
    assert done.moved <= len(content) + 4 * MIB


def test_a_file_that_becomes_another_one_and_says_nothing_is_found_out_by_its_hash(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes
) -> None:
    want = wanted_file(serve(content=content[::-1], etag=lambda _: '"one"', first=4))
    fetch(want, means)
    assert want.path.read_bytes() == content


def test_a_server_that_forgets_about_ranges_on_the_way_still_gives_the_file(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes, notes: list[str]
) -> None:
    want = wanted_file(serve(ranges_until=5))
    fetch(want, means)
    assert want.path.read_bytes() == content
    assert any("it sends whole files only" in note for note in notes)


@pytest.mark.parametrize("status", [404, 500])
@pytest.mark.parametrize("size", [None, 10 * MIB + 12345])
def test_what_is_not_there_leaves_nothing_behind(
    serve: Serve, wanted_file: Want, means: TransferOptions, status: int, size: int | None
) -> None:
    want = wanted_file(serve(status=status), size=size)
    with pytest.raises(UnavailableError):
        fetch(want, means)
    assert list(want.path.parent.iterdir()) == []


def test_a_second_process_goes_on_when_the_first_is_killed(serve: Serve, wanted_file: Want, content: bytes) -> None:
    server = serve(delay=0.2)
    want = wanted_file(server)
    words = [sys.executable, "-m", "envcheck", "fetch", want.urls[0], "--sha256", want.sha256]
    words += ["--output", str(want.path.parent), "--connections", "2"]
    first = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while server.sent < 3 * MIB:
        time.sleep(0.01)
    server.faults.delay = 600.0  # what the first asks for from here on it never gets
    second = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert second.stderr is not None
    assert "another process is fetching file.bin: waiting for it" in second.stderr.readline()
    first.kill()
    first.communicate()
    server.faults.delay = 0.0
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 0, errors
    assert want.path.read_bytes() == content
    # The first process's connections lose at most the piece each was at; the look at the size is a byte each.
    assert server.sent <= len(content) + 2 * MIB + 2
