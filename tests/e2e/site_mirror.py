"""A site's mirror on sockets it is given: HTTPS by a private CA, indexes behind a password, links signed, apt relayed.

What it has as files it serves itself; Debian's packages it takes from where this machine has its own from. Each file is
behind a redirect to a link with a signature in its query, as object stores and hubs hand them out.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import hashlib
import html
import re
import shutil
import socket
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from envcheck.mirrors.profiles.apt_config import base_urls
from envcheck.mirrors.profiles.host_config import apt_sources

SUITE = "bookworm"
RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclasses.dataclass
class Site:
    """What it serves and to whom, and what it was asked for. `refuse` makes it answer so to what is signed."""

    wheels: Path
    path: str
    login: str
    password: str
    signature: str
    asked: list[str] = dataclasses.field(default_factory=list)
    refuse: int = 0

    @property
    def wanted(self) -> str:
        """Return the header that it asks for."""
        return "Basic " + base64.b64encode(f"{self.login}:{self.password}".encode()).decode()


def authority(directory: Path, name: str, *hosts: str) -> tuple[Path, ssl.SSLContext]:
    """Make a private CA and return its certificate, in a file of that name, and a server's context for the hosts."""
    names = ",".join(f"{'IP' if host[0].isdigit() else 'DNS'}:{host}" for host in hosts)
    (directory / "names").write_text(f"subjectAltName={names}\nbasicConstraints=critical,CA:FALSE\n")
    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    root = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
    sign = ("x509", "-req", "-in", "request.pem", "-CA", name, "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
    for words in (
        (*new, "-x509", "-days", "2", "-subj", "/CN=site CA", *root, "-keyout", "ca.key", "-out", name),
        (*new, "-subj", "/CN=mirror", "-keyout", "key.pem", "-out", "request.pem"),
        (*sign, "-extfile", "names", "-out", "mirror.pem"),
    ):
        subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "mirror.pem", directory / "key.pem")
    return directory / name, context


@contextlib.contextmanager
def serving(site: Site, listening: socket.socket, context: ssl.SSLContext) -> Iterator[None]:
    """Serve it on a socket."""
    with running(_Server(site), listening, context):
        yield


@contextlib.contextmanager
def running(
    server: ThreadingHTTPServer, listening: socket.socket, context: ssl.SSLContext | None = None
) -> Iterator[None]:
    """Run a server on a socket that is there already, instead of the one it has made."""
    server.socket.close()
    if context is not None:  # greeted in the thread of each client: one that is slow keeps nobody waiting
        listening = context.wrap_socket(listening, server_side=True, do_handshake_on_connect=False)
    server.socket = listening
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, site: Site) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.site = site
        self.archives = base_urls(apt_sources(), "debian", SUITE)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that went away, or that do not trust us."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        site = self.server.site
        site.asked.append(self.path)
        path, _, query = self.path.partition("?")
        kind, _, rest = unquote(path).removeprefix(f"/{site.path}/").strip("/").partition("/")
        if path.startswith(("/debian/", "/debian-security/")):
            self._relayed(path)
        elif kind == "signed":
            right = query == f"X-Amz-Signature={site.signature}" and not site.refuse
            self._file(site.wheels / Path(rest).name) if right else self._answer(site.refuse or 403)
        elif self.headers.get("Authorization") != site.wanted:
            self._answer(401, b"", {"WWW-Authenticate": 'Basic realm="site"'})
        elif kind == "files":
            to = f"/{site.path}/signed/{rest.replace('+', '%2B')}?X-Amz-Signature={site.signature}"
            self._answer(302, b"", {"Location": to})
        else:
            page = _page(site, rest.rpartition("/")[2]) if kind in {"simple", "whl"} else b""
            self._answer(200 if page else 404, page, {"Content-Type": "text/html"})

    def _file(self, path: Path) -> None:
        if not path.is_file():
            self._answer(404)
            return
        size, asked = path.stat().st_size, RANGE.fullmatch(self.headers.get("Range", ""))
        start, stop = (int(asked[1]), min(int(asked[2] or size) + 1, size)) if asked else (0, size)
        self.send_response(206 if asked else 200)
        told = {"Content-Range": f"bytes {start}-{stop - 1}/{size}"} if asked else {"Accept-Ranges": "bytes"}
        for name, value in {**told, "Content-Length": str(stop - start), "ETag": f'"{path.name}"'}.items():
            self.send_header(name, value)
        self.end_headers()
        with path.open("rb") as file:
            if self.command != "HEAD":
                self.connection.sendfile(file, start, stop - start)

    def _relayed(self, path: str) -> None:
        """Pass on a file of Debian's from the first place of this machine's that has it."""
        for base in self.server.archives:
            with contextlib.suppress(urllib.error.HTTPError):
                request = urllib.request.Request(base.rstrip("/") + path, method=self.command)  # noqa: S310 (apt's own)
                with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 (as above)
                    self.send_response(200)
                    for name in ("Content-Length", "Last-Modified"):
                        if name in answer.headers:
                            self.send_header(name, answer.headers[name])
                    self.close_connection = "Content-Length" not in answer.headers
                    self.end_headers()
                    shutil.copyfileobj(answer, self.wfile, 1 << 18)
                return
        self._answer(404)

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _page(site: Site, project: str) -> bytes:
    """Return the PEP 503 page of a project, empty when there is none."""
    names = [p.name for p in sorted(site.wheels.glob("*.whl")) if _normal(p.name.partition("-")[0]) == project]
    links = (f"/{site.path}/files/{name.replace('+', '%2B')}#sha256={_digest(site.wheels / name)}" for name in names)
    rows = (f'<a href="{link}">{html.escape(name)}</a>' for link, name in zip(links, names, strict=True))
    return f"<!DOCTYPE html><html><body>{'<br>'.join(rows)}</body></html>".encode() if names else b""


@functools.cache
def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
