"""What `envcheck fetch` prints: one line for what is wrong, an object for a program, how far it is and how long."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.mirrors.fetch.conftest import CONTENT, Lab, words
from tests.processes import ran

MIB = 1 << 20


def test_a_program_gets_an_object_when_nothing_is_there(lab: Lab) -> None:
    want = lab.want(lab.serve(status=404))
    completed = ran(words(want, "--json"))
    assert completed.returncode == 1
    document = json.loads(completed.stdout)
    assert (document["schema"], document["files"]) == ("envcheck/fetch/1", [])
    said = r"file\.bin: no source can provide it: 127\.0\.0\.2:\d+: it answers 404"
    assert re.search(said, document["error"]["message"])
    assert document["error"]["fix"] == "check the URL"
    assert completed.stderr == f"envcheck: {document['error']['message']}; {document['error']['fix']}\n"
    assert list(want.path.parent.iterdir()) == []


def test_a_url_may_hold_its_hash(lab: Lab) -> None:
    want = lab.want(lab.serve())
    command = [sys.executable, "-m", "envcheck", "fetch", "--output", str(want.path.parent)]
    url = f"{want.urls[0]}#sha256={want.sha256}"
    other = ran([*command, url, "--sha256", "0" * 64])
    assert (other.returncode, "--sha256 and the hash after # differ" in other.stderr) == (2, True)
    completed = ran([*command, url])
    assert completed.returncode == 0, completed.stderr
    assert want.path.is_file()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_whoever_stops_it_reads_how_it_goes_on_and_it_does(lab: Lab, number: signal.Signals, code: int) -> None:
    server = lab.serve(delay=0.2)
    want = lab.want(server)
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
    completed = ran(words(want))
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
def test_a_bad_value_is_one_line(lab: Lab, more: list[str], message: str) -> None:
    server = lab.serve()
    completed = ran(words(lab.want(server), *more))
    assert completed.returncode == 2
    assert completed.stderr.startswith("envcheck: ")
    assert completed.stderr.count("\n") == 1
    assert message in completed.stderr
    assert server.sent == 0


def test_a_log_gets_no_bar_and_a_quiet_one_nothing(lab: Lab) -> None:
    want = lab.want(lab.serve())
    completed = ran(words(want))
    assert re.fullmatch(r"file\.bin  10\.5 MB  127\.0\.0\.2:\d+  [\d.]+ MB/s\n", completed.stderr)
    want.path.unlink()
    at = words(want).index("fetch")
    quiet = ran([*words(want)[:at], "--quiet", *words(want)[at:]])
    assert (quiet.returncode, quiet.stderr) == (0, "")
