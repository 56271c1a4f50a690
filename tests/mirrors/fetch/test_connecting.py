"""A host whose addresses drop every packet costs one timeout, and one of them that answers costs next to nothing."""

from __future__ import annotations

import dataclasses
import hashlib
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.errors import UnavailableError
from envcheck.mirrors.fetch.batch import fetch_all
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.fetch.transfer import fetch
from envcheck.mirrors.index import simple_api
from envcheck.mirrors.net import connecting
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import NetworkError, SilentError

Serve = Callable[..., Any]
Resolve = Callable[[list[tuple[str, int]]], None]


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Resolve:
    """Give a function that has every name resolve to these addresses; no test can write to /etc/hosts."""

    def to(addresses: list[tuple[str, int]]) -> None:
        rows = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: rows)

    return to


def test_many_addresses_that_drop_packets_take_one_timeout(
    deaf: tuple[str, int], resolve: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "_NEXT", 0.1)
    resolve([deaf] * 40)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        connecting.connect("host", 80, 2.0)
    assert 2.0 <= time.monotonic() - began < 20  # 80 s one after the other


def test_the_next_address_is_tried_while_the_first_is_waited_for(deaf: tuple[str, int], resolve: Resolve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as good, socket.create_server(("127.0.0.1", 0)) as closed:
        refused = closed.getsockname()
        closed.close()
        resolve([deaf, refused, good.getsockname(), deaf])
        with connecting.connect("host", 80, 60.0, [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]) as connection:
            assert connection.getpeername() == good.getsockname()
            assert connection.gettimeout() == 60.0
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        resolve([refused, refused])
        with pytest.raises(ConnectionRefusedError):
            connecting.connect("host", 80, 60.0)
        resolve([])
        with pytest.raises(OSError, match="no address"):
            connecting.connect("host", 80, 60.0)


def wanted_file(urls: list[str], path: Path, content: bytes, *, sized: bool) -> WantedFile:
    size = len(content) if sized else None
    return WantedFile(tuple(urls), hashlib.sha256(content).hexdigest(), size, path)


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.timeout(120)
def test_a_file_and_a_page_of_a_host_that_drops_packets_take_two_timeouts_at_most(
    deaf: tuple[str, int], tmp_path: Path, *, sized: bool
) -> None:
    """Five timeouts and 23 s of rests before: 73 s with the usual timeout of 10 s."""
    client, url = Client(connect=2.0), f"http://{deaf[0]}:{deaf[1]}"
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="no connection in time"):
        fetch(wanted_file([f"{url}/f"], tmp_path / "f", bytes(3 << 20), sized=sized), TransferOptions(client))
    taken = time.monotonic() - began
    assert client.silence.rounds(url) == (2 if sized else 1)
    assert taken < 18  # two timeouts and one rest: 5 s on an idle machine, 33 s before
    fresh = Client(connect=2.0)
    with pytest.raises(SilentError, match="no connection in time"):
        simple_api.read_page(fresh, f"{url}/torch/")


@pytest.mark.timeout(120)
def test_a_host_that_drops_packets_costs_many_files_what_it_costs_one(
    deaf: tuple[str, int], serve: Serve, tmp_path: Path
) -> None:
    content = bytes(2 << 20)
    good, client = serve(content=content), Client(connect=2.0)
    first = wanted_file([f"http://{deaf[0]}:{deaf[1]}/f", good.url], tmp_path, content, sized=True)
    files = [dataclasses.replace(first, path=tmp_path / str(number)) for number in range(40)]
    began = time.monotonic()
    fetch_all(files, TransferOptions(client), lambda _: None)
    assert time.monotonic() - began < 16  # 20 s where each of four threads finds it out for each of its ten files
    assert all(file.path.read_bytes() == content for file in files)
    assert client.silence.rounds(first.urls[0]) >= 1


def test_a_proxy_that_drops_packets_counts_as_silent_too(
    deaf: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://{deaf[0]}:{deaf[1]}")
    monkeypatch.setenv("no_proxy", "")
    client = Client(connect=1.0)
    with pytest.raises(SilentError, match="its proxy: no connection in time"):
        client.get("http://mirror.example/f")
    with pytest.raises(NetworkError):
        client.get("http://mirror.example/f")
    with pytest.raises(SilentError, match="its proxy: no connection in time, again and again"):
        client.get("http://mirror.example/f")
