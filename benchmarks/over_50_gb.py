"""A model's file of more than 50 GB: whether it is fetched whole, in how much memory, and what its hash takes.

    python benchmarks/over_50_gb.py [--json] [--size 50_100_000_000] [--dir DIR]

A hub on the loopback redirects each request to a link that is good for one more, as the CDNs of hubs do, and that
refuses to give more than 50 GB without a range. The file is zeros but for some bytes around 0, 2^32, 50 GB and its end.
It goes to an ext4 of its own on a sparse image, so that neither the disk nor the line has to take 50 GB: a journal says
that an earlier process has fetched the pieces of zeros. `envcheck fetch` is killed when it has half of the others, and
started again; it fetches what lacks and hashes the whole. Where ENVCHECK_TEST_HUB names a Python that has
huggingface_hub, what that says of the same file is printed too. Needs root (for the mount) and mkfs.ext4.

Goals: the file is right; not more than one piece a connection comes twice; less than 1.5 times the seconds of sha256
alone; a peak of memory below 1.25 times that of a file of 100 MB.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, NamedTuple

from envcheck.mirrors.fetch.disk import journal, partial_file
from envcheck.mirrors.fetch.plan.pieces import piece_size, spans
from envcheck.mirrors.hub import revision as hub_revision

COMMIT: Final = "0123456789abcdef0123456789abcdef01234567"
REPO: Final = "owner/large"
NAME: Final = "model.safetensors"
MOST: Final = 50_000_000_000
MIB: Final = 1 << 20
CONNECTIONS: Final = 4
GOALS: Final = {"right": True, "pieces_twice": CONNECTIONS, "vs_sha256": 1.5, "memory_growth": 1.25}


class Sparse:
    """A file of zeros with some bytes of its own at `marks`, which is made as it is read."""

    def __init__(self, size: int, marks: tuple[int, ...] = (0, 1 << 32, MOST)) -> None:
        self.size = size
        self.marks = sorted({max(0, min(mark - 500, size - 1000)) for mark in (*marks, size)})

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes of a range."""
        if not self.marked(start, stop):
            return bytes(stop - start)
        content = bytearray(stop - start)
        for mark in self.marks:
            own = b"%020d" % mark * 50
            low, high = max(start, mark), min(stop, mark + len(own))
            if low < high:
                content[low - start : high - start] = own[low - mark : high - mark]
        return bytes(content)

    def sha256(self) -> str:
        """Return the hash of all of it."""
        hasher = hashlib.sha256()
        for start in range(0, self.size, MIB):
            hasher.update(self.read(start, min(self.size, start + MIB)))
        return hasher.hexdigest()

    def marked(self, start: int, stop: int) -> bool:
        """Tell whether a range is more than zeros."""
        return any(mark < stop and start < mark + 1000 for mark in self.marks)


class Hub(ThreadingHTTPServer):
    """An endpoint of that one file. `most`: what it gives without a range; a link is good for one request."""

    daemon_threads = True

    def __init__(self, file: Sparse, sha256: str, most: int = MOST) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.file, self.sha256, self.most = file, sha256, most
        self.sent, self.links, self.refused = 0, 0, 0
        self.ranges: list[str | None] = []
        self.used: set[str] = set()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        """Return the endpoint."""
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that are killed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, tag = self.server, f'"{self.server.sha256}"'
        if self.path.startswith(f"/{REPO}/resolve/"):
            with hub.lock:
                hub.links += 1
                link = f"http://localhost:{hub.server_port}/cdn/{hub.links}"
            headers = {"ETag": tag, "X-Linked-Etag": tag, "X-Linked-Size": str(hub.file.size), "X-Repo-Commit": COMMIT}
            self._head(302, {**headers, "Location": link, "Content-Length": "0"})
            return
        with hub.lock:
            used_before = self.path in hub.used
            hub.used.add(self.path)
            hub.ranges.append(self.headers.get("Range"))
        if used_before or not self.path.startswith("/cdn/"):
            self._refuse(403)
        else:
            self._content(tag, self.headers.get("Range"))

    def _content(self, tag: str, byte_range: str | None) -> None:
        size = self.server.file.size
        if byte_range is None and size > self.server.most and self.command != "HEAD":
            self._refuse(400)
            return
        start, stop = 0, size
        if byte_range is not None:
            first, last = byte_range.removeprefix("bytes=").split("-")
            start, stop = int(first), int(last or size - 1) + 1
        headers = {"Content-Range": f"bytes {start}-{stop - 1}/{size}"} if byte_range is not None else {}
        self._head(206 if headers else 200, {**headers, "ETag": tag, "Content-Length": str(stop - start)})
        for at in range(start, stop if self.command != "HEAD" else start, MIB):
            block = self.server.file.read(at, min(stop, at + MIB))
            self.wfile.write(block)
            with self.server.lock:
                self.server.sent += len(block)

    def _refuse(self, status: int) -> None:
        with self.server.lock:
            self.server.refused += 1
        self._head(status, {"Content-Length": "0"})

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


@contextlib.contextmanager
def served(file: Sparse, sha256: str, most: int = MOST) -> Iterator[Hub]:
    """Serve the file."""
    hub = Hub(file, sha256, most)
    threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()


def revision(file: Sparse, sha256: str) -> hub_revision.Revision:
    """Return the model's revision, as a lock has it."""
    return hub_revision.Revision(
        repo=REPO, revision=COMMIT, files=[hub_revision.HubFile(path=NAME, size=file.size, sha256=sha256)]
    )


