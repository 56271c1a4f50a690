"""The access log of a mirror site as Prometheus metrics. Standard library only: a site runs its own copy of this file.

What counts as the mirror's failure was measured with nginx 1.22: a client that goes away leaves no completion; an
upstream that breaks off leaves a completed request with fewer bytes than were promised.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, TypeGuard

PARTS: Final = ("files", "hf", "other", "pypi-index", "pytorch-index", "registry", "static")
OUTCOMES: Final = ("ok", "error", "truncated", "client_abort", "client_error", "refused")
# Only the bytes of these outcomes count as downloads.
DOWNLOADS: Final = frozenset({"files", "hf", "registry", "static"})
CACHES: Final = frozenset({"HIT", "MISS", "EXPIRED", "STALE", "UPDATING", "REVALIDATED", "BYPASS", "SCARCE"})
LARGE: Final = 100_000_000  # bytes; below it latency is most of the time
_LONGEST: Final = 1 << 16  # bytes of a line; nginx itself takes no longer request line
_AGES: Final = 1e9  # seconds; also what is no number fails to be less
_CLIENT_GONE: Final = 499
_REFUSED: Final = frozenset({401, 403, 429})


@dataclasses.dataclass(frozen=True)
class Request:
    """One answered request: bytes and seconds of its body, and its outcome."""

    part: str
    outcome: str
    cache: str
    sent: int
    seconds: float
    download: bool


def parse(line: str) -> Request | None:
    """Return the request in a line of the log, or None if nginx did not write the line."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or entry.get("part") not in PARTS:
        return None
    status, sent, seconds = entry.get("status"), entry.get("bytes"), entry.get("seconds")
    if not _count(status) or not _count(sent) or not _duration(seconds):
        return None
    method, part, cache = entry.get("method"), str(entry["part"]), entry.get("cache")
    promised = sent if method != "GET" else _promised(entry.get("promised"), sent)
    return Request(
        part=part,
        outcome=_outcome(status, complete=entry.get("complete") == "OK", short=sent < promised),
        cache=cache.lower() if isinstance(cache, str) and cache in CACHES else "none",
        sent=sent,
        seconds=float(seconds),
        download=part in DOWNLOADS and method == "GET",
    )


