"""What the quick level costs beyond what cannot be saved: one `import torch` and the checks' own work.

    python benchmarks/suite.py --python /opt/venv [--repeat 3] [--level quick] [--json]     exit 1: goal missed

`whole` is the wall clock of `envcheck run` as a user starts it, from the command to its exit. `import` is the wall
clock of `python -c "import torch"` in the same environment; `bodies` is the sum over the checks of what their slowest
rank spent in `measure`. The ratio whole / (import + bodies) holds everything else: envcheck's own start, the reading of
the node, the forks, the report. Each figure is the median of the repeats. The goal is <= 1.25.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

GOAL: Final = 1.25
ROOT: Final = Path(__file__).resolve().parents[1]
DEFAULT: Final = str(ROOT / ".envcheck/test-venv")


def timed(argv: Sequence[str]) -> float:
    """Return the seconds a command takes; one that could not do its work (exit 2 or 3) ends the benchmark."""
    begun = time.monotonic()
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begun
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(argv)} exited with {done.returncode}: {done.stderr or done.stdout}")
    return seconds


def once(python: str, level: str) -> dict[str, float]:
    """Return one measurement of each part, in seconds."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.json")
        run = [sys.executable, "-m", "envcheck", "run", "--python", python, "--level", level, "--output", str(report)]
        whole = timed(run)
        facts = json.loads(report.read_bytes())
    return {
        "whole": whole,
        "import": timed([facts["environment"]["executable"], "-c", "import torch"]),
        "bodies": sum(attempt["body"] for outcome in facts["outcomes"] for attempt in outcome["attempts"]),
    }


def ratio(parts: dict[str, float]) -> float:
    """Return the whole against what it cannot do without."""
    return parts["whole"] / (parts["import"] + parts["bodies"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=DEFAULT, help="an environment with torch [default: that of `make test`]")
    parser.add_argument("--level", default="quick")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    once(given.python, given.level)  # the first reads everything from disk
    runs = [once(given.python, given.level) for _ in range(given.repeat)]
    parts = {name: round(statistics.median(run[name] for run in runs), 3) for name in runs[0]}
    found = round(statistics.median(map(ratio, runs)), 3)
    if given.json:
        print(json.dumps({"benchmark": "suite", "level": given.level, **parts, "ratio": found, "goal": GOAL}))
        raise SystemExit(0 if found <= GOAL else 1)
    print(f"whole {parts['whole']:.2f} s = {found:.2f} x (import torch {parts['import']:.2f} s", end=" ")
    print(f"+ check bodies {parts['bodies']:.2f} s); goal <= {GOAL}")
    raise SystemExit(0 if found <= GOAL else 1)


if __name__ == "__main__":
    main()
