"""What a process of `envcheck pull` loads, and what each part of it takes: CPU milliseconds.

    python benchmarks/pull_imports.py [--runs 9] [--json]

Starts Python with the first part, with the first two, and so on, in turn, and prints by how much the smallest CPU time
of each grew. "work" is `pull --dry-run` itself: requests, a signature, and the report judged again; it is in
benchmarks/registry.py. There is no goal: it explains the figures there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Final

PARTS: Final = {
    "python": "pass",
    "click": "import click",
    "command line": "import envcheck.cli",
    "urllib3, http, tls": "import urllib3",
    "msgspec": "import msgspec",
    "cryptography": "import cryptography.hazmat.primitives.serialization",
    "registry client": "from envcheck.registry.oci import attachments, opening, referrers",
    "reports, judging": "import envcheck.reports.rejudge",
    "matrix, resolver": "import envcheck.matrix.file.load, envcheck.matrix.resolver.resolve",
    "proofs, pull": "import envcheck.cli.registry.pull, envcheck.registry.choosing",
    "all checks": "from envcheck.runner.planning.discover import discover; discover()",
}
# As envcheck's own command line begins and ends.
_BEGIN: Final = "import gc; gc.set_threshold(100_000, 20, 100)"
_END: Final = "import os; os._exit(0)"


def milliseconds(program: str) -> float:
    """Return the CPU time of a Python process."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", f"{_BEGIN}\n{program}\n{_END}"], environ)
    _, status, usage = os.wait4(pid, 0)
    if status:
        message = f"a process ended with {os.waitstatus_to_exitcode(status)}"
        raise SystemExit(message)
    return 1000 * (usage.ru_utime + usage.ru_stime)


def measure(runs: int) -> dict[str, float]:
    """Return by how much each part, after those before it, adds to the CPU time; never less than 0."""
    programs = ["\n".join([*PARTS.values()][: count + 1]) for count in range(len(PARTS))]
    for program in programs:
        milliseconds(program)  # has the bytecode written
    smallest = [float("inf")] * len(programs)
    for _ in range(runs):
        smallest = [min(best, milliseconds(program)) for best, program in zip(smallest, programs, strict=True)]
    before = [0.0, *smallest[:-1]]
    grown = {name: max(0.0, now - then) for name, now, then in zip(PARTS, smallest, before, strict=True)}
    return {name: round(added, 1) for name, added in grown.items()} | {"all": round(smallest[-1], 1)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    parts = measure(options.runs)
    if options.json:
        shown = {"schema": "envcheck/benchmark/1", "name": "pull_imports", "load": os.getloadavg()}
        print(json.dumps({**shown, "cpu_ms": parts}))
        return
    for name, added in parts.items():
        print(f"{name:20} {added:6.1f} ms")


if __name__ == "__main__":
    main()
