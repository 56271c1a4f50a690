"""Package mirrors on loopback addresses of their own, each wrong in its own way, under a private CA."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from envcheck.mirrors.net.client import Client
from envcheck.mirrors.probe.file_matches import WantedPackage
from envcheck.mirrors.probe.probe import Mirror
from envcheck.mirrors.profiles.model import Index, Profile

WHEELS = {
    f"{name}-py3-none-any.whl": random.Random(name).randbytes(size)  # noqa: S311 (data, no secret)
    for name, size in (("demo-1.0", 300_000), ("other-2.0", 3_000))
}
HASHES = {name: hashlib.sha256(body).hexdigest() for name, body in WHEELS.items()}


@dataclasses.dataclass
class Faults:
    """What a mirror does wrong."""

    gone: str = ""
    wrong_hash: str = ""
    no_hash: bool = False
    other_size: str = ""
    files_at: str = ""
    ranges: bool = True
    middle: bool = True
    pause: float = 0.0
    serial: int | None = None
    drip: bool = False
    query: str = ""


class Site(ThreadingHTTPServer):
    """A mirror on one loopback address."""

    daemon_threads = True

    def __init__(self, address: str, faults: Faults, context: ssl.SSLContext | None) -> None:
        super().__init__((address, 0), _Handler)
        self.faults = faults
        self.scheme = "http" if context is None else "https"
        self.asked: list[tuple[str, str | None]] = []
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    @property
    def host(self) -> str:
        """Return host:port."""
        return f"{self.server_address[0]!s}:{self.server_address[1]}"

    @property
    def url(self) -> str:
        """Return what a profile names."""
        return f"{self.scheme}://{self.host}/simple"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that went away, or that do not trust us."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Site

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
        """Say nothing."""

    def do_GET(self) -> None:
        site, faults = self.server, self.server.faults
        site.asked.append((self.path, self.headers.get("Range")))
        kind, _, rest = self.path.partition("?")[0].strip("/").partition("/")
        if faults.drip:
            self._drip()
        elif kind == "simple":
            self._page(rest, faults)
        elif rest not in WHEELS or rest == faults.gone:
            self._head(404, {"Content-Length": "0"})
        elif faults.files_at:
            self._head(302, {"Location": f"{faults.files_at}/files/{rest}", "Content-Length": "0"})
        else:
            self._file(WHEELS[rest] + (b"x" if rest == faults.other_size else b""), faults)

    def _page(self, project: str, faults: Faults) -> None:
        found = next((name for name in WHEELS if name.startswith(f"{project}-")), None)
        if found is None:
            self._head(404, {"Content-Length": "0"})
            return
        digest = "0" * 64 if found == faults.wrong_hash else HASHES[found]
        fragment = "" if faults.no_hash else f"#sha256={digest}"
        body = f'<a href="/files/{found}{faults.query}{fragment}">{found}</a>'.encode()
        serial = {} if faults.serial is None else {"X-PyPI-Last-Serial": str(faults.serial)}
        self._head(200, {"Content-Type": "text/html", "Content-Length": str(len(body)), **serial})
        self.wfile.write(body)

    def _file(self, body: bytes, faults: Faults) -> None:
        asked = self.headers.get("Range")
        first, last = (asked or "bytes=0-").removeprefix("bytes=").split("-")
        if asked is None or not faults.ranges or (int(first) > 0 and not faults.middle):
            self._head(200, {"Content-Length": str(len(body)), "ETag": '"one"'})
        else:
            start, stop = int(first), min(int(last) + 1, len(body))
            total = f"bytes {start}-{stop - 1}/{len(body)}"
            self._head(206, {"Content-Range": total, "Content-Length": str(stop - start), "ETag": '"one"'})
            body = body[start:stop]
        for at in range(0, len(body), 1 << 14):
            time.sleep(faults.pause)
            self.wfile.write(body[at : at + (1 << 14)])

    def _drip(self) -> None:
        """Send a page that never ends, a byte at a time."""
        self._head(200, {"Content-Type": "text/html", "Content-Length": "1000000"})
        while True:
            self.wfile.write(b" ")
            time.sleep(0.1)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


@dataclasses.dataclass(frozen=True)
class Authority:
    """A private CA's certificate, a server's certificate signed by it, and one that nobody signed."""

    ca: Path
    signed: ssl.SSLContext
    rogue: ssl.SSLContext


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return a CA whose servers are at loopback addresses."""
    at = tmp_path_factory.mktemp("ca")
    names = "subjectAltName=" + ",".join(f"IP:127.0.0.{number}" for number in range(2, 30))
    (at / "san").write_text(f"{names}\nbasicConstraints=critical,CA:FALSE\n")
    new = ("req", "-newkey", "rsa:2048", "-nodes")
    ca = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
    _openssl(*new, "-x509", "-days", "2", "-subj", "/CN=site CA", *ca, "-keyout", at / "ca.key", "-out", at / "ca.pem")
    _openssl(*new, "-subj", "/CN=mirror", "-keyout", at / "one.key", "-out", at / "one.csr")
    signing = ("-CA", at / "ca.pem", "-CAkey", at / "ca.key", "-CAcreateserial", "-days", "2", "-extfile", at / "san")
    _openssl("x509", "-req", "-in", at / "one.csr", *signing, "-out", at / "one.pem")
    rogue = ("-x509", "-days", "2", "-subj", "/CN=rogue", "-addext", names)
    _openssl(*new, *rogue, "-keyout", at / "rogue.key", "-out", at / "rogue.pem")
    return Authority(at / "ca.pem", _context(at, "one"), _context(at, "rogue"))


def _context(at: Path, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(at / f"{name}.pem", at / f"{name}.key")
    context.set_alpn_protocols(["http/1.1"])
    return context


@pytest.fixture
def serve(authority: Authority) -> Iterator[Callable[..., Site]]:
    """Give a function that starts a mirror; `tls` is "signed", "rogue" or "" for plain http."""
    sites: list[Site] = []

    def start(tls: str = "signed", **faults: object) -> Site:
        context: ssl.SSLContext | None = getattr(authority, tls) if tls else None
        site = Site(f"127.0.0.{len(sites) + 2}", Faults(**faults), context)  # type: ignore[arg-type]  # named in Faults
        threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        sites.append(site)
        return site

    yield start
    for site in sites:
        site.shutdown()
        site.server_close()


@pytest.fixture
def mirror(authority: Authority) -> Callable[..., Mirror]:
    """Give a function that makes a mirror of indexes' URLs, trusting the CA."""

    def make(name: str, *urls: str, region: str | None = None) -> Mirror:
        profile = Profile(name=name, pypi=[Index(url=url) for url in urls], ca=str(authority.ca))
        return Mirror(name, profile, Client(ca=authority.ca, connect=1.0, read=2.0), region)

    return make


@pytest.fixture
def asked() -> list[WantedPackage]:
    """Return what a lock of both wheels needs."""
    return [WantedPackage(name.split("-")[0], name.split("-")[1], (digest,), "pypi") for name, digest in HASHES.items()]
