"""Fetching one large file: how fast, against aria2c -x16, curl and huggingface_hub, and in how much memory.

    python benchmarks/fetch.py [--json] [--size 1000] [--limited 200] [--large 10000] [--repeat 3] [--dir DIR]

An nginx on the loopback serves files of random bytes, once as fast as it can and once with `limit_rate 10m` for each
connection. Each program is a process of its own, from its start to its end, taken in turn; times are medians. Ours
hashes what it fetches and syncs it to the disk, as it always does; aria2c does so with and without --checksum; curl and
huggingface_hub (where ENVCHECK_TEST_HUB names a Python that has it) do not hash. Memory is the peak of the process
(wait4), for 100 MB and for --large MB of zeros, a sparse file. Sizes are in millions of bytes; the disk of --dir must
have room for --large. Goals: at least as fast as aria2c with its checksum, at least 3 times one stream where each
connection is limited, and a peak for the large file below 1.25 times the one for 100 MB.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

MB: Final = 1_000_000
COMMIT: Final = "0" * 40
GOALS: Final = {"vs_aria2c_checksum": 1.0, "vs_one_stream_limited": 3.0, "memory_growth": 1.25}
CONF: Final = """
worker_processes 2; daemon off; pid {root}/nginx.pid; error_log stderr crit;
events {{ worker_connections 256; }}
http {{ access_log off; sendfile on;
  client_body_temp_path {root}/t1; proxy_temp_path {root}/t2; fastcgi_temp_path {root}/t3; uwsgi_temp_path {root}/t4;
  scgi_temp_path {root}/t5;
  server {{ listen 127.0.0.1:{fast}; root {root}/www;
    location /o/m/resolve/ {{ rewrite ^/o/m/resolve/[0-9a-f]+/(.*)$ /$1 break; add_header X-Repo-Commit {commit}; }} }}
  server {{ listen 127.0.0.1:{slow}; root {root}/www; limit_rate 10m; }} }}
"""
HUB: Final = "import sys; from huggingface_hub import hf_hub_download as d; d('o/m', sys.argv[1], revision=sys.argv[2])"


class Site(NamedTuple):
    """Where nginx serves: as fast as it can, and limited."""

    root: Path
    fast: str
    slow: str


class Ran(NamedTuple):
    """What a process took: seconds, and its peak memory in bytes."""

    seconds: float
    peak: int


def port() -> int:
    """Return a port that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def served(root: Path) -> Iterator[Site]:
    """Serve root/www by nginx."""
    fast, slow = port(), port()
    (root / "nginx.conf").write_text(CONF.format(root=root, fast=fast, slow=slow, commit=COMMIT))
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if nginx is None:
        message = "no nginx here; install it"
        raise SystemExit(message)
    root.chmod(0o755)
    process = subprocess.Popen([nginx, "-p", str(root), "-c", str(root / "nginx.conf")])
    try:
        while socket.socket().connect_ex(("127.0.0.1", fast)):
            time.sleep(0.05)
        yield Site(root, f"http://127.0.0.1:{fast}", f"http://127.0.0.1:{slow}")
    finally:
        process.terminate()
        process.wait()


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
    return Ran(time.perf_counter() - began, usage.ru_maxrss * 1024)


def ours(url: str, sha256: str, to: Path) -> Ran:
    """Fetch with envcheck."""
    words = [sys.executable, "-m", "envcheck", "--quiet", "fetch", url, "--sha256", sha256]
    return run([*words, "--connections", "16", "--to", str(to)])


