"""A server of one file that misbehaves as it is told to, and what was asked of it."""

import dataclasses
import hashlib
import itertools
import random
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from envcheck.mirrors.fetch import download
from envcheck.mirrors.fetch import request as fetch_retries
from envcheck.mirrors.fetch.request import FetchedFile, TransferOptions, WantedFile
from envcheck.mirrors.fetch.transfer import fetch
from envcheck.mirrors.net.client import Client
from tests.certificates import Certificate, self_signed
from tests.http_server import BLOCK, Answer, RawServer, Request, Server, Servers

SIZE = 10 * (1 << 20) + 12345
CONTENT = random.Random(4).randbytes(SIZE)  # noqa: S311 (data, no secret)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclasses.dataclass
class Faults:
    """What a server does wrong. `first` is for how many requests it does so; None for ever.

    `status`: it answers so to requests whose number is `busy`. `ranges_until`: it forgets of ranges after so many.
    `expires`: every so many requests it answers 403, as to a link that has run out. `most`: no answer has more bytes.
    `extra`: each has so many more than were asked for. Not `sized`: it says no length, and ends with the connection.
    `drip`: seconds before each byte of a body. `kind`: its Content-Type. `code`: its X-Error-Code, as hubs have it.
    """

    content: bytes = CONTENT
    status: int = 0
    retry_after: str | None = None
    busy: Callable[[int], bool] = lambda _request: True
    ranges: bool = True
    untold: bool = False
    ranges_until: int | None = None
    truncate: int = 0
    stall: float = 0.0
    etag: Callable[[int], str | None] = lambda _request: '"one"'
    redirect: str | None = None
    other_range: bool = False
    delay: float = 0.0
    first: int | None = None
    gone_after: int | None = None
    expires: int | None = None
    most: int | None = None
    extra: int = 0
    sized: bool = True
    drip: float = 0.0
    kind: str | None = None
    code: str | None = None


class FileServer(Server):
    """A server of one file. What it does wrong is in `faults`."""

    def __init__(self, faults: Faults, address: str, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(self.answer, address, tls=tls)
        self.faults = faults

    @property
    def url(self) -> str:
        return f"{super().url}/file.bin"

    def answer(self, request: Request) -> Answer:
        faults, number = self.faults, request.number
        if faults.first is not None and number > faults.first:
            faults = Faults()
        time.sleep(faults.delay)
        if faults.gone_after is not None and number > faults.gone_after:
            return Answer(404)
        if faults.redirect is not None:
            return Answer(302, headers={"Location": faults.redirect})
        if faults.expires is not None and number % faults.expires == 0:
            return Answer(403, headers={"Retry-After": faults.retry_after} if faults.retry_after else {})
        if faults.status and faults.busy(number):
            told = {"Retry-After": faults.retry_after, "X-Error-Code": faults.code}
            return Answer(faults.status, headers={name: value for name, value in told.items() if value})
        return self._file(faults, request)

    def _file(self, faults: Faults, request: Request) -> Answer:
        etag, total = faults.etag(request.number), len(faults.content)
        tag = {name: value for name, value in {"ETag": etag, "Content-Type": faults.kind}.items() if value is not None}
        forgets = faults.ranges_until is not None and request.number > faults.ranges_until
        span = request.span(total) if faults.ranges and not forgets else None
        if span is None or request.headers.get("If-Range", etag) != etag:
            sized = {"Content-Length": str(total)} if faults.sized else {}
            return self._sent(faults, faults.content, 200, {**sized, **tag})
        start, stop = span[0] + faults.other_range, span[1]
        if start >= total:
            return Answer(416, headers={"Content-Range": f"bytes */{total}"})
        part = faults.content[start:stop] + bytes(faults.extra)
        sized = {"Content-Length": str(len(part))} if faults.sized else {}
        told = {} if faults.untold else {"Content-Range": f"bytes {start}-{stop - 1}/{total}"}
        data = {**told, **sized, **tag}
        return self._sent(faults, part, 206, data)

    def _sent(self, faults: Faults, body: bytes, status: int, headers: dict[str, str]) -> Answer:
        cut = body[: max(1, len(body) - faults.truncate)][: faults.most]
        return Answer(status, self._parts(faults, cut), headers, close=len(cut) < len(body))

    def _parts(self, faults: Faults, body: bytes) -> Iterator[bytes]:
        while faults.drip:
            yield b"x"
            time.sleep(faults.drip)
        half = len(body) // 2 if faults.stall else 0
        for part in (body[:half], body[half:]):
            for at in range(0, len(part), BLOCK):
                yield part[at : at + BLOCK]
            if part is not body[half:] or half:
                time.sleep(faults.stall)
                faults = dataclasses.replace(faults, stall=0.0)


@dataclasses.dataclass
class Lab:
    """Servers of a file, each on an address of its own (two ports of one host are one host), and what is wanted."""

    servers: Servers
    to: Path
    notes: list[str] = dataclasses.field(default_factory=list)
    means: TransferOptions = dataclasses.field(init=False)
    addresses: Iterator[int] = dataclasses.field(default_factory=lambda: itertools.count(2))

    def __post_init__(self) -> None:
        # They lose patience within seconds, and not because a machine is busy.
        client = Client(connect=1.5, read=1.5, connections=4)
        self.means = TransferOptions(client, connections=4, note=self.notes.append)

    def serve(self, *, tls: ssl.SSLContext | None = None, **faults: Any) -> FileServer:
        return self.servers.start(FileServer(Faults(**faults), f"127.0.0.{next(self.addresses)}", tls))

    def want(self, *servers: FileServer, **changes: Any) -> WantedFile:
        whole = {"sha256": SHA256, "size": SIZE, "path": self.to / "file.bin"}
        return WantedFile(**{"urls": tuple(server.url for server in servers), **whole, **changes})

    def fetch(self, want: WantedFile, **changes: Any) -> FetchedFile:
        return fetch(want, dataclasses.replace(self.means, **changes))


@pytest.fixture
def lab(servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr(download, "BACKOFF", (0.05, 0.1, 0.15, 0.2))
    monkeypatch.setattr(fetch_retries, "WAITS", (0.05, 0.1, 0.15))
    return Lab(servers, tmp_path / "to")


@pytest.fixture
def certified(tmp_path: Path) -> Certificate:
    return self_signed(tmp_path, "127.0.0.2")


@pytest.fixture
def silent(servers: Servers) -> RawServer:
    """Return a server that takes every request and says nothing."""
    return servers.start(RawServer(lambda _: [], keeps=True))


def words(want: WantedFile, *more: str) -> list[str]:
    # A shell's background job, as CI may be one, ignores the interrupt, and so would what it starts.
    fetch = ["env", "--default-signal=INT", sys.executable, "-m", "envcheck", "fetch", want.urls[0]]
    return [*fetch, "--sha256", want.sha256, "--output", str(want.path.parent), *more]
