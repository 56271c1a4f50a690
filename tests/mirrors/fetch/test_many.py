"""Several files at once: within one limit of requests to a host, ended by one interrupt, each failure told."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.errors import PromiseError, UnavailableError
from envcheck.mirrors.fetch.batch import ProgressTotals, fetch_all
from envcheck.mirrors.fetch.limits import HostSlots
from envcheck.mirrors.fetch.request import FetchedFile, TransferOptions, WantedFile

Serve = Callable[..., Any]
Want = Callable[..., WantedFile]


def copies(want: WantedFile, count: int) -> list[WantedFile]:
    return [dataclasses.replace(want, path=want.path.with_name(f"{number}.bin")) for number in range(count)]


def test_all_are_there_in_the_order_asked_for_and_each_is_told(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes
) -> None:
    messages: list[tuple[int, int]] = []
    fetched_files: list[FetchedFile] = []
    many = copies(wanted_file(serve()), 3)
    actual = fetch_all(
        many, dataclasses.replace(means, progress=lambda *so_far: messages.append(so_far)), fetched_files.append
    )
    assert [file.path for file in actual] == [want.path for want in many]
    assert {file.path.read_bytes() for file in fetched_files} == {content}
    assert messages[-1] == (3 * len(content), 3 * len(content))


def test_the_others_come_though_one_does_not(serve: Serve, wanted_file: Want, means: TransferOptions) -> None:
    good, missing = wanted_file(serve()), wanted_file(serve(status=404))
    many = [dataclasses.replace(missing, path=missing.path.with_name("gone")), *copies(good, 2)]
    with pytest.raises(UnavailableError, match="gone: no source can provide it"):
        fetch_all(many, means, lambda _: None)
    assert [want.path.exists() for want in many] == [False, True, True]


def test_room_for_all_of_them_is_looked_for_before_anything_is_asked(
    serve: Serve, wanted_file: Want, means: TransferOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two files of three have room; then one of them is there, and another is linked from this machine."""
    server = serve()
    many, usage = copies(wanted_file(server), 3), shutil.disk_usage("/")
    size = many[0].size or 0
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=2 * size))
    with pytest.raises(UnavailableError, match=rf": {3 * size} bytes are needed and {2 * size} are free"):
        fetch_all(many, means, lambda _: None)
    assert server.requests == []
    fetch_all(many[:1], means, lambda _: None)
    linked = dataclasses.replace(many[1], local=(many[0].path,))
    fetch_all([many[0], linked, many[2]], means, lambda _: None)
    assert all(want.path.exists() for want in many)
    assert server.sent == 2 * size


def test_wrong_bytes_are_told_before_what_is_not_to_be_had(
    serve: Serve, wanted_file: Want, means: TransferOptions
) -> None:
    missing, wrong = wanted_file(serve(status=404)), wanted_file(serve(), sha256="0" * 64)
    with pytest.raises(PromiseError, match=r"no source has the file.*and 1 more file"):
        fetch_all([missing, dataclasses.replace(wrong, path=wrong.path.with_name("b"))], means, lambda _: None)


def test_a_host_gets_no_more_requests_than_allowed_whatever_the_file() -> None:
    slots, busy, most = HostSlots(2), [0], [0]
    lock = threading.Lock()

    def one() -> None:
        with slots.acquire("host", lambda: False) as mine:
            assert mine
            with lock:
                busy[0] += 1
                most[0] = max(most[0], busy[0])
            time.sleep(0.01)
            with lock:
                busy[0] -= 1

    threads = [threading.Thread(target=one) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == 2
    with slots.acquire("host", lambda: True) as mine:
        assert not mine


def test_a_total_counts_a_size_as_soon_as_it_is_known() -> None:
    sizes = (10, None)
    totals = ProgressTotals([WantedFile((), "", size, Path("x")) for size in sizes])
    assert totals.update(0, 5, 10) == (5, 10)
    assert totals.update(1, 1, 30) == (6, 40)


def test_an_interrupt_is_one_line_at_once_and_what_has_come_is_kept(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes
) -> None:
    server = serve(delay=0.3)
    want = wanted_file(server)
    # A shell's background job, as CI may be one, ignores the interrupt, and so would what it starts.
    words = ["env", "--default-signal=INT", sys.executable, "-m", "envcheck"]
    words += ["fetch", want.urls[0], "--sha256", want.sha256]
    words += ["--output", str(want.path.parent), "--connections", "2"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while server.sent < 3 << 20:
        time.sleep(0.01)
    server.faults.stall = 60.0  # a read that would wait for long is ended too
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.strip() == "envcheck: interrupted; run the same command to resume"
    assert not want.path.exists()
    server.faults.stall = server.faults.delay = 0.0
    assert fetch_all([want], means, lambda _: None)[0].found > 0
    assert want.path.read_bytes() == content
