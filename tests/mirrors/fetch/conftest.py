"""A server of one file that misbehaves as it is told to, and what was asked of it."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import select
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from envcheck.mirrors.fetch import retries as fetch_retries
from envcheck.mirrors.fetch.plan import scheduler
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.net.client import Client

SIZE = 10 * (1 << 20) + 12345
CONTENT = random.Random(4).randbytes(SIZE)  # noqa: S311 (data, no secret)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclasses.dataclass
class Faults:
    """What a server does wrong. `first` is for how many requests it does so; None for ever.

    `signed`: it redirects to that URL with a signature of its own for each request. `once`: it serves no URL twice.
    `expires`: every so many requests it answers 403, as to a link that has run out. `most`: no answer has more bytes.
    `extra`: each has so many more than were asked for. Not `sized`: it says no length, and ends with the connection.
    `drip`: seconds before each byte of a body. `line`: the bytes a second of all its answers together.
    """

    content: bytes = CONTENT
    status: int = 0
    retry_after: str | None = None
    ranges: bool = True
    truncate: int = 0
    stall: float = 0.0
    etag: Callable[[int], str | None] = lambda _request: '"one"'
    redirect: str | None = None
    other_range: bool = False
    delay: float = 0.0
    first: int | None = None
    gone_after: int | None = None
    signed: str | None = None
    once: bool = False
    expires: int | None = None
    most: int | None = None
    extra: int = 0
    sized: bool = True
    drip: float = 0.0
    line: float | None = None


class Server(ThreadingHTTPServer):
    """A server on a loopback address of its own."""

    daemon_threads = True

    def __init__(self, address: str, faults: Faults) -> None:
        super().__init__((address, 0), _Handler)
        self.faults = faults
        self.asked: list[tuple[str, str | None]] = []
        self.times: list[float] = []
        self.sent = 0
        self.headers_seen: list[dict[str, str]] = []
        self.lock = threading.Lock()
        self.line_free_at = 0.0

    @property
    def url(self) -> str:
        """Return where the file is."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}/file.bin"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that went away: they are killed on purpose."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
        """Say nothing."""

    def do_GET(self) -> None:
        server, asked = self.server, self.headers.get("Range")
        with server.lock:
            server.asked.append((self.path, asked))
            server.times.append(time.time())
            server.headers_seen.append(dict(self.headers))
            number = len(server.asked)
        faults = server.faults
        if faults.first is not None and number > faults.first:
            faults = Faults()
        time.sleep(faults.delay)
        if faults.signed is not None:
            faults = dataclasses.replace(faults, redirect=f"{faults.signed}?signature={number}")
        used = faults.once and sum(path == self.path for path, _ in server.asked) > 1
        if used or (faults.expires is not None and number % faults.expires == 0):
            faults = dataclasses.replace(faults, status=403)
        if faults.gone_after is not None and number > faults.gone_after:
            self._head(404, {"Content-Length": "0"})
        elif faults.redirect is not None:
            self._head(302, {"Location": faults.redirect, "Content-Length": "0"})
        elif faults.status:
            after = {"Retry-After": faults.retry_after} if faults.retry_after else {}
            self._head(faults.status, {"Content-Length": "0", **after})
        else:
            self._body(faults, asked, faults.etag(number))

    def _body(self, faults: Faults, asked: str | None, etag: str | None) -> None:
        start, stop, total = 0, len(faults.content), len(faults.content)
        tag = {} if etag is None else {"ETag": etag}
        changed = "If-Range" in self.headers and self.headers["If-Range"] != etag
        if asked is None or not faults.ranges or changed:
            self._head(200, {**({"Content-Length": str(total)} if faults.sized else {"Connection": "close"}), **tag})
        else:
            first, last = asked.removeprefix("bytes=").split("-")
            start, stop = int(first) + faults.other_range, min(int(last) + 1, total)
            if start >= total:
                self._head(416, {"Content-Range": f"bytes */{total}", "Content-Length": "0"})
                return
            told = {"Content-Range": f"bytes {start}-{stop - 1}/{total}"}
            sized = {"Content-Length": str(stop - start + faults.extra)} if faults.sized else {"Connection": "close"}
            self._head(206, {**told, **sized, **tag})
        self._send(faults, faults.content[start:stop] + bytes(faults.extra))

    def _send(self, faults: Faults, body: bytes) -> None:
        whole = len(body)
        while faults.drip:
            self.wfile.write(b"x")
            time.sleep(faults.drip)
        body = body[: max(1, whole - faults.truncate)][: faults.most]
        half = len(body) // 2 if faults.stall else 0
        for part in (body[:half], body[half:]):
            for at in range(0, len(part), 1 << 16):
                self._queue(faults)
                self.wfile.write(part[at : at + (1 << 16)])
                with self.server.lock:
                    self.server.sent += len(part[at : at + (1 << 16)])
            if part is not body[half:] or half:
                time.sleep(faults.stall)
                faults = dataclasses.replace(faults, stall=0.0)
        self.close_connection = len(body) < whole or not faults.sized

    def _queue(self, faults: Faults) -> None:
        """Wait for the next free time on the line. All answers take turns, as on a real one."""
        if faults.line is None:
            return
        if select.select([self.connection], [], [], 0)[0]:  # a client that asks nothing more has gone away
            raise BrokenPipeError
        with self.server.lock:
            now = time.monotonic()
            at = max(now, self.server.line_free_at)
            self.server.line_free_at = at + (1 << 16) / faults.line
        time.sleep(at - now)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Give a function that starts a server: each on an address of its own, as two ports of one host are one host."""
    servers: list[Server] = []

    def start(**faults: object) -> Server:
        server = Server(f"127.0.0.{len(servers) + 2}", Faults(**faults))  # type: ignore[arg-type]  # named in Faults
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def secured(wanted: Callable[..., WantedFile], tmp_path: Path) -> Callable[[Server], tuple[WantedFile, Path]]:
    """Give a function that has a server speak TLS: the file there, and the certificate it is to be trusted by."""
    key, certificate = tmp_path / "key.pem", tmp_path / "ca.pem"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=t", "-addext", "subjectAltName=IP:127.0.0.2", "-keyout", str(key), "-out", str(certificate)]

    def speak(server: Server) -> tuple[WantedFile, Path]:
        subprocess.run(words, check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        want = wanted(server)
        return dataclasses.replace(want, urls=(want.urls[0].replace("http:", "https:"),)), certificate

    return speak


@pytest.fixture
def content() -> bytes:
    """Return the file."""
    return CONTENT


@pytest.fixture
def notes() -> list[str]:
    """Return what a fetch told a person."""
    return []


@pytest.fixture
def means(notes: list[str], monkeypatch: pytest.MonkeyPatch) -> TransferOptions:
    """Return means that lose patience within seconds, and not because a machine is busy."""
    monkeypatch.setattr(scheduler, "BACKOFF", (0.05, 0.1, 0.15, 0.2))
    monkeypatch.setattr(fetch_retries, "WAITS", (0.05, 0.1, 0.15))
    return TransferOptions(Client(connect=3.0, read=3.0, connections=4), connections=4, note=notes.append)


@pytest.fixture
def wanted(tmp_path: Path) -> Callable[..., WantedFile]:
    """Give a function that wants the file from those servers."""

    def want(*servers: Server, sha256: str = SHA256, size: int | None = SIZE) -> WantedFile:
        return WantedFile(tuple(server.url for server in servers), sha256, size, tmp_path / "to" / "file.bin")

    return want