def programs(url: str, name: str, sha256: str, to: Path) -> dict[str, Callable[[], Ran]]:
    """Return what fetches the file, by name; only what is on this machine."""
    aria2c = ["aria2c", "-q", "-x16", "-s16", "-k1M", "-d", str(to), "-o", name]
    found: dict[str, Callable[[], Ran]] = {"envcheck": lambda: ours(f"{url}/{name}", sha256, to)}
    if shutil.which("aria2c"):
        found["aria2c -x16"] = lambda: run([*aria2c, f"{url}/{name}"])
        found["aria2c -x16 --checksum"] = lambda: run([*aria2c, f"--checksum=sha-256={sha256}", f"{url}/{name}"])
    if shutil.which("curl"):
        found["curl"] = lambda: run(["curl", "-sfo", str(to / name), f"{url}/{name}"])
    hub = os.environ.get("ENVCHECK_TEST_HUB")
    if hub:
        cache = {"HF_HUB_CACHE": str(to), "HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": ""}
        cache["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
        found["huggingface_hub"] = lambda: run([hub, "-c", HUB, name, COMMIT], **cache)
    return found


def in_turn(found: dict[str, Callable[[], Ran]], to: Path, repeat: int) -> dict[str, float]:
    """Return each program's median seconds over rounds in which all take their turn, into an empty directory."""
    rounds: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(repeat):
        for name, fetch in found.items():
            shutil.rmtree(to, ignore_errors=True)
            to.mkdir()
            os.sync()
            rounds[name].append(fetch().seconds)
    shutil.rmtree(to)
    return {name: statistics.median(taken) for name, taken in rounds.items()}


def rates(seconds: dict[str, float], size: int) -> dict[str, float]:
    """Return millions of bytes a second."""
    return {name: round(size / MB / taken, 1) for name, taken in seconds.items()}


def peaks(site: Site, to: Path, sizes: list[int]) -> list[int]:
    """Return the peak memory of fetching zeros, for each size."""
    found = []
    for size in sizes:
        sha256 = sparse_file(site.root / "www" / "zeros", size)
        to.mkdir()
        found.append(ours(f"{site.fast}/zeros", sha256, to).peak)
        shutil.rmtree(to)
    return found


def measure(root: Path, wanted: argparse.Namespace) -> dict[str, Any]:
    """Measure everything below one directory."""
    (root / "www").mkdir()
    to = root / "to"
    size, limited = wanted.size * MB, wanted.limited * MB
    with served(root) as site:
        sha256 = random_file(root / "www" / "free", size)
        free = in_turn(programs(site.fast, "free", sha256, to), to, wanted.repeat)
        sha256 = random_file(root / "www" / "held", limited)
        held = programs(site.slow, "held", sha256, to)
        held.pop("huggingface_hub", None)  # one stream too, and the limited server is no hub
        slow = in_turn(held, to, wanted.repeat)
        small, large = peaks(site, to, [100 * MB, wanted.large * MB])
    ratios = {
        **{f"vs_{name}": round(taken / free["envcheck"], 2) for name, taken in free.items() if name != "envcheck"},
        **({"vs_one_stream_limited": round(slow["curl"] / slow["envcheck"], 2)} if "curl" in slow else {}),
        "memory_growth": round(large / small, 3),
    }
    ratios = {name.replace("aria2c -x16 --checksum", "aria2c_checksum"): value for name, value in ratios.items()}
    return {
        "schema": "envcheck/benchmark/1",
        "name": "fetch",
        "mb_per_second": rates(free, size),
        "mb_per_second_limited": rates(slow, limited),
        "peak_mb": [round(small / MB, 1), round(large / MB, 1)],
        "large_mb": wanted.large,
        "ratios": ratios,
        "goals": GOALS,
        "met": {name: _met(name, ratios.get(name)) for name in GOALS},
    }


def _met(name: str, ratio: float | None) -> bool:
    """Tell whether a goal is met; what could not be measured is not."""
    if ratio is None:
        return False
    return ratio <= GOALS[name] if name == "memory_growth" else ratio >= GOALS[name]


def main() -> None:
    """Measure and print; exit 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description="Fetching one large file, against aria2c, curl and huggingface_hub.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--limited", type=int, default=200)
    parser.add_argument("--large", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--dir", type=Path)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=wanted.dir) as root:
        found = measure(Path(root), wanted)
    if wanted.json:
        print(json.dumps(found))
    else:
        for title, told in (("", found["mb_per_second"]), (", 10 MiB/s a connection", found["mb_per_second_limited"])):
            print("\n".join(f"{name:<24} {rate:>8} MB/s{title}" for name, rate in told.items()))
        print(f"peak memory: {found['peak_mb'][0]} MB for 100 MB, {found['peak_mb'][1]} MB for {wanted.large} MB")
        print("\n".join(f"{name}: {value} (goal {GOALS.get(name, '-')})" for name, value in found["ratios"].items()))
    raise SystemExit(0 if all(found["met"].values()) else 1)


if __name__ == "__main__":
    main()
