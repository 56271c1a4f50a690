"""Measure what `envcheck watch` costs the command that it watches.

    python benchmarks/watch.py [--pairs 8] [--seconds 5] [--interval 1] [--gpus 0] [--json]

Runs a fixed piece of work (one core, timed by itself, so that no start-up counts) alone and watched, turn about, and
prints the ratio of the medians. On a machine that others use, the ratio has their noise too; so the CPU time that the
watcher itself took (all its processes, less the command's) is given as a share of one core. Goal: at most 1 % of a core
and of the machine's cores. `--gpus N` watches N simulated GPUs (tests/simulated), whose NVML costs no driver call.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SIMULATE = Path(__file__).resolve().parents[1] / "tests/simulated/simulate.py"
GOAL = 0.01
WORK = """
import sys, time, resource
began = time.perf_counter()
total = 0
for number in range(int(sys.argv[1])):
    total += number * number
used = resource.getrusage(resource.RUSAGE_SELF)
open(sys.argv[2], "w").write(f"{time.perf_counter() - began} {used.ru_utime + used.ru_stime}")
"""
PER_SECOND = 12_000_000


def run(prefix: list[str], rounds: int, gpus: int) -> tuple[float, float, float]:
    """Return the work's own seconds, the CPU seconds beside it, and the wall time of all."""
    with tempfile.NamedTemporaryFile(mode="r") as file:
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [*prefix, sys.executable, "-c", WORK, str(rounds), file.name]
        environment = {**os.environ, **({"SIMULATED_GPUS": str(gpus)} if gpus else {})}
        subprocess.run(command, check=True, capture_output=True, env=environment)
        wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        own, cpu = map(float, file.read().split())
    return own, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime - cpu, wall


def measure(pairs: int, seconds: float, interval: float, gpus: int) -> dict[str, Any]:
    """Return the ratio of the medians and the watcher's share of a core; its start-up is measured apart, on no work."""
    start = [sys.executable, str(SIMULATE)] if gpus else [sys.executable, "-m", "envcheck"]
    watch = [*start, "--quiet", "watch", "--interval", f"{interval:g}s", "--"]
    rounds = int(seconds * PER_SECOND)
    start_up = min(run(watch, 1, gpus)[1] for _ in range(3))
    both = [(run([], rounds, 0), run(watch, rounds, gpus)) for _ in range(pairs)]
    alone, watched = (statistics.median(pair[at][0] for pair in both) for at in (0, 1))
    share = statistics.median((with_[1] - start_up) / with_[0] for _, with_ in both)
    return {
        "pairs": pairs,
        "gpus": gpus,
        "alone_s": alone,
        "watched_s": watched,
        "ratio": watched / alone,
        "start_up_cpu_s": start_up,
        "share_of_a_core": share,
        "share_of_the_machine": share / (os.cpu_count() or 1),
        "goal": GOAL,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--interval", type=float, default=1)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="smallest sizes, and no goal: does it still run?")
    options = parser.parse_args()
    if options.smoke:
        options.pairs, options.seconds, options.interval = 1, 0.3, 0.1
    measured = measure(options.pairs, options.seconds, options.interval, options.gpus)
    met = measured["share_of_a_core"] <= GOAL
    if options.json:
        print(json.dumps(measured, indent=2))
    else:
        for name, value in measured.items():
            print(f"{name:<22} {value:.4f}" if isinstance(value, float) else f"{name:<22} {value}")
    raise SystemExit(0 if met or options.smoke else 1)


if __name__ == "__main__":
    main()
