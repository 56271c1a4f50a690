"""An upstream of a test's own: a real nginx that serves a tree on a loopback address and writes down what it sent."""

import contextlib
import dataclasses
import hashlib
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

from tests.waiting import PATIENCE, eventually

NGINX = """
daemon off; pid {root}/nginx.pid; error_log {root}/error.log; worker_processes 1; {user}
events {{}}
http {{
  client_body_temp_path {root}/t1; proxy_temp_path {root}/t2; fastcgi_temp_path {root}/t3; uwsgi_temp_path {root}/t4;
  scgi_temp_path {root}/t5;
  types {{ text/html html; application/vnd.pypi.simple.v1+json json; }}
  map $http_accept $page {{ default index.html; "~simple\\.v1\\+json" index.json; }}
  log_format sent '$status $bytes_sent $request_uri'; access_log {root}/sent.log sent;
  server {{ listen {address}; root {tree}; location ~ /$ {{ try_files $uri$page =404; }} location / {{ {extra} }} }}
}}
"""


def free_port(address: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def free_ports(count: int) -> int:
    """Return the first of so many ports in a row that nobody listens on, below those the kernel gives to clients.

    Tests that run beside each other look in ranges of their own: nobody listens on a port that is only just chosen.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw2").removeprefix("gw")) % 3
    first = 20000 + 4000 * worker + time.time_ns() % 3700
    return next(p for p in range(first, 32768 - count) if all(map(_free, range(p, p + count))))


def _free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@dataclasses.dataclass
class Upstream:
    """A running upstream; `origin` is where it is."""

    root: Path
    origin: str
    process: subprocess.Popen[bytes]

    @property
    def tree(self) -> Path:
        """Return the directory it serves."""
        return self.root / "tree"

    def sent(self) -> list[tuple[int, int, str]]:
        """Return status, bytes and path of every answer that has come to its end."""
        if self.process.poll() is None:
            # It writes a line with the last byte, and is one process: what was before this has its line before it, too.
            mark = f"/mark-{time.monotonic_ns()}"
            get(self.origin + mark)
            assert eventually(lambda: any(line.endswith(mark) for line in self._log()), expected=True)
        lines = [line.split() for line in self._log() if "/mark-" not in line]
        return [(int(status), int(size), path) for status, size, path in lines]

    def _log(self) -> list[str]:
        return (self.root / "sent.log").read_text().splitlines()

    def stop(self) -> None:
        """End it; what it listened on refuses connections from now on."""
        self.process.terminate()
        self.process.wait(PATIENCE)


def upstream(root: Path, address: str, extra: str = "") -> Upstream:
    """Start an upstream on a loopback address; `extra` goes into its configuration where files are served."""
    nginx = shutil.which("nginx") or "/usr/sbin/nginx"
    (root / "tree").mkdir(parents=True, exist_ok=True)
    at = f"{address}:{free_port(address)}"
    (root / "nginx.conf").write_text(
        NGINX.format(root=root, address=at, tree=root / "tree", extra=extra, user="user root;")
    )
    command = [nginx, "-p", str(root), "-e", str(root / "error.log"), "-c", str(root / "nginx.conf")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    answers(f"http://{at}/", process)
    return Upstream(root, f"http://{at}", process)


def answers(url: str, process: subprocess.Popen[bytes]) -> None:
    """Return once something answers at a URL; fail when the process ends before."""
    host, _, port = url.split("/")[2].partition(":")

    def there() -> bool:
        assert process.poll() is None, "the server ended"
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0

    assert eventually(there, expected=True), url


def page(index: Path, project: str, links: dict[str, Path]) -> None:
    """Write a project's page as HTML and as JSON: link -> the file there."""
    directory = index / project
    directory.mkdir(parents=True, exist_ok=True)
    hashes = {link: hashlib.sha256(path.read_bytes()).hexdigest() for link, path in links.items()}
    anchors = "".join(f'<a href="{link}#sha256={hashes[link]}">{links[link].name}</a>\n' for link in links)
    (directory / "index.html").write_text(f"<!DOCTYPE html><html><body>{anchors}</body></html>")
    files = [{"filename": links[link].name, "url": link, "hashes": {"sha256": hashes[link]}} for link in links]
    data = {"meta": {"api-version": "1.0"}, "name": project, "files": files}
    (directory / "index.json").write_text(json.dumps(data))


def get(url: str, ca: Path | None = None, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    """Return status, body and headers, of a server that only this CA vouches for; no redirect is followed."""
    parts = urlsplit(url)
    assert parts.hostname
    if ca is None:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
    else:
        context = ssl.create_default_context(cafile=str(ca))
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=30, context=context)
    with contextlib.closing(connection):
        connection.request(method, url.removeprefix(f"{parts.scheme}://{parts.netloc}"), headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
