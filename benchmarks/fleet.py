"""Measure how fast `fleet report` reads a fleet, how much memory it takes, and how that grows.

    python benchmarks/fleet.py [--sizes 1000,2000,4000,10000] [--kilobytes 150] [--folder DIR] [--json]

Makes so many reports of that size from a recorded one (tests/data/reports/h200x1.json), in a directory of its
own, and runs `envcheck fleet report` on them. In the same run two peers read the same files: Python's json.load, one
file after the other, and `cat`. Goals: 10,000 reports within 30 s and 200 MB, and time per report no more than 1.5
times that of the smallest fleet. Exit 1 where one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.fleet.node_reports import node_report

SECONDS: Final = 30.0
MEGABYTES: Final = 200.0
GROWTH: Final = 1.5
FULL: Final = 10_000
_LOAD: Final = "import json, sys, pathlib\nfor p in pathlib.Path(sys.argv[1]).iterdir():\n  json.loads(p.read_bytes())"


class Cost(NamedTuple):
    """What a process took: seconds of wall and CPU, and the most resident memory of one of its processes in MB."""

    wall: float
    cpu: float
    megabytes: float


def write_reports(folder: Path, first: int, last: int, kilobytes: int) -> None:
    """Write reports of nodes first to last, padded to the size with log lines, as a long run's are."""
    noise = random.Random(first)  # noqa: S311 (a benchmark's noise)
    document = node_report("NODE")
    extra = kilobytes * 1000 - len(json.dumps(document))
    line = "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"
    document["log"] = [line] * max(0, extra // len(json.dumps([line])))
    text, gpu = json.dumps(document), document["snapshot"]["gpus"][0]["uuid"][:12]
    for number in range(first, last + 1):
        kept = text.replace('"NODE"', f'"n{number}"').replace(gpu, f"GPU-{number:08x}")
        (folder / f"n{number}.json").write_text(f"{kept}{' ' * noise.randrange(9)}\n")


def measure(command: list[str]) -> Cost:
    """Run a command and return what it took."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    return Cost(time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000)


def compare(folder: Path, size: int) -> dict[str, Any]:
    """Return what one fleet takes, beside its peers."""
    report = [sys.executable, "-m", "envcheck", "fleet", "report", str(folder), "--json"]
    load = measure([sys.executable, "-c", _LOAD, str(folder)])
    cost = measure(report)
    cat = measure(["sh", "-c", f"exec find '{folder}' -type f -exec cat {{}} +"])
    return {
        "reports": size,
        "seconds": cost.wall,
        "cpu_seconds": cost.cpu,
        "megabytes": cost.megabytes,
        "json_load_seconds": load.wall,
        "json_load_cpu_seconds": load.cpu,
        "cat_seconds": cat.wall,
        "ratio_to_json_load": cost.cpu / load.cpu,
    }


def missed(rows: list[dict[str, Any]]) -> list[str]:
    """Return the goals that are missed."""
    small, large = rows[0], rows[-1]
    growth = (large["cpu_seconds"] / large["reports"]) / (small["cpu_seconds"] / small["reports"])
    checks = {
        f"{large['reports']:,} reports in {large['seconds']:.1f} s": large["seconds"] <= SECONDS,
        f"{large['megabytes']:.0f} MB": large["megabytes"] <= MEGABYTES,
        f"time for each report grows {growth:.2f} times": growth <= GROWTH,
    }
    return [goal for goal, met in checks.items() if not met]


def main() -> None:
    """Measure and print; exit 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,2000,4000,10000")
    parser.add_argument("--kilobytes", type=int, default=150)
    parser.add_argument("--folder", help="where the reports are written and removed")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="smallest sizes, and no goal: does it still run?")
    options = parser.parse_args()
    if options.smoke:
        options.sizes, options.kilobytes = "5,10", 20
    rows, written = [], 0
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = Path(scratch) / "reports"
        folder.mkdir()
        for size in sorted(map(int, options.sizes.split(","))):
            write_reports(folder, written + 1, size, options.kilobytes)
            written = size
            rows.append(compare(folder, size))
    goals = missed(rows)
    if options.json:
        print(json.dumps({"rows": rows, "missed": goals}, indent=2))
        raise SystemExit(bool(goals) and not options.smoke)
    print(f"{'reports':>7} {'wall s':>7} {'CPU s':>6} {'MB':>5} {'json.load s':>11} {'cat s':>6}  ratio")
    for r in rows:
        times = f"{r['seconds']:7.1f} {r['cpu_seconds']:6.1f} {r['megabytes']:5.0f}"
        peers = f"{r['json_load_seconds']:11.1f} {r['cat_seconds']:6.1f} {r['ratio_to_json_load']:6.2f}"
        print(f"{r['reports']:7,} {times} {peers}")
    print(f"goals missed: {', '.join(goals) or 'none'} (ratio: CPU time against json.load of the same files)")
    raise SystemExit(bool(goals) and not options.smoke)


if __name__ == "__main__":
    main()
