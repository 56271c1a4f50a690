"""Measure whom `fleet pairs` blames, and in how many tests, in fleets with planted faults.

    python benchmarks/fleet_blame.py [--fleets 6] [--most 4096] [--json]

For each size (16 to 4,096 nodes) and kind of fault it makes so many fleets from seeds 0, 1, ...; each runs to its
diagnosis. Prints precision and recall of what is named, the most rounds, and the mean and the most tests. A test is one
group of nodes that starts together and measures, repetitions included; tests of one round run at the same time.
Goals, for single faults that do not come and go: recall 1, precision >= 0.98, and at most 10 + 2 sqrt(N) rounds.
No node takes part: the answers are those of tests/fleet/simulated_fleet.py, where a fault halves the speed of its group
and sound groups differ by 2 %. A link is planted between two nodes of one group or between a group and the rest: a
link between two other nodes of different groups is measured by a tournament only.
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

from envcheck.fleet.pairs.diagnosis import diagnosis
from tests.fleet.simulated_fleet import FAULT_KINDS, FaultKind, SimulatedFleet, extent, named, planted

SIZES = (16, 64, 256, 1024, 4096)
PRECISION = 0.98
NOT_SINGLE = ("two-nodes", "intermittent")


def measure(size: int, kind: FaultKind, fleets: int) -> dict[str, Any]:
    """Return how right the diagnoses of so many fleets are, and how many tests they took."""
    found = missed = wrong = 0
    tests, rounds = [], []
    for seed in range(fleets):
        simulated = SimulatedFleet(size, kind, seed)
        took, found_faults = extent(diagnosis(simulated.nodes), simulated)
        names, faults = named(found_faults), planted(simulated.faults)
        found, missed, wrong = found + len(names & faults), missed + len(faults - names), wrong + len(names - faults)
        tests.append(took.tests)
        rounds.append(took.rounds)
    return {
        "nodes": size,
        "fault": kind,
        "fleets": fleets,
        "recall": found / (found + missed) if found + missed else 1.0,
        "precision": found / (found + wrong) if found + wrong else 1.0,
        "tests_mean": statistics.mean(tests),
        "tests_most": max(tests),
        "rounds_most": max(rounds),
        "goal_rounds": 10 + 2 * math.sqrt(size),
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
    met = all(r["recall"] == 1 and r["precision"] >= PRECISION and r["rounds_most"] <= r["goal_rounds"] for r in single)
    if options.json:
        print(json.dumps({"rows": rows, "goals_met": met}, indent=2))
        raise SystemExit(0 if met or options.smoke else 1)
    head = (
        f"{'nodes':>5}  {'fault':<14} {'recall':>6} {'precision':>9} {'tests':>7} {'most':>5} {'rounds':>6} {'goal':>5}"
    )
    print(f"{head} {'all pairs':>9}")
    for r in rows:
        took = f"{r['tests_mean']:7.1f} {r['tests_most']:5} {r['rounds_most']:6} {r['goal_rounds']:5.0f}"
        print(f"{r['nodes']:5}  {r['fault']:<14} {r['recall']:6.2f} {r['precision']:9.2f} {took} {r['all_pairs']:9}")
    print(f"{len(rows) * options.fleets} fleets; single faults: goals {'met' if met else 'NOT met'}")
    raise SystemExit(0 if met or options.smoke else 1)


if __name__ == "__main__":
    main()