def _count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _duration(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _AGES


def _promised(value: Any, sent: int) -> int:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20 else sent  # noqa: PLR2004 (digits of 2**63)


def _outcome(status: int, *, complete: bool, short: bool) -> str:
    if status == _CLIENT_GONE or (status < 400 and not complete):  # noqa: PLR2004 (HTTP's)
        return "client_abort"
    if status >= 500:  # noqa: PLR2004 (HTTP's)
        return "error"
    if status in _REFUSED:
        return "refused"
    if status >= 400:  # noqa: PLR2004 (HTTP's)
        return "client_error"
    return "truncated" if short and status != 304 else "ok"  # noqa: PLR2004 (HTTP's, without a body)


class Totals:
    """The counters since the beginning of the log."""

    def __init__(self) -> None:
        self.requests = collections.Counter[tuple[str, str]]({(p, o): 0 for p in PARTS for o in OUTCOMES})
        self.downloads = collections.Counter[str](dict.fromkeys(OUTCOMES, 0))
        self.cached = collections.Counter[tuple[str, str]]()
        self.sent = collections.Counter[tuple[str, str]]()
        self.moved = collections.Counter[str]({"large": 0, "small": 0})
        self.took: dict[str, float] = {"large": 0.0, "small": 0.0}
        self.lines = 0
        self.unreadable = 0

    def add(self, lines: Iterable[str]) -> None:
        """Count lines of the log."""
        for line in lines:
            self.lines += 1
            request = parse(line)
            if request is None:
                self.unreadable += 1
            else:
                self._add(request)

    def _add(self, request: Request) -> None:
        self.requests[request.part, request.outcome] += 1
        self.cached[request.part, request.cache] += 1
        self.sent[request.part, request.cache] += request.sent
        if not request.download:
            return
        self.downloads[request.outcome] += 1
        if request.outcome == "ok":
            size = "large" if request.sent >= LARGE else "small"
            self.moved[size] += request.sent
            self.took[size] += request.seconds


class Follower:
    """Read a growing log, also across a rename (logrotate), a truncation, or a time without a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._rest = b""

    def lines(self) -> Iterator[str]:
        """Yield the lines that were completed since the last call."""
        yield from self._drain()
        if not self._same():
            yield from self._drain()  # what was written between the two
            self.close()
            yield from self._drain()

    def close(self) -> None:
        """Close the file; the next call opens the file that then has its name."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._rest = None, b""

    def _same(self) -> bool:
        if self._file is None:
            return True
        try:
            now = os.stat(self._path)  # noqa: PTH116 (beside fstat)
        except FileNotFoundError:
            return True
        opened = os.fstat(self._file)
        if opened.st_size < os.lseek(self._file, 0, os.SEEK_CUR):
            os.lseek(self._file, 0, os.SEEK_SET)
            self._rest = b""
        return (now.st_dev, now.st_ino) == (opened.st_dev, opened.st_ino) and opened.st_size == os.lseek(
            self._file, 0, os.SEEK_CUR
        )

    def _drain(self) -> Iterator[str]:
        if self._file is None:
            try:
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return
        while chunk := os.read(self._file, 1 << 20):
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            yield from (line.decode("utf-8", "replace") for line in lines)
            if len(self._rest) > _LONGEST:
                yield ""  # counted as unreadable; its tail will be one more
                self._rest = b""


def gauges(root: Path) -> dict[str, tuple[str, dict[str, float]]]:
    """Return the current gauges: name -> (help, labels -> value), without those that cannot be read."""
    values: dict[str, tuple[str, dict[str, float]]] = {}
    try:
        disk = os.statvfs(root / "cache")
    except OSError:
        pass
    else:
        values["storage_size_bytes"] = ("Size of the caches' filesystem.", {"": float(disk.f_blocks * disk.f_frsize)})
        free = float(disk.f_bavail * disk.f_frsize)
        values["storage_available_bytes"] = ("Room on the caches' filesystem.", {"": free})
    synced = {f'name="{_escaped(path.name)}"': path.stat().st_mtime for path in sorted((root / "state/sync").glob("*"))}
    if synced:
        values["sync_success_timestamp_seconds"] = ("When a tree was last copied whole.", synced)
    audit = _audit(root / "state/audit.json")
    if audit:
        values["audit_timestamp_seconds"] = ("Time of the last audit.", {"": audit["time"]})
        values["audit_files"] = ("Files that the last audit judged.", {"": audit["files"]})
        values["audit_poisoned_files"] = ("Files that were wrong at the last audit.", {"": audit["poisoned"]})
    return values


def _audit(path: Path) -> dict[str, float]:
    try:
        record = json.loads(path.read_bytes())
        return {key: float(record[key]) for key in ("time", "files", "poisoned")}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def text(totals: Totals, now: Mapping[str, tuple[str, Mapping[str, float]]]) -> str:
    """Return all metrics in Prometheus' text format."""
    by_part = {f'part="{p}",outcome="{o}"': n for (p, o), n in totals.requests.items()}
    counters: dict[str, tuple[str, Mapping[str, float]]] = {
        "requests_total": ("Requests by what became of them; a client that went away is no failure.", by_part),
        "downloads_total": (
            "GETs of files by what became of them.",
            {f'outcome="{o}"': n for o, n in totals.downloads.items()},
        ),
        "responses_total": ("Answers by what the cache had.", _labelled(totals.cached)),
        "sent_bytes_total": ("Bytes of bodies sent.", _labelled(totals.sent)),
        "download_bytes_total": (
            "Bytes of whole downloads; large is 100 MB and more.",
            {f'size="{s}"': n for s, n in totals.moved.items()},
        ),
        "download_seconds_total": (
            "Seconds that whole downloads took.",
            {f'size="{s}"': n for s, n in totals.took.items()},
        ),
        "log_lines_total": ("Lines of the access log.", {"": totals.lines}),
        "log_lines_unreadable_total": ("Of these, lines that nginx did not write so.", {"": totals.unreadable}),
    }
    families = [_family(name, "counter", help_text, values) for name, (help_text, values) in counters.items()]
    return "".join(families + [_family(name, "gauge", help_text, values) for name, (help_text, values) in now.items()])


def _labelled(counts: Mapping[tuple[str, str], int]) -> dict[str, float]:
    return {f'part="{part}",cache="{cache}"': count for (part, cache), count in sorted(counts.items())}


def _family(name: str, kind: str, help_text: str, values: Mapping[str, float]) -> str:
    full = f"envcheck_mirror_{name}"
    lines = [f"# HELP {full} {help_text}", f"# TYPE {full} {kind}"]
    lines += [f"{full}{{{labels}}} {value!r}" if labels else f"{full} {value!r}" for labels, value in values.items()]
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class Exporter:
    """A site's log and state, read again at each scrape."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._totals = Totals()
        self._follower = Follower(root / "logs/access.json")
        self._lock = threading.Lock()

    def text(self) -> str:
        """Return the current metrics."""
        with self._lock:
            self._totals.add(self._follower.lines())
            return text(self._totals, gauges(self._root))


def server(root: Path, address: str, port: int) -> ThreadingHTTPServer:
    """Return a server of /metrics that is not started yet."""
    exporter = Exporter(root)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404)
                return
            body = exporter.text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Log nothing: there is a scrape every minute."""

    return ThreadingHTTPServer((address, port), Handler)


def main() -> None:
    """Serve the metrics of a site until stopped."""
    parser = argparse.ArgumentParser(description="Serve a mirror site's metrics at /metrics.")
    parser.add_argument("root", type=Path, help="the site's directory")
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    with server(options.root, options.address, options.port) as running:
        running.serve_forever()


if __name__ == "__main__":
    main()
