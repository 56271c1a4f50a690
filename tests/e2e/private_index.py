"""A package index as sites have them: HTTPS with a certificate of their own, behind a password, on this machine."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import html
import http.server
import re
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote


@dataclasses.dataclass(frozen=True)
class Index:
    """A running index: its address, its certificate, and the paths that were asked for with the password."""

    url: str
    certificate: Path
    served: list[str]


@contextlib.contextmanager
def private_index(
    wheels: Path, scratch: Path, *, path: str, login: str, password: str, hashed: bool = False
) -> Iterator[Index]:
    """Serve `wheels` at https://localhost:PORT/<path>/simple/ to who gives login and password.

    Its pages tell the files' hashes if it is `hashed`; the indexes of sites often do not.
    """
    certificate, key = scratch / "index.pem", scratch / "index.key"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/O=site/CN=localhost",
            ),
            *("-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE"),
            *("-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    served: list[str] = []
    wanted = "Basic " + base64.b64encode(f"{login}:{password}".encode()).decode()
    handler = _handler(wheels, f"/{path}/simple", wanted, served, hashed=hashed)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Index(f"https://localhost:{server.server_port}/{path}/simple", certificate, served)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(
    wheels: Path, prefix: str, wanted: str, served: list[str], *, hashed: bool
) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Authorization") != wanted:
                self._answer(401, b"", ("WWW-Authenticate", 'Basic realm="site"'))
                return
            rest = unquote(self.path).removeprefix(prefix).strip("/")
            if rest.startswith("files/"):
                found = wheels / Path(rest).name
                self._answer(200, found.read_bytes()) if found.is_file() else self._answer(404, b"")
            else:
                page = _page(wheels, rest, prefix, hashed=hashed)
                self._answer(200 if page else 404, page, ("Content-Type", "text/html"))

        def _answer(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
            served.append(f"{status} {self.path}")
            self.send_response(status)
            for name, value in (*headers, ("Content-Length", str(len(body)))):
                self.send_header(name, value)
            self.end_headers()
            # A client that goes ends a connection under TLS with an error of its own kind.
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    return Handler


def _page(wheels: Path, project: str, prefix: str, *, hashed: bool) -> bytes:
    """Return the PEP 503 page of a project, empty when there is none."""
    files = [path for path in sorted(wheels.glob("*.whl")) if _normal(path.name.partition("-")[0]) == project]
    hashes = (f"#sha256={hashlib.sha256(path.read_bytes()).hexdigest()}" if hashed else "" for path in files)
    names = (html.escape(path.name) for path in files)
    links = (f'<a href="{prefix}/files/{name}{hash_}">{name}</a>' for name, hash_ in zip(names, hashes, strict=True))
    return f"<!DOCTYPE html><html><body>{'<br>'.join(links)}</body></html>".encode() if files else b""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
