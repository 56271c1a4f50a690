"""Fetching one large file: how fast, against aria2c -x16, curl and huggingface_hub, and in how much memory.

    python benchmarks/fetch.py [--json] [--size 1000] [--limited 400] [--rate 5] [--large 10000] [--files 2000]
                               [--repeat 3] [--dir D] [--only-small]

An nginx on the loopback serves a file of random bytes as fast as it can. A second server gives each connection --rate
million bytes a second and no more: the kernel paces it (SO_MAX_PACING_RATE). nginx's limit_rate would not do, as it
lets every request have a second's worth at once, so that many small requests are not limited at all.

Each program is a process of its own, from its start to its end, taken in turn; times are medians. Ours hashes what it
fetches and syncs it to the disk, as it always does; aria2c does so with and without --checksum; curl and
huggingface_hub (where ENVCHECK_TEST_HUB names a Python that has it) do not hash. Memory is the peak of the process
(wait4), for 100 MB and for --large MB of zeros, a sparse file. Sizes are in millions of bytes; the disk of --dir must
have room for --large.

Then --files files of 10 kB, named by a lock with their hashes, against `aria2c -i` with a checksum for each and 16
downloads at once: seconds and CPU seconds, taken in turn.

Goals: at least as fast as aria2c with its checksum, with a limit and without, at least 3 times one stream where each
connection is limited, a peak for the large file below 1.25 times the one for 100 MB, and for small files at most twice
the time that aria2c takes. Our connections are the default number.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple

MB: Final = 1_000_000
COMMIT: Final = "0" * 40
GOALS: Final = {
    "vs_aria2c_checksum": 1.0,
    "vs_aria2c_checksum_limited": 1.0,
    "vs_one_stream_limited": 3.0,
    "memory_growth": 1.25,
    "small_files_time": 2.0,
}
# Goals that are met below, not above.
AT_MOST: Final = {"memory_growth", "small_files_time"}
# asm-generic/socket.h
_SO_MAX_PACING_RATE: Final = 47
CONF: Final = """
worker_processes 2; daemon off; pid {root}/nginx.pid; error_log stderr crit;
events {{ worker_connections 256; }}
http {{ access_log off; sendfile on;
  client_body_temp_path {root}/t1; proxy_temp_path {root}/t2; fastcgi_temp_path {root}/t3; uwsgi_temp_path {root}/t4;
  scgi_temp_path {root}/t5;
  server {{ listen 127.0.0.1:{fast}; root {root}/www;
    location /o/m/resolve/ {{ rewrite ^/o/m/resolve/[0-9a-f]+/(.*)$ /$1 break; add_header X-Repo-Commit {commit}; }} }}
}}
"""
HUB: Final = "import sys; from huggingface_hub import hf_hub_download as d; d('o/m', sys.argv[1], revision=sys.argv[2])"


class Ran(NamedTuple):
    """What a process took: seconds, its peak memory in bytes, and the seconds of CPU time."""

    seconds: float
    peak: int
    cpu: float


def port() -> int:
    """Return a port that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def served(root: Path) -> Iterator[str]:
    """Serve root/www by nginx, and give its URL."""
    fast = port()
    (root / "nginx.conf").write_text(CONF.format(root=root, fast=fast, commit=COMMIT))
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if nginx is None:
        message = "no nginx here; install it"
        raise SystemExit(message)
    root.chmod(0o755)
    process = subprocess.Popen([nginx, "-p", str(root), "-c", str(root / "nginx.conf")])
    try:
        while socket.socket().connect_ex(("127.0.0.1", fast)):
            time.sleep(0.05)
        yield f"http://127.0.0.1:{fast}"
    finally:
        process.terminate()
        process.wait()


class PacedHandler(BaseHTTPRequestHandler):
    """Serves one file, whole or a range of it, at so many bytes a second to each connection."""

    protocol_version = "HTTP/1.1"
    path_of: Path
    rate: int

    def setup(self) -> None:
        """Have the kernel pace the connection, and keep little in its buffer."""
        super().setup()
        self.connection.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, self.rate)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
        """Say nothing."""

    def do_GET(self) -> None:
        """Send what is asked for, from the file to the connection in the kernel."""
        with self.path_of.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
            at, stop = int(first), int(last or size - 1) + 1
            self.send_response(206 if "Range" in self.headers else 200)
            self.send_header("Content-Range", f"bytes {at}-{stop - 1}/{size}")
            self.send_header("Content-Length", str(stop - at))
            self.send_header("Accept-Ranges", "bytes")
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                while at < stop:
                    at += os.sendfile(self.connection.fileno(), file.fileno(), at, stop - at)


