"""Compare the time to read installed extensions, and to resolve with them, with known work on the same machine.

    python benchmarks/extensions.py [--python ENVIRONMENT/bin/python] [--runs 3] [--json]

1. With --python: the check `extensions` reads every library of the environment's extensions and torch's symbols. Peer:
   sha256 of the same files in Python. Prints CPU seconds per GB of both, and their ratio. Goal: 3 s per GB.
2. `envcheck resolve --with flash-attn --with vllm`, facts cached. Peer: `import click`. Prints the ratio of the CPU
   seconds of whole processes, which a busy machine changes less than the time on the clock. Goal: 3.

The pairs run in turn, after one run that fills the caches. Exits 1 above a goal; no test runs it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECONDS_PER_GB, RATIO = 3.0, 3.0
# With fewer, what is measured is the reading of torch's own symbols.
_LEAST_BYTES = 50_000_000
CLICK = ["-c", "import click"]
RESOLVE = ["-m", "envcheck", "resolve", "--gpu", "H100", "--driver", "570.124.06", "--no-here"]
RESOLVE += ["--with", "flash-attn", "--with", "vllm"]
READ = """
import json, sys
sys.path.insert(0, sys.argv[1])
from envcheck.checks import Rank
from envcheck.checks.env import extensions
measured = extensions.measure(Rank(0, 1, 0, "cpu", "gloo", ""))
print(json.dumps(measured["bytes"]))
"""
HASH = """
import hashlib, pathlib, sys
sys.path.insert(0, sys.argv[1])
from envcheck.checks.extensions import installed
for extension in installed.extensions(installed.distributions()):
    for library in extension.libraries:
        digest = hashlib.sha256()
        with pathlib.Path(extension.root, library.path).open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
"""


def cpu_seconds(command: Sequence[str]) -> tuple[float, str]:
    """Return the CPU seconds of a process and its children, and what it printed. Raises CalledProcessError."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=ROOT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def medians(first: Sequence[str], second: Sequence[str], runs: int) -> tuple[float, float, str]:
    """Return the median CPU seconds of two commands that run in turn, and what the first printed."""
    _, printed = cpu_seconds(first)
    cpu_seconds(second)
    pairs = [(cpu_seconds(first)[0], cpu_seconds(second)[0]) for _ in range(runs)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs), printed


def read_libraries(python: str, runs: int) -> dict[str, float]:
    """Return the CPU seconds per GB of the check and of sha256. Raises ValueError for too few bytes of libraries."""
    read, hashed, size = medians([python, "-c", READ, str(ROOT)], [python, "-c", HASH, str(ROOT)], runs)
    if int(size) < _LEAST_BYTES:
        message = f"{python} has {int(size)} bytes of libraries: too few to divide by"
        raise ValueError(message)
    gigabytes = int(size) / 1e9
    costs = {"check_s_per_gb": read / gigabytes, "sha256_s_per_gb": hashed / gigabytes}
    return {"bytes": int(size), **costs, "check_by_sha256": read / hashed}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="the Python of an environment with extensions")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="smallest sizes, and no goal: does it still run?")
    options = parser.parse_args()
    resolve, bare, _ = medians(
        [sys.executable, *RESOLVE], [sys.executable, *CLICK], 1 if options.smoke else max(options.runs, 9)
    )
    result = {"resolve_s": resolve, "import_click_s": bare, "resolve_by_click": resolve / bare}
    if options.python:
        result |= read_libraries(options.python, options.runs)
    good = result.get("check_s_per_gb", 0.0) <= SECONDS_PER_GB and result["resolve_by_click"] <= RATIO
    if options.json:
        print(json.dumps(result, indent=2))
        raise SystemExit(0 if good or options.smoke else 1)
    print(f"resolve --with / click   {result['resolve_by_click']:.2f} (goal <= {RATIO:.0f})")
    if options.python:
        print(f"libraries                {result['bytes'] / 1e9:.2f} GB")
        print(f"check extensions         {result['check_s_per_gb']:.2f} s of CPU per GB (goal <= {SECONDS_PER_GB:.0f})")
        print(f"sha256 of the same       {result['sha256_s_per_gb']:.2f} s; ratio {result['check_by_sha256']:.2f}")
    raise SystemExit(0 if good or options.smoke else 1)


if __name__ == "__main__":
    main()
