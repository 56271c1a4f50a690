"""An index, a hub and a mirror that attack whoever asks them: each ends in one line or the right bytes, in time."""

import dataclasses
import gzip
import hashlib
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from envcheck.errors import EnvcheckError
from envcheck.mirrors import index as simple_api
from envcheck.mirrors.hub import parse_tree
from envcheck.mirrors.index import LockedPackage, match_files
from envcheck.mirrors.net import responses
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import NetworkError
from envcheck.mirrors.net.urls import redirect_target
from tests.http_server import RawServer, Servers, endless
from tests.mirrors.fetch.conftest import CONTENT, Lab
from tests.tables import each
from tests.waiting import eventually

PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.pypi.simple.v1+json\r\nConnection: close\r\n\r\n"


DRIPS = {
    "status": endless(b"HTTP/1.1 2", b"x"),
    "headers": endless(b"HTTP/1.1 200 OK\r\nX-Long: "),
    "many headers": endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
    "interim answers": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "page": endless(PAGE + b"Connection: close\r\n\r\n"),
    "sized page": endless(PAGE + b"Content-Length: 99999\r\n\r\n"),
    "chunked": endless(PAGE + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "chunk size": endless(PAGE + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
    "trailers": endless(PAGE + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n", 0.0),
    "empty compressed parts": endless(
        PAGE + b"Content-Encoding: gzip\r\nConnection: close\r\n\r\n", gzip.compress(b""), 0.0
    ),
    "redirect": endless(b"HTTP/1.1 302 Found\r\nLocation: /torch/\r\nContent-Length: 60000\r\n\r\n"),
}


@pytest.mark.timeout(120)
def test_whatever_part_of_an_answer_drips_or_has_no_end_it_is_given_up(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((responses, "SECONDS"), (responses, "_PAGE_SECONDS")):
        monkeypatch.setattr(module, name, 0.5)
    read = []
    for part, speaking in DRIPS.items():
        try:
            simple_api.read_page(Client(read=2.0), servers.start(RawServer(speaking)).url)
        except NetworkError:
            continue
        read.append(part)
    assert read == []


@pytest.mark.timeout(200)
def test_a_mirror_that_does_anything_gives_the_right_bytes_or_an_error(lab: Lab) -> None:
    """Two mirrors with a few random faults each; another user's bytes never get the name."""
    chance, small = random.Random(7), CONTENT[: 3 << 20]  # noqa: S311 (which faults)
    faults: list[dict[str, Any]] = [
        {},
        {"content": small[::-1]},
        {"content": small[:-1]},
        {"content": small + b"x"},
        {"status": 503, "busy": lambda number: number % 2 == 0},
        {"status": 403, "busy": lambda number: number > 2},
        {"ranges": False},
        {"ranges_until": 2},
        {"truncate": 70_000},
        {"most": 300_000},
        {"extra": 7},
        {"sized": False},
        {"other_range": True},
        {"etag": lambda number: f'"{number}"'},
        {"gone_after": 2},
    ]
    right, digest = 0, hashlib.sha256(small).hexdigest()
    for round_ in range(60):
        servers = [
            lab.serve(**{"content": small, **chance.choice(faults), **chance.choice(faults)})
            for _ in range(chance.choice((1, 2)))
        ]
        want = lab.want(*servers, sha256=digest, size=chance.choice((None, len(small))))
        want = dataclasses.replace(want, path=want.path.with_name(f"{round_}.bin"))
        try:
            lab.fetch(want)
        except EnvcheckError:
            assert not want.path.exists()
        else:
            right += 1
            assert want.path.read_bytes() == small
    assert right > 20


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_heard_while_an_answer_drips(servers: Servers, tmp_path: Path, number: signal.Signals) -> None:
    server = servers.start(RawServer(DRIPS["page"]))
    (tmp_path / "profile.yaml").write_text(f"pypi: [{{url: {server.url}}}]\n")
    (tmp_path / "requirements.lock").write_text(f"torch==1.0 --hash=sha256:{'0' * 64}\n")
    command = ["env", "--default-signal=INT", sys.executable, "-m", "envcheck", "fetch", "--lock", "requirements.lock"]
    process = subprocess.Popen([*command, "--mirror", "profile.yaml"], stderr=subprocess.PIPE, cwd=tmp_path)
    assert eventually(lambda: bool(server.requests), expected=True), process.communicate(timeout=5)
    time.sleep(1.0)  # some bytes come
    assert process.poll() is None
    sent = time.monotonic()
    process.send_signal(number)
    _, message = process.communicate(timeout=20)
    assert process.returncode == 128 + number, message
    assert b"Traceback" not in message
    assert time.monotonic() - sent < 5  # one second on an idle machine
    assert b"interrupted" in message


def test_a_page_of_millions_of_links_is_cut_off_and_takes_little_memory(servers: Servers) -> None:
    links = b'<a href="torch-1.0-py3-none-any.whl">t</a>' * 10_000
    speaking = endless(PAGE + b"Connection: close\r\n\r\n", links, 0.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(NetworkError, match="lists more than 50000 files"):
        simple_api.read_page(Client(), servers.start(RawServer(speaking)).url)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def test_a_tag_without_an_end_is_refused() -> None:
    with pytest.raises(NetworkError, match="a tag of more than"):
        simple_api.parse_page([b"<a href='" + b"x" * (1 << 20)], "text/html", "http://t/")


@each("text", [b"[" * 100_000, b'{"files": ' + b"[" * 100_000, b'{"a":' * 100_000])
def test_deep_nesting_is_one_line(text: bytes) -> None:
    with pytest.raises(NetworkError, match="not PEP 691 JSON"):
        simple_api.parse_page([text], "application/json", "http://t/")
    with pytest.raises(ValueError, match="not what a hub answers"):
        parse_tree(text)
    with pytest.raises(ValueError, match="not what a hub answers: a web page"):
        parse_tree(b"\n<!DOCTYPE html><title>Sign in</title>")


def test_a_compressed_bomb_is_cut_off(servers: Servers) -> None:
    bomb = gzip.compress(bytes(200 << 20))
    head = PAGE + b"Content-Encoding: gzip\r\nConnection: close\r\n\r\n"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(NetworkError, match=r"more than \d+ bytes|tag of more"):
        simple_api.read_page(Client(), servers.start(RawServer(lambda _: [head + bomb])).url)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB


# As the resolver reads them, and where a cloud gives tokens (oras-go, GHSA-xf85-363p-868w).
METADATA = ["169.254.169.254", "[fe80::1]", "2852039166", "100.100.100.200", "[fd00:ec2::254]"]
SPELT = ["127.1", "0", "0177.0.0.1", "0x7f000001", "2130706433"]


@each(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "127.9.9.9", "0.0.0.0", "[::ffff:127.0.0.1]", "a.localhost", *SPELT],
)
def test_a_redirect_from_another_host_to_this_machine_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="this machine's own"):
        redirect_target("https://mirror.example/a", f"https://{host}/b")
    assert redirect_target("http://127.0.0.1:1/a", "http://127.0.0.1:2/b") == "http://127.0.0.1:2/b"


@each("host", METADATA)
def test_a_redirect_to_a_link_local_address_is_followed_from_itself_alone(host: str) -> None:
    for url in ("https://mirror.example/a", "http://127.0.0.1:8080/", "http://169.254.10.1/a"):
        with pytest.raises(ValueError, match="the link-local or metadata address"):
            redirect_target(url, f"https://{host}/b")
    assert redirect_target(f"http://{host}/simple/torch", "torch/") == f"http://{host}/simple/torch/"


@each("name", ["tor\0ch", "torch\x1b[2J", "torch\u202egpj", "torch\n", "torch\u2028", "../torch"])
def test_a_name_that_no_terminal_should_show_is_nobodys_file(name: str) -> None:
    file = simple_api.IndexFile(f"{name}-1.0-py3-none-any.whl", "http://t/a", "0" * 64)
    tagged = simple_api.IndexFile(f"torch-1.0-py3-none-any{name[5:]}.whl", "http://t/a", "0" * 64)
    need = LockedPackage("torch", ("0" * 64,), version="1.0")
    with pytest.raises(Exception, match="its page lists no file of torch"):
        match_files(need, [[file]])
    if not tagged.name.isprintable():
        with pytest.raises(Exception, match="its page lists no file of torch"):
            match_files(need, [[tagged]])