@contextlib.contextmanager
def paced(path: Path, rate: int) -> Iterator[str]:
    """Serve a file at `rate` bytes a second to each connection."""
    handler = type("Handler", (PacedHandler,), {"path_of": path, "rate": rate})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def random_file(path: Path, size: int) -> str:
    """Write `size` random bytes and return their sha256."""
    chance, hasher = random.Random(4), hashlib.sha256()  # noqa: S311 (data)
    with path.open("wb") as file:
        for start in range(0, size, MB):
            block = chance.randbytes(min(MB, size - start))
            hasher.update(block)
            file.write(block)
    return hasher.hexdigest()


def sparse_file(path: Path, size: int) -> str:
    """Make a file of `size` zeros that takes no room, and return its sha256."""
    hasher, zeros = hashlib.sha256(), bytes(MB)
    for start in range(0, size, MB):
        hasher.update(zeros[: min(MB, size - start)])
    with path.open("wb") as file:
        file.truncate(size)
    return hasher.hexdigest()


def run(words: list[str], **environment: str) -> Ran:
    """Run a program that must succeed."""
    began = time.perf_counter()
    process = subprocess.Popen(words, env={**os.environ, "no_proxy": "*", **environment}, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        message = f"{words[0]} ended with {process.returncode}"
        raise SystemExit(message)
    return Ran(time.perf_counter() - began, usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime)


def ours(url: str, sha256: str, to: Path) -> Ran:
    """Fetch with envcheck."""
    words = [sys.executable, "-m", "envcheck", "--quiet", "fetch", url, "--sha256", sha256]
    return run([*words, "--output", str(to)])


def programs(url: str, name: str, sha256: str, to: Path) -> dict[str, Callable[[], Ran]]:
    """Return what fetches the file, by name; only what is on this machine."""
    aria2c = ["aria2c", "-q", "-x16", "-s16", "-k1M", "-d", str(to), "-o", name]
    runners: dict[str, Callable[[], Ran]] = {"envcheck": lambda: ours(f"{url}/{name}", sha256, to)}
    if shutil.which("aria2c"):
        runners["aria2c -x16"] = lambda: run([*aria2c, f"{url}/{name}"])
        runners["aria2c -x16 --checksum"] = lambda: run([*aria2c, f"--checksum=sha-256={sha256}", f"{url}/{name}"])
    if shutil.which("curl"):
        runners["curl"] = lambda: run(["curl", "-sfo", str(to / name), f"{url}/{name}"])
    hub = os.environ.get("ENVCHECK_TEST_HUB")
    if hub:
        cache = {"HF_HUB_CACHE": str(to), "HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": ""}
        cache["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
        runners["huggingface_hub"] = lambda: run([hub, "-c", HUB, name, COMMIT], **cache)
    return runners


def in_turn(runners: dict[str, Callable[[], Ran]], to: Path, repeat: int) -> dict[str, float]:
    """Return each program's median seconds over rounds in which all take their turn, into an empty directory."""
    rounds: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(repeat):
        for name, fetch in runners.items():
            shutil.rmtree(to, ignore_errors=True)
            to.mkdir()
            os.sync()
            rounds[name].append(fetch().seconds)
    shutil.rmtree(to)
    return {name: statistics.median(taken) for name, taken in rounds.items()}


def rates(seconds: dict[str, float], size: int) -> dict[str, float]:
    """Return millions of bytes a second."""
    return {name: round(size / MB / taken, 1) for name, taken in seconds.items()}


def small_files(root: Path, url: str, to: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the median seconds and CPU seconds that many small files take, and ours as a multiple of aria2c's."""
    chance = random.Random(5)  # noqa: S311 (data)
    files = {f"small-{number:05}.bin": chance.randbytes(10_000) for number in range(options.files)}
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    for name, content in files.items():
        (root / "www" / name).write_bytes(content)
    rows = [{"path": name, "size": 10_000, "sha256": digest} for name, digest in hashes.items()]
    lock, listed, profile = root / "small.lock", root / "small.txt", root / "small.yaml"
    lock.write_text(
        json.dumps({"schema": "envcheck/model-lock/1", "repo": "o/m", "revision": COMMIT, "files": rows}), "utf-8"
    )
    aria2c = [f"{url}/{name}\n  out={name}\n  checksum=sha-256={digest}\n" for name, digest in hashes.items()]
    listed.write_text("".join(aria2c), "utf-8")
    profile.write_text(f"name: bench\nhf: {{endpoint: {url}}}\n", "utf-8")
    own = [sys.executable, "-m", "envcheck", "--quiet", "fetch", "--lock", str(lock), "--mirror", str(profile)]
    other = ["aria2c", "-q", "-i", str(listed), "-j16", "--file-allocation=none", "-d", str(to)]
    programs_of: dict[str, Callable[[], Ran]] = {
        "envcheck": lambda: run([*own, "--output", str(to)]),
        "aria2c -i": lambda: run(other),
    }
    rounds: dict[str, list[Ran]] = {name: [] for name in programs_of}
    for _ in range(options.repeat):
        for name, fetch in programs_of.items():
            shutil.rmtree(to, ignore_errors=True)
            to.mkdir()
            os.sync()
            rounds[name].append(fetch())
    shutil.rmtree(to)
    seconds = {name: round(statistics.median(ran.seconds for ran in runs), 3) for name, runs in rounds.items()}
    cpu = {name: round(statistics.median(ran.cpu for ran in runs), 3) for name, runs in rounds.items()}
    ratios = {
        "small_files_time": round(seconds["envcheck"] / seconds["aria2c -i"], 2),
        "small_files_cpu": round(cpu["envcheck"] / cpu["aria2c -i"], 2),
    }
    return {"seconds": seconds, "cpu_seconds": cpu, "files": options.files, "ratios": ratios}


def peaks(root: Path, url: str, to: Path, sizes: list[int]) -> list[int]:
    """Return the peak memory of fetching zeros, for each size."""
    peak_sizes = []
    for size in sizes:
        sha256 = sparse_file(root / "www" / "zeros", size)
        to.mkdir()
        peak_sizes.append(ours(f"{url}/zeros", sha256, to).peak)
        shutil.rmtree(to)
    return peak_sizes


def measure(root: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure everything below one directory."""
    (root / "www").mkdir()
    to = root / "to"
    size, limited = options.size * MB, options.limited * MB
    with served(root) as url:
        many = small_files(root, url, to, options) if shutil.which("aria2c") else {"ratios": {}}
        if options.only_small:
            return {**many, "load": os.getloadavg()}
        sha256 = random_file(root / "www" / "free", size)
        free = in_turn(programs(url, "free", sha256, to), to, options.repeat)
        sha256 = random_file(root / "held", limited)
        with paced(root / "held", int(options.rate * MB)) as held_at:
            held = programs(held_at, "held", sha256, to)
            held.pop("huggingface_hub", None)  # one stream too, and this server is no hub
            slow = in_turn(held, to, options.repeat)
        small, large = peaks(root, url, to, [100 * MB, options.large * MB])
    ratios = {
        **{f"vs_{name}": round(free[name] / free["envcheck"], 2) for name in free if name != "envcheck"},
        **{
            f"vs_{name}_limited": round(taken / slow["envcheck"], 2)
            for name, taken in slow.items()
            if name != "envcheck"
        },
        "memory_growth": round(large / small, 3),
        **many["ratios"],
    }
    for shown, key in (("aria2c -x16 --checksum", "aria2c_checksum"), ("curl_limited", "one_stream_limited")):
        ratios = {name.replace(shown, key): value for name, value in ratios.items()}
    return {
        "schema": "envcheck/benchmark/1",
        "name": "fetch",
        "mb_per_second": rates(free, size),
        "mb_per_second_limited": rates(slow, limited),
        "peak_mb": [round(small / MB, 1), round(large / MB, 1)],
        "large_mb": options.large,
        "small_files": many,
        "mb_per_second_of_a_limited_connection": options.rate,
        "load": os.getloadavg(),
        "ratios": ratios,
        "goals": GOALS,
        "met": {name: _met(name, ratios.get(name)) for name in GOALS},
    }


def _met(name: str, ratio: float | None) -> bool:
    """Tell whether a goal is met; what could not be measured is not."""
    if ratio is None:
        return False
    return ratio <= GOALS[name] if name in AT_MOST else ratio >= GOALS[name]


def main() -> None:
    """Measure and print; exit 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description="Fetching one large file, against aria2c, curl and huggingface_hub.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="smallest sizes, and no goal: does it still run?")
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--limited", type=int, default=400)
    parser.add_argument("--rate", type=float, default=5.0)
    parser.add_argument("--large", type=int, default=10_000)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--only-small", action="store_true")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--dir", type=Path)
    options = parser.parse_args()
    if options.smoke:
        options.size, options.limited, options.rate, options.large, options.files, options.repeat = 8, 4, 4.0, 16, 20, 1
    with tempfile.TemporaryDirectory(dir=options.dir) as root:
        figures = measure(Path(root), options)
    if options.only_small:
        print(json.dumps(figures))
        raise SystemExit(figures["ratios"].get("small_files_time", math.inf) > GOALS["small_files_time"])
    if options.json:
        print(json.dumps(figures))
    else:
        held = f", {options.rate:g} MB/s a connection"
        for title, rates in (("", figures["mb_per_second"]), (held, figures["mb_per_second_limited"])):
            print("\n".join(f"{name:<24} {rate:>8} MB/s{title}" for name, rate in rates.items()))
        print(f"peak memory: {figures['peak_mb'][0]} MB for 100 MB, {figures['peak_mb'][1]} MB for {options.large} MB")
        print("\n".join(f"{name}: {value} (goal {GOALS.get(name, '-')})" for name, value in figures["ratios"].items()))
    raise SystemExit(0 if options.smoke or all(figures["met"].values()) else 1)


if __name__ == "__main__":
    main()
