"""Measure whom `fleet report` names in fleets with planted faults.

    python benchmarks/fleet_report_blame.py [--fleets 8] [--most 4096] [--json]

For each size (16 to 4,096 nodes) and kind of fault it makes so many fleets from seeds 0, 1, ...: reports made from a
recorded one, with 0.5 % of noise in the speed. A node is named where it is failed, blamed, undetermined, missing,
stale, an outlier or drifting. Goals for single faults: recall 1 and precision >= 0.98. Exit 1 where one is missed.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import random
import sys
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from msgspec import structs

from envcheck.fleet.files import FleetFile
from envcheck.fleet.one_report import NodeReport, read
from envcheck.fleet.summary import BAD, FleetQuestion, FleetReport, summarize
from tests.fleet.node_reports import ENDED, failing, node_report, outcome_of

SIZES: Final = (16, 64, 256, 1024, 4096)
KINDS: Final = ("none", "slow", "cold-gpu", "kernel", "clock", "missing", "stale", "slow and missing")
PRECISION: Final = 0.98
NOW: Final = ENDED + 600


def made(node: str, kind: str, speed: float) -> NodeReport:
    """Return what is read of the report of a node with a fault."""
    document = node_report(node, gemm_throughput=speed)
    if kind == "slow":
        outcome_of(document, "gemm-throughput")["value"] = 0.7 * speed
    elif kind == "cold-gpu":
        failing(document, culprit=f"GPU 0 ({document['snapshot']['gpus'][0]['uuid']})")
    elif kind == "kernel":
        document["snapshot"]["signals"]["host.kernel"]["value"] = "5.15.0-1061"
    elif kind in ("clock", "stale"):
        hours = dt.timedelta(hours=3 if kind == "clock" else -48)
        for name in ("started", "ended"):
            document[name] = (dt.datetime.fromisoformat(document[name]) + hours).isoformat()
    return read(json.dumps(document).encode(), node)


def summarized(size: int, faults: dict[str, str], noise: random.Random) -> FleetReport:
    """Return what `fleet report` says of a fleet; `faults` by node."""
    sound = made("NODE", "none", 700.0)
    nodes = [f"n{number}" for number in range(1, size + 1)]
    files = []
    for node in nodes:
        speed = 700.0 * noise.gauss(1, 0.005)
        kind = faults.get(node, "none")
        if kind == "missing":
            continue
        checks = [structs.replace(c, value=speed) if c.check == "gemm-throughput" else c for c in sound.checks]
        report = sound._replace(node=node, digest=node.encode(), checks=tuple(checks))
        if kind != "none":
            report = made(node, kind, speed)
        files.append(FleetFile(f"{node}.json", ENDED + 1, node, report))
    return summarize(files, FleetQuestion(NOW, nodes)).report


def named(report: FleetReport) -> set[str]:
    """Return the nodes that an operator would look at."""
    bad = {node for state in BAD for node in report.nodes.of(state)}
    drifting = {node for row in report.drift for nodes in row.others.values() for node in nodes}
    return bad | drifting | {row.node for row in report.outliers} | {one.node for one in report.verdict.blame}


def measure(size: int, kind: str, fleets: int) -> dict[str, Any]:
    """Return how many planted faults are named, and how many names are wrong."""
    found = missed = wrong = 0
    for seed in range(fleets):
        noise = random.Random(f"{size} {kind} {seed}")  # noqa: S311 (a simulation)
        kinds = [] if kind == "none" else kind.split(" and ")
        nodes = noise.sample(range(1, size + 1), len(kinds))
        faults = {f"n{number}": one for number, one in zip(nodes, kinds, strict=True)}
        names = named(summarized(size, faults, noise))
        found, missed = found + len(names & set(faults)), missed + len(set(faults) - names)
        wrong += len(names - set(faults))
    recall = found / (found + missed) if found + missed else 1.0
    precision = found / (found + wrong) if found + wrong else 1.0
    return {"nodes": size, "fault": kind, "fleets": fleets, "recall": recall, "precision": precision}


def main() -> None:
    """Measure and print; exit 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", type=int, default=8)
    parser.add_argument("--most", type=int, default=SIZES[-1])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="smallest sizes, and no goal: does it still run?")
    options = parser.parse_args()
    if options.smoke:
        options.fleets, options.most = 1, SIZES[0]
    sizes = [size for size in SIZES if size <= options.most]
    rows = [measure(size, kind, options.fleets) for size in sizes for kind in KINDS]
    met = all(row["recall"] == 1 and row["precision"] >= PRECISION for row in rows)
    if options.json:
        print(json.dumps({"rows": rows, "goals_met": met}, indent=2))
    else:
        for row in rows:
            print(f"{row['nodes']:5} {row['fault']:<17} recall {row['recall']:.2f} precision {row['precision']:.2f}")
        print(f"{len(rows) * options.fleets} fleets: goals {'met' if met else 'NOT met'}")
    raise SystemExit(0 if met or options.smoke else 1)


if __name__ == "__main__":
    main()