def begun(file: Sparse, sha256: str, to: Path) -> int:
    """Leave what a process would have left that has fetched the pieces of zeros; return the bytes that lack."""
    blobs = to / "models--owner--large/blobs"
    blobs.mkdir(parents=True)
    part = blobs / f".{sha256}.{sha256[:8]}.part"
    with part.open("wb") as made:
        made.truncate(file.size)
    pieces = spans(file.size, piece_size(file.size))
    there = {number: "0" * 16 for number, span in enumerate(pieces) if not file.marked(span.start, span.stop)}
    header = journal.Header(sha256, file.size, piece_size(file.size), journal.boot_id())
    journal.Journal(partial_file.journal_path(part), header, there).close()
    return sum(span.size for number, span in enumerate(pieces) if number not in there)


@contextlib.contextmanager
def mounted(root: Path, size: int) -> Iterator[Path]:
    """Mount an ext4 of `size` bytes on a sparse image."""
    image, at = root / "image", root / "disk"
    with image.open("wb") as made:
        made.truncate(size)
    at.mkdir()
    options = "lazy_itable_init=1,lazy_journal_init=1,nodiscard"
    subprocess.run(["mkfs.ext4", "-q", "-E", options, "-m", "0", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(at)], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True)


class Ran(NamedTuple):
    """What a fetch took: seconds and its peak memory in bytes; `code` is how it ended."""

    seconds: float
    peak: int
    code: int


def fetch(hub: Hub, sha256: str, root: Path, to: Path, *, until: int | None = None) -> Ran:
    """Fetch the model with envcheck in a process of its own, which is killed when `until` bytes were sent."""
    (root / "p.yaml").write_text(f"hf: {{endpoint: '{hub.url}'}}\n")
    (root / "lock").write_bytes(hub_revision.format_lock(revision(hub.file, sha256)))
    words = ["--lock", str(root / "lock"), "--mirror", str(root / "p.yaml"), "--output", str(to)]
    command = [sys.executable, "-m", "envcheck", "--quiet", "fetch", *words, "--connections", str(CONNECTIONS)]
    began = time.perf_counter()
    process = subprocess.Popen(command, env={**os.environ, "no_proxy": "*"}, stdout=subprocess.DEVNULL)
    while until is not None and hub.sent < until:
        time.sleep(0.001)
    if until is not None:
        process.kill()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Ran(time.perf_counter() - began, usage.ru_maxrss * 1024, process.returncode)


def right(file: Sparse, to: Path) -> bool:
    """Tell whether the snapshot leads to a file of that size, with the bytes that are not zeros."""
    path = to / "models--owner--large/snapshots" / COMMIT / NAME
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    handle = os.open(path, os.O_RDONLY)
    try:
        return all(os.pread(handle, 1000, mark) == file.read(mark, mark + 1000) for mark in file.marks)
    finally:
        os.close(handle)


def theirs(hub: Hub, root: Path) -> str | None:
    """Return what huggingface_hub says of the file, or None where it is not installed."""
    python = os.environ.get("ENVCHECK_TEST_HUB")
    if python is None:
        return None
    script = f"from huggingface_hub import hf_hub_download as d; print(d({REPO!r}, {NAME!r}, revision={COMMIT!r}))"
    own = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_CACHE": str(root / "theirs"), "no_proxy": "*"}
    done = subprocess.run(
        [python, "-c", script], env={**os.environ, **own}, capture_output=True, text=True, check=False
    )
    return (done.stderr or done.stdout).strip().splitlines()[-1]


def measured(root: Path, size: int) -> dict[str, object]:
    """Return what it came to."""
    file = Sparse(size)
    began = time.perf_counter()
    sha256 = file.sha256()
    alone = time.perf_counter() - began
    small = Sparse(100_000_000)
    digest = small.sha256()
    with served(small, digest) as hub:
        before = fetch(hub, digest, root, root / "small")
    with mounted(root, size + 4_000_000_000) as at, served(file, sha256) as hub:
        lacking = begun(file, sha256, at)
        killed = fetch(hub, sha256, root, at, until=lacking // 2)
        done = fetch(hub, sha256, root, at)
        piece = piece_size(size)
        return {
            "bytes": size,
            "right": before.code == done.code == 0 and killed.code < 0 and right(file, at),
            "lacking_mb": round(lacking / 1e6),
            "sent_mb": round(hub.sent / 1e6),
            "pieces_twice": round(max(0, hub.sent - lacking) / piece, 2),
            "ranges_alone": None not in hub.ranges,
            "links": hub.links,
            "links_refused": hub.refused,
            "seconds": round(done.seconds, 1),
            "sha256_seconds": round(alone, 1),
            "vs_sha256": round(done.seconds / alone, 2),
            "peak_mb": round(done.peak / 1e6),
            "memory_growth": round(done.peak / before.peak, 2),
            "huggingface_hub": theirs(hub, root),
        }


def main() -> int:
    """Print what was measured, and tell by the exit code whether the goals are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--size", type=int, default=50_100_000_000)
    parser.add_argument("--dir", type=Path, default=None)
    options = parser.parse_args()
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        raise SystemExit("needs root and mkfs.ext4")  # noqa: EM101, TRY003 (a script's)
    with tempfile.TemporaryDirectory(dir=options.dir) as made:
        figures = measured(Path(made), options.size)
    if options.json:
        print(json.dumps({"schema": "envcheck/benchmark/1", "over_50_gb": figures, "goals": GOALS}, indent=2))
    else:
        print("\n".join(f"{name:<16} {value}" for name, value in figures.items()))
    met = figures["right"] is True and all(float(str(figures[name])) <= goal for name, goal in list(GOALS.items())[1:])
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
