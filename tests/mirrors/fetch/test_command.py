"""What `envcheck fetch` prints: one line for what is wrong, an object for a program, how far it is and how long."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from envcheck.mirrors.fetch.request import WantedFile
from tests.mirrors.fetch.conftest import CONTENT

Serve = Callable[..., Any]
Want = Callable[..., WantedFile]
MIB = 1 << 20


def words(want: WantedFile, *more: str) -> list[str]:
    # A shell's background job, as CI may be one, ignores the interrupt, and so would what it starts.
    fetch = ["env", "--default-signal=INT", sys.executable, "-m", "envcheck", "fetch", want.urls[0]]
    return [*fetch, "--sha256", want.sha256, "--output", str(want.path.parent), *more]


def ran(want: WantedFile, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words(want, *more), capture_output=True, text=True, check=False)


def test_a_program_gets_an_object_when_nothing_is_there(serve: Serve, wanted_file: Want) -> None:
    want = wanted_file(serve(status=404))
    completed = ran(want, "--json")
    assert completed.returncode == 1
    document = json.loads(completed.stdout)
    assert (document["schema"], document["files"]) == ("envcheck/fetch/1", [])
    assert re.search(
        r"file\.bin: no source can provide it: 127\.0\.0\.2:\d+: it answers 404", document["error"]["message"]
    )
    assert document["error"]["fix"] == "check the URL"
    assert completed.stderr == f"envcheck: {document['error']['message']}; {document['error']['fix']}\n"
    assert list(want.path.parent.iterdir()) == []


def test_a_url_may_hold_its_hash(serve: Serve, wanted_file: Want) -> None:
    want = wanted_file(serve())
    command = [sys.executable, "-m", "envcheck", "fetch", "--output", str(want.path.parent)]
    url = f"{want.urls[0]}#sha256={want.sha256}"
    other = subprocess.run([*command, url, "--sha256", "0" * 64], capture_output=True, text=True, check=False)
    assert (other.returncode, "--sha256 and the hash after # differ" in other.stderr) == (2, True)
    completed = subprocess.run([*command, url], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    assert want.path.is_file()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_whoever_stops_it_reads_how_it_goes_on_and_it_does(
    serve: Serve, wanted_file: Want, number: signal.Signals, code: int
) -> None:
    server = serve(delay=0.2)
    want = wanted_file(server)
    process = subprocess.Popen(
        words(want, "--json", "--connections", "4"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while server.sent < 3 * MIB:
        time.sleep(0.01)
    server.faults.stall = 60.0  # it does not end before it is stopped
    time.sleep(0.5)
    process.send_signal(number)
    printed, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert errors == "envcheck: interrupted; run the same command to resume\n"
    assert json.loads(printed)["error"]["message"] == "interrupted"
    server.faults.delay = server.faults.stall = 0.0
    completed = ran(want)
    assert completed.returncode == 0
    assert "of it from an earlier run" in completed.stderr
    assert want.path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--connections", "0"], "0 is not in the range 1<=x<=64"),
        (["--connections", "many"], "'many' is not a valid integer"),
        (["--connections", "65"], "65 is not in the range 1<=x<=64"),
        (["--sha256", "12345"], "'12345' is no sha256: it has not 64 hexadecimal digits"),
        (["--sha256", "g" * 64], "ggg' is no sha256: it has not 64 hexadecimal digits"),
        (["--sha256", ""], "--sha256"),
        (["--output", "/dev/null"], "/dev/null"),
        (["--mirror", "auto"], "--mirror auto is for wheels, and does not apply to URL"),
        (["--model", "org/name"], "URL and --model exclude each other"),
    ],
)
def test_a_bad_value_is_one_line(serve: Serve, wanted_file: Want, more: list[str], message: str) -> None:
    server = serve()
    completed = ran(wanted_file(server), *more)
    assert completed.returncode == 2
    assert completed.stderr.startswith("envcheck: ")
    assert completed.stderr.count("\n") == 1
    assert message in completed.stderr
    assert server.sent == 0


def test_a_log_gets_no_bar_and_a_quiet_one_nothing(serve: Serve, wanted_file: Want) -> None:
    want = wanted_file(serve())
    completed = ran(want)
    assert re.fullmatch(r"file\.bin  10\.5 MB  127\.0\.0\.2:\d+  [\d.]+ MB/s\n", completed.stderr)
    want.path.unlink()
    at = words(want).index("fetch")
    quiet = subprocess.run(
        [*words(want)[:at], "--quiet", *words(want)[at:]], capture_output=True, text=True, check=True
    )
    assert quiet.stderr == ""
