"""A package index as sites have them: HTTPS with a certificate of their own, behind a password, on this machine."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
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
def private_index(wheels: Path, scratch: Path, *, path: str, login: str, password: str) -> Iterator[Index]:
    """Serve `wheels` at https://localhost:PORT/<path>/simple/ to who gives login and password."""
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
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(wheels, f"/{path}/simple", wanted, served))
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


def _handler(wheels: Path, prefix: str, wanted: str, served: list[str]) -> type[http.server.BaseHTTPRequestHandler]:
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
                page = _page(wheels, rest, prefix)
                self._answer(200 if page else 404, page, ("Content-Type", "text/html"))

        def _answer(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
            served.append(f"{status} {self.path}")
            self.send_response(status)
            for name, value in (*headers, ("Content-Length", str(len(body)))):
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    return Handler


def _page(wheels: Path, project: str, prefix: str) -> bytes:
    """Return the PEP 503 page of a project, empty when there is none."""
    names = [p.name for p in sorted(wheels.glob("*.whl")) if _normal(p.name.partition("-")[0]) == project]
    links = (f'<a href="{prefix}/files/{html.escape(name)}">{html.escape(name)}</a>' for name in names)
    return f"<!DOCTYPE html><html><body>{'<br>'.join(links)}</body></html>".encode() if names else b""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
