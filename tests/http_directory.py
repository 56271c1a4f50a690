"""A directory over HTTP, for tests of what reads files from a server."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
        """Print nothing."""


@contextlib.contextmanager
def serving(directory: Path, address: str = "127.0.0.1") -> Iterator[str]:
    """Serve a directory on a free port of a loopback address; yield the URL."""
    server = ThreadingHTTPServer((address, 0), functools.partial(_Quiet, directory=str(directory)))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://{address}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
