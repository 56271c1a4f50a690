"""Whoever waits for an index, a hub or a source is told, in a log and on a terminal, once for each host."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.mirrors.fetch.retries import NoSourceError, RetryLaterError, try_sources
from envcheck.mirrors.net import waits
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.waits import AFTER, Waits
from tests.waiting import eventually

Serve = Callable[..., Any]
HEX = "0" * 64


def _fetch(tmp_path: Path, url: str, *words: str) -> list[str]:
    (tmp_path / "lock").write_text(f"demo==1.0 --hash=sha256:{HEX}\nother==1.0 --hash=sha256:{HEX}\n")
    (tmp_path / "site.yaml").write_text(f"pypi: [{{url: {url.removesuffix('/file.bin')}}}]\n")
    return [sys.executable, "-m", "envcheck", *words]


def _lock(tmp_path: Path) -> list[str]:
    return ["fetch", "--lock", str(tmp_path / "lock"), "--mirror", str(tmp_path / "site.yaml")]


@pytest.mark.timeout(60)
def test_a_log_says_which_index_is_waited_for(serve: Serve, tmp_path: Path) -> None:
    server = serve(status=503, retry_after="7")
    words = _fetch(tmp_path, server.url, *_lock(tmp_path))
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stderr is not None
    line = process.stderr.readline()
    process.terminate()
    remaining = process.communicate(timeout=20)[1]
    host = server.url.split("/")[2]
    message = r"since [0-9]+ s: it answers 503 to /demo/ and asks to wait 7 s"
    assert re.match(f"  waiting for {host} {message}", line), line + remaining
    assert "waiting" not in remaining


@pytest.mark.timeout(60)
def test_quiet_says_nothing_of_waits(serve: Serve, tmp_path: Path) -> None:
    server = serve(delay=AFTER + 1.5, status=404)
    words = _fetch(tmp_path, server.url, "--quiet", *_lock(tmp_path))
    output = subprocess.run(words, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False).stderr
    assert "waiting" not in output
    assert output.startswith("envcheck: demo:")


@pytest.mark.timeout(60)
def test_a_terminal_says_it_above_the_bar(serve: Serve, tmp_path: Path) -> None:
    server = serve(delay=AFTER + 1.5, status=404)
    words = [sys.executable, "-m", "envcheck", "fetch", server.url, "--sha256", HEX, "--mirror", "none"]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(words, stderr=theirs, stdout=theirs, cwd=tmp_path)
    os.close(theirs)
    message = b""
    try:
        while chunk := os.read(ours, 1 << 16):
            message += chunk
    except OSError:  # the terminal's other end is closed
        os.close(ours)
    assert process.wait(20) == 1
    assert f"waiting for {server.url.split('/')[2]} since".encode() in message
    assert b"no answer yet, and it has 25 s" in message


def _waits() -> tuple[Waits, list[float]]:
    now = [0.0]
    return Waits(lambda: now[0]), now


def test_a_wait_is_told_once_for_a_host_and_kind_and_not_before_its_time() -> None:
    under_way, now = _waits()
    with under_way.on("a:1", "answer", "no answer yet"), under_way.on("a:1", "answer", "no answer yet"):
        now[0] = AFTER - 0.1
        assert under_way.due() == []
        now[0] = AFTER
        assert under_way.due() == ["waiting for a:1 since 5 s: no answer yet"]
        assert under_way.due() == []
        with under_way.on("a:1", "pause", "busy"), under_way.on("b:1", "answer", "no answer yet"):
            now[0] = 2 * AFTER
            assert under_way.due() == ["waiting for a:1 since 5 s: busy", "waiting for b:1 since 5 s: no answer yet"]
    now[0] = 9 * AFTER
    assert under_way.due() == []


def test_no_thread_runs_without_a_wait_and_none_after_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "AFTER", 0.2)
    monkeypatch.setattr(waits, "_TICK", 0.05)
    under_way, message = Waits(), list[str]()
    before = threading.active_count()
    with under_way.announced(message.append):
        assert threading.active_count() == before
        with under_way.on("a:1", "answer", "no answer yet"):
            assert eventually(lambda: len(message), expected=1) == 1
    assert re.fullmatch(r"waiting for a:1 since [0-9]+ s: no answer yet", message[0])
    assert eventually(threading.active_count, expected=before) == before
    assert len(message) == 1
    with under_way.on("a:1", "answer", "no answer yet"):
        assert threading.active_count() == before


def test_pauses_and_pages_are_waits(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "AFTER", 0.0)
    seen: list[str] = []
    stop = threading.Event()
    monkeypatch.setattr(stop, "wait", lambda _pause: seen.extend(waits.NETWORK_WAITS.due()))

    def busy(_url: str) -> None:
        message = "it answers 503"
        raise RetryLaterError(message)

    with pytest.raises(NoSourceError):
        try_sources(["http://pause.example/"], busy, stop)
    assert seen == ["waiting for pause.example since 0 s: it answers 503; next attempt after 1 s"]
    server = serve(content=b"page" * (1 << 16))
    with Client().get(server.url) as answer:
        pages = answer.page(1 << 20)
        next(pages)
        [line] = waits.NETWORK_WAITS.due()
    assert line.endswith("a page is not complete, and it has 120 s")
