"""Compare the time of `envcheck resolve` with that of a bare `import click`.

    python benchmarks/startup.py [--runs 15] [--with "flash-attn vllm"] [--json]

Runs both as whole processes, in turn, after one run of each that fills the bytecode and matrix caches
(PYTHONDONTWRITEBYTECODE is ignored). Prints the ratio of the medians and of the minima. The goal is a ratio of at most
2, so that a shell prompt or a CI step can ask. Exits 1 above it; no test runs it, because a busy machine changes it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

BARE = [sys.executable, "-c", "import click"]
QUESTION = [sys.executable, "-m", "envcheck", "resolve"]
QUESTION += ["--torch", "2.8.0", "--gpu", "H100", "--driver", "570.124.06"]
GOAL = 2.0


def seconds(command: list[str]) -> float:
    """Return how long `command` takes as a process. Raises CalledProcessError when it fails: that is no measurement."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environ)
    return time.perf_counter() - start


def measure(runs: int, extensions: list[str]) -> dict[str, float]:
    """Return medians, minima (seconds) and their ratios over `runs` pairs; the question asks for `extensions` too."""
    resolve = [*QUESTION, *(part for name in extensions for part in ("--with", name))]
    if extensions:
        resolve[resolve.index("--torch") : resolve.index("--gpu")] = []
    for command in (BARE, resolve):
        seconds(command)
    pairs = [(seconds(BARE), seconds(resolve)) for _ in range(runs)]
    bare, question = ([pair[at] for pair in pairs] for at in (0, 1))
    return {
        "bare_median_s": statistics.median(bare),
        "resolve_median_s": statistics.median(question),
        "ratio_median": statistics.median(question) / statistics.median(bare),
        "bare_min_s": min(bare),
        "resolve_min_s": min(question),
        "ratio_min": min(question) / min(bare),
        "goal": GOAL,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--with", dest="extensions", default="", help="names of extensions, separated by blanks")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="smallest sizes, and no goal: does it still run?")
    options = parser.parse_args()
    result = measure(1 if options.smoke else options.runs, options.extensions.split())
    if options.json:
        print(json.dumps(result, indent=2))
        raise SystemExit(0 if options.smoke or result["ratio_median"] <= GOAL else 1)
    print(f"import click      {result['bare_median_s']:.3f} s (min {result['bare_min_s']:.3f})")
    print(f"envcheck resolve  {result['resolve_median_s']:.3f} s (min {result['resolve_min_s']:.3f})")
    print(f"ratio             {result['ratio_median']:.2f} (min {result['ratio_min']:.2f}; goal <= {GOAL:.0f})")
    raise SystemExit(0 if options.smoke or result["ratio_median"] <= GOAL else 1)


if __name__ == "__main__":
    main()
