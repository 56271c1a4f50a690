"""The HTTP server of the tests: a test says which answers it gives, and reads what it was asked."""

import contextlib
import dataclasses
import mimetypes
import re
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from email.message import Message
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

BLOCK = 1 << 16


class Request(NamedTuple):
    """One request. `number`: how many its server has had with it; `connection`: where its answer goes."""

    method: str
    path: str
    headers: Message
    body: bytes
    number: int
    time: float
    connection: socket.socket

    @property
    def login(self) -> str | None:
        return self.headers.get("Authorization")

    @property
    def route(self) -> str:
        return unquote(urlsplit(self.path).path)

    def span(self, size: int) -> tuple[int, int] | None:
        """Return which bytes of so many are asked for, as start and stop; None for all."""
        requests = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        return (int(requests[1]), min(int(requests[2] or size) + 1, size)) if requests else None


@dataclasses.dataclass(frozen=True)
class Answer:
    """One answer. A body of bytes has its length told; one in parts is as long as the headers say, or as it comes."""

    status: int = 200
    body: bytes | Iterable[bytes] = b""
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    close: bool = False


Answering = Callable[[Request], Answer]
Speaking = Callable[[bytes], Iterable[bytes]]


class _Listening(socketserver.ThreadingTCPServer):
    """A server on a socket, which serves in threads of its own. Clients that go away are no error."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64
    scheme = "http"

    def __init__(
        self,
        handler: type[socketserver.BaseRequestHandler],
        address: str,
        port: int,
        tls: ssl.SSLContext | None,
        listening: socket.socket | None,
    ) -> None:
        super().__init__((address, port), handler, bind_and_activate=listening is None)
        if listening is not None:
            self.socket.close()
            self.socket = listening
            self.server_address = listening.getsockname()
        if tls is not None:  # greeted in the thread of each client: one that is slow keeps nobody waiting
            self.scheme = "https"
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.lock = threading.Lock()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def netloc(self) -> str:
        return f"{self.server_address[0]!s}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.netloc}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that went away, or that do not trust us."""


S = TypeVar("S", bound=_Listening)


class Server(_Listening):
    """A server that gives the answers of a function. `sent` counts the bytes of all their bodies."""

    def __init__(
        self,
        answering: Answering,
        address: str = "127.0.0.1",
        port: int = 0,
        *,
        tls: ssl.SSLContext | None = None,
        listening: socket.socket | None = None,
    ) -> None:
        super().__init__(_Handler, address, port, tls, listening)
        self.answering = answering
        self.requests: list[Request] = []
        self.sent = 0

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.requests]

    @property
    def logins(self) -> set[str | None]:
        return {request.login for request in self.requests}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
        """Say nothing."""

    def do_GET(self) -> None:
        server, body = self.server, self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with server.lock:
            requests = (self.command, self.path, self.headers, body, len(server.requests) + 1, time.time())
            request = Request(*requests, self.connection)
            server.requests.append(request)
        answer = server.answering(request)
        headers = dict(answer.headers)
        if isinstance(answer.body, bytes):
            headers.setdefault("Content-Length", str(len(answer.body)))
        self.close_connection = self.close_connection or answer.close or "Content-Length" not in headers
        self.send_response(answer.status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self._send(answer.body)

    do_CONNECT = do_HEAD = do_PATCH = do_POST = do_PUT = do_GET  # noqa: N815 (http.server's names)

    def _send(self, body: bytes | Iterable[bytes]) -> None:
        for part in [body] if isinstance(body, bytes) else body:
            for at in range(0, len(part), BLOCK):
                self.wfile.write(part[at : at + BLOCK])
                with self.server.lock:
                    self.server.sent += len(part[at : at + BLOCK])


class RawServer(_Listening):
    """A server that sends what a function makes of a request's bytes, HTTP or not. It `keeps` connections or not."""

    def __init__(self, speaking: Speaking, address: str = "127.0.0.1", port: int = 0, *, keeps: bool = False) -> None:
        super().__init__(_RawHandler, address, port, None, None)
        self.speaking, self.keeps = speaking, keeps
        self.requests: list[bytes] = []


class _RawHandler(socketserver.BaseRequestHandler):
    server: RawServer
    request: socket.socket

    def handle(self) -> None:
        while requests := self.request.recv(BLOCK):
            self.server.requests.append(requests)
            for part in self.server.speaking(requests):
                self.request.sendall(part)
            if not self.server.keeps:
                return


def endless(before: bytes, unit: bytes = b"x", pause: float = 0.1) -> Speaking:
    """Return an answer that begins at once and goes on for ever, with a pause after each unit."""

    def speak(_: bytes) -> Iterator[bytes]:
        yield before
        while True:
            yield unit
            time.sleep(pause)

    return speak


def ranged(request: Request, content: bytes | Path, headers: Mapping[str, str] | None = None) -> Answer:
    size = len(content) if isinstance(content, bytes) else content.stat().st_size
    span, result = request.span(size), dict(headers or {})
    if span is None:
        result |= {"Accept-Ranges": "bytes", "Content-Length": str(size)}
        return Answer(200, content if isinstance(content, bytes) else _blocks(content, 0, size), result)
    start, stop = span
    if start >= size:
        return Answer(416, b"", {**result, "Content-Range": f"bytes */{size}"})
    result |= {"Content-Range": f"bytes {start}-{stop - 1}/{size}", "Content-Length": str(stop - start)}
    return Answer(206, content[start:stop] if isinstance(content, bytes) else _blocks(content, start, stop), result)


def _blocks(path: Path, start: int, stop: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while start < stop and (block := file.read(min(BLOCK, stop - start))):
            start += len(block)
            yield block


def paced(answer: Answer, pause: float, block: int = BLOCK) -> Answer:
    """Return an answer whose bytes come in blocks, with a pause before each."""
    body = answer.body if isinstance(answer.body, bytes) else b"".join(answer.body)

    def blocks() -> Iterator[bytes]:
        for at in range(0, len(body), block):
            time.sleep(pause)
            yield body[at : at + block]

    return Answer(answer.status, blocks(), {"Content-Length": str(len(body)), **answer.headers}, answer.close)


def directory(root: Path, index: str = "index.html") -> Answering:
    def answer(request: Request) -> Answer:
        path = root / request.route.lstrip("/")
        path = path / index if path.is_dir() else path
        if not path.is_file():
            return Answer(404)
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        return ranged(request, path, {"Content-Type": kind})

    return answer


class Servers(contextlib.ExitStack):
    """Servers that run until the block, or the test, ends."""

    def start(self, server: S) -> S:
        self.callback(server.server_close)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        self.callback(server.shutdown)
        return server


@contextlib.contextmanager
def deaf(address: str = "127.0.0.1") -> Iterator[tuple[str, int]]:
    """Give a host and port that take no connection and refuse none: the queue is full."""
    with contextlib.ExitStack() as stack:
        listening, *queued = [stack.enter_context(socket.socket()) for _ in range(4)]
        listening.bind((address, 0))
        listening.listen(0)
        for one in queued:
            one.settimeout(0)
            one.connect_ex(listening.getsockname())
        yield listening.getsockname()
