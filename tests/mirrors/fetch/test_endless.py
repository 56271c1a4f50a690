"""Answers without an end that never stall, and pages that Python's own parser refuses: each is one line, in time."""

from __future__ import annotations

import dataclasses
import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from envcheck.cli import cli
from envcheck.errors import ConfigError, UnavailableError
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.fetch.transfer import fetch
from envcheck.mirrors.index import simple_api
from envcheck.mirrors.net import stall
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import NetworkError, SlowError
from envcheck.mirrors.net.urls import is_web_url
from envcheck.mirrors.probe import index_page
from envcheck.mirrors.probe.budget import Budget
from tests.http_server import Speaking, endless

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
Start = Callable[[Speaking], str]


ENDLESS = {
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "trailers": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n"),
    "trailers of a redirect": (
        b"HTTP/1.1 302 F\r\nLocation: /\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
        b"X: y\r\n",
    ),
    "empty compressed data": (HEAD + b"Content-Encoding: gzip\r\n\r\n", gzip.compress(b"")),
}


def fast(before: bytes, unit: bytes) -> Speaking:
    return endless(before, unit * 1000, 0.02)


@pytest.mark.parametrize("part", ENDLESS)
@pytest.mark.timeout(60)
def test_what_never_stalls_and_has_no_end_is_given_up(start: Start, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    monkeypatch.setattr(stall, "SECONDS", 0.5)
    url = start(fast(*ENDLESS[part]))
    with pytest.raises(NetworkError) as raised:
        simple_api.read_page(Client(read=5.0), url)
    if part != "trailers of a redirect":  # there the redirects end, by their number
        assert isinstance(raised.value, SlowError)
        assert str(raised.value) == "it keeps sending data without a valid response"


@pytest.mark.timeout(60)
def test_the_bytes_of_a_file_whose_trailers_have_no_end_are_given_up(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stall, "SECONDS", 0.5)
    url = start(fast(*ENDLESS["trailers"]))
    with pytest.raises(SlowError, match="keeps sending"), Client(read=5.0).get(url) as answer:
        b"".join(answer.chunks(1 << 16))


@pytest.mark.parametrize(
    "body",
    [b'<a href="&#' + b"9" * 5000 + b';">x</a>', b"&#" + b"9" * 5000 + b";<a>", b"<![foo[x]]>", b"<![ x", b"<!["],
)
def test_a_page_that_python_s_parser_refuses_is_one_line(body: bytes) -> None:
    with pytest.raises(NetworkError, match="not valid HTML"):
        simple_api.parse_page(body + b"<a href='torch-1.0-py3-none-any.whl'>t</a>", "text/html", "http://t/")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"<a href='torch'>torch</a>", "its answer is not valid HTTP"),
        (b"HTTP/2.0 200 OK\r\n\r\n", "its answer is not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 150 + b"\r\n", "its answer is not valid HTTP"),
        (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", "its answer is not valid HTTP"),
        (b"", "it was cut off"),
        (HEAD + b"Content-Length: 9999\r\n\r\nx", "it was cut off"),
        (HEAD + b"Content-Encoding: br\r\n\r\nx", "its Content-Encoding cannot be read: br"),
        (HEAD + b"Content-Encoding: gzip, \x1b[2J\r\n\r\nx", r"its Content-Encoding cannot be read: \?"),
        (b"HTTP/1.1 302 F\r\nLocation: http://127.0.0.1:1/x\r\n\r\n", "redirected to 127.0.0.1:1: no connection"),
        (b"HTTP/1.1 302 F\r\nLocation: http://a..b/\r\n\r\n", r"redirected to a\.\.b: its URL is invalid"),
        (
            b"HTTP/1.1 302 F\r\nLocation: http://\x9b31mb:99999/\r\n\r\n",
            r"redirected to \?31mb:99999: its URL is invalid",
        ),
    ],
)
def test_what_is_wrong_and_with_whom_is_said(start: Start, answer: bytes, message: str) -> None:
    with pytest.raises(NetworkError, match=f"^{message}$"):
        simple_api.read_page(Client(), start(lambda _: [answer]))


def test_a_serial_of_many_digits_is_none(start: Start) -> None:
    page = HEAD + b"X-PyPI-Last-Serial: " + b"9" * 5000 + b"\r\n\r\n<a href='x'>x</a>"
    url = start(lambda _: [page])
    with Client().get(url) as response:
        assert index_page.read_index_page(response, Budget(1 << 20, 60.0))[0].serial is None


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://h:99999", "http://h:x", "http://", "http://h:0", "http://a\u202e"]
)
def test_a_url_that_is_none_is_one_line(url: str) -> None:
    assert not is_web_url(url)
    for words in (["audit", url], ["probe", "--need", url]):
        result = CliRunner().invoke(cli, ["mirror", *words])
        assert isinstance(result.exception, ConfigError)
    assert is_web_url("https://h:8443/simple")
    assert is_web_url("http://[::1]/")


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY"])
@pytest.mark.parametrize(
    "proxy", ["http://[::1", "http://h:99999", "http://h:abc", "http://us\u4e2der:secret@127.0.0.1:1"]
)
def test_a_proxy_s_url_that_is_none_is_said_to_be_the_proxy_s(
    monkeypatch: pytest.MonkeyPatch, proxy: str, name: str
) -> None:
    for variable in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, proxy)
    with pytest.raises(NetworkError, match=f"^the proxy's URL in {name} is invalid$") as raised:
        Client().get("http://mirror.example/")
    assert "secret" not in str(raised.value) + raised.value.fix
    assert raised.value.fix.startswith(f"write {name}=http://HOST:PORT")


def test_a_size_beyond_the_disk_is_called_a_claim_of_the_source(start: Start, tmp_path: Path) -> None:
    head = b"HTTP/1.1 206 P\r\nContent-Range: bytes 0-0/999999999999999\r\nContent-Length: 1\r\n\r\nx"
    expected = WantedFile((start(lambda _: [head]),), "0" * 64, None, tmp_path / "f")
    with pytest.raises(UnavailableError, match=r"the size that a source claims, and it may be wrong") as raised:
        fetch(expected, TransferOptions(Client()))
    assert raised.value.fix.endswith("or name another mirror (--mirror)")
    known = dataclasses.replace(expected, size=10**15 - 1)
    with pytest.raises(UnavailableError) as raised:
        fetch(known, TransferOptions(Client()))
    assert "claims" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []
