"""`envcheck build --mirror auto`: what the probe found best is what the build asks."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from envcheck.cli import cli
from envcheck.errors import PromiseError
from envcheck.images.engines import venv
from envcheck.images.locks.lockfile import read_locks
from envcheck.images.locks.model import Pin
from envcheck.images.spec import ImageSpec
from envcheck.mirrors.profiles.model import Profile
from envcheck.mirrors.select import by_lock

CELL = "torch2.13.0-cpu-py311"
LOCKS = read_locks(Path(__file__).parents[2] / "images" / CELL)
SIZE = 1000


class Site(ThreadingHTTPServer):
    """An index of every wheel that the cell's locks name: hashes on its pages, zeros in its files."""

    daemon_threads = True

    def __init__(self, address: str, *, lacks: str = "") -> None:
        super().__init__((address, 0), _Handler)
        pins = [pin for lock in LOCKS for pin in lock.pins if pin.name != lacks]
        self.pages = {f"/simple/{pin.name}/": _page(pin).encode() for pin in pins}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Site

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
        """Say nothing."""

    def do_GET(self) -> None:
        page, asked = self.server.pages.get(self.path), self.headers.get("Range")
        if page is None and not self.path.endswith(".whl"):
            self._send(404, b"")
        elif page is not None:
            self._send(200, page)
        else:
            first, last = map(int, str(asked).removeprefix("bytes=").split("-"))
            self._send(206, bytes(last - first + 1), f"bytes {first}-{last}/{SIZE}")

    def _send(self, status: int, body: bytes, span: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()
        self.wfile.write(body)


def _page(pin: Pin) -> str:
    name = f"{pin.name.replace('-', '_')}-{pin.version}-py3-none-any.whl"
    return f'<a href="/files/{name.replace("+", "%2B")}#sha256={pin.sha256[0]}">{name}</a>'


@pytest.fixture
def sites() -> Iterator[tuple[Site, Site]]:
    """Return one that lacks a wheel, and one that has all."""
    found = Site("127.0.0.2", lacks="torch"), Site("127.0.0.3")
    for site in found:
        threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield found
    for site in found:
        site.shutdown()
        site.server_close()


def test_build_is_given_the_mirror_that_passed(
    sites: tuple[Site, Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, site in zip(("lacking", "whole"), sites, strict=True):
        url = f"http://{site.server_address[0]!s}:{site.server_port}/simple"
        (tmp_path / f"{name}.yaml").write_text(f"pypi: [{{url: '{url}'}}]\npytorch: [{{url: '{url}'}}]\n")
    named = [by_lock.load_mirror(str(tmp_path / f"{name}.yaml")) for name in ("lacking", "whole")]
    monkeypatch.setattr(by_lock, "default_mirrors", lambda: named)
    given: list[Profile] = []

    def build(_spec: ImageSpec, profile: Profile, *_args: object, **_options: object) -> None:
        given.append(profile)
        message = "nothing is built"
        raise PromiseError(message, fix="")

    monkeypatch.setattr(venv, "build", build)
    words = ["build", CELL, "--engine", "venv", "--mirror", "auto", "--output", str(tmp_path / "venv")]
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert isinstance(done.exception, PromiseError), done.exception
    said = " ".join(done.stderr.split())
    assert "pytorch/cpu: not lacking: has 0 of 1 file; torch==2.13.0+cpu" in said
    (profile,) = given
    assert [index.url for index in profile.pytorch] == [named[1].profile.pytorch[0].url]
    assert {index.url for index in profile.pypi} == {mirror.profile.pypi[0].url for mirror in named}
    first = "whole" if profile.pypi[0] == named[1].profile.pypi[0] else "lacking"
    assert re.search(rf"mirror auto: .*pypi: {first} \(", said)
