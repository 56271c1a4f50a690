"""Measure whom `fleet pairs` blames, and in how many tests, in fleets with planted faults.

    python benchmarks/fleet_blame.py [--fleets 6] [--most 4096] [--json]

For each size (16 to 4,096 nodes) and kind of fault it makes so many fleets from seeds 0, 1, ...; each runs to its
diagnosis. Prints precision and recall of what is named, and the mean and the most tests. A test is one group of nodes
that starts together and measures, repetitions included; groups of one round run at the same time and count one each.
The roll-call, one launch of every node by itself (two where a node does not pass), is not counted.
Goals, for single faults that do not come and go: recall 1, precision >= 0.98, and at most 2 log2(N) + sqrt(N) tests.
No node takes part: the answers are those of tests/fleet/simulated_fleet.py, where a fault halves the speed of its group
and sound groups differ by 2 %. A link is planted between two nodes of one group or between a switch and the rest: a
link between two nodes of different groups is measured by a tournament only.

The goal holds for every run and not only in the mean. tests/fleet/pairs/test_blame.py goes through every node, every
link inside a group and every switch of fleets with 16 and with 64 nodes. A link between two representatives, which is
not planted here, takes one test more than the goal at those sizes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from envcheck.fleet.pairs.session import Fleet, extent
from tests.fleet.blame_score import Score, score
from tests.fleet.simulated_fleet import FAULT_KINDS, FaultKind, SimulatedFleet

SIZES = (16, 64, 256, 1024, 4096)
PRECISION = 0.98
NOT_SINGLE = ("two-nodes", "intermittent")


def measure(size: int, kind: FaultKind, fleets: int) -> dict[str, Any]:
    """Return how right the diagnoses of so many fleets are, and how many tests they took."""
    scores, tests = [], []
    for seed in range(fleets):
        simulated = SimulatedFleet(size, kind, seed)
        domains = simulated.domains if kind == "bad-uplink" else {}
        took, diagnosis = extent(Fleet(simulated.nodes, domains, "diagnose"), simulated)
        scores.append(score(diagnosis, simulated.faults))
        tests.append(took.tests)
    total = Score.total(scores)
    return {
        "nodes": size,
        "fault": kind,
        "fleets": fleets,
        "recall": total.recall,
        "precision": total.precision,
        "tests_mean": statistics.mean(tests),
        "tests_most": max(tests),
        "goal_tests": 2 * math.log2(size) + math.sqrt(size),
        "all_pairs": size * (size - 1) // 2,
    }


def main() -> None:
    """Measure and print; exit 1 where a single fault misses a goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", type=int, default=6)
    parser.add_argument("--most", type=int, default=SIZES[-1])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="smallest sizes, and no goal: does it still run?")
    options = parser.parse_args()
    if options.smoke:
        options.fleets, options.most = 1, SIZES[0]
    sizes = [size for size in SIZES if size <= options.most]
    rows = [measure(size, kind, options.fleets) for size in sizes for kind in FAULT_KINDS]
    single = [row for row in rows if row["fault"] not in NOT_SINGLE]
    met = all(r["recall"] == 1 and r["precision"] >= PRECISION and r["tests_most"] <= r["goal_tests"] for r in single)
    if options.json:
        print(json.dumps({"rows": rows, "goals_met": met}, indent=2))
        raise SystemExit(0 if met or options.smoke else 1)
    head = f"{'nodes':>5}  {'fault':<14} {'recall':>6} {'precision':>9} {'tests':>7} {'most':>5} {'goal':>6}"
    print(f"{head} {'all pairs':>9}")
    for r in rows:
        tests = f"{r['tests_mean']:7.1f} {r['tests_most']:5} {r['goal_tests']:6.1f} {r['all_pairs']:9}"
        print(f"{r['nodes']:5}  {r['fault']:<14} {r['recall']:6.2f} {r['precision']:9.2f} {tests}")
    print(f"{len(rows) * options.fleets} fleets; single faults: goals {'met' if met else 'NOT met'}")
    raise SystemExit(0 if met or options.smoke else 1)


if __name__ == "__main__":
    main()
