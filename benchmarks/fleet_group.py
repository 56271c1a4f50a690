"""Measure how many nodes can meet in one group, and what it costs the first of them.

    python benchmarks/fleet_group.py [--sizes 64,256,1024] [--bytes 1500] [--json]

So many members join a group in this process, a thread and a connection each, and exchange their parts of a step, of so
many bytes (what a rank leaves of `collectives` on a CPU). Then one of them is lost without a word, and the others
exchange a second step, in which it has to be named. No torch takes part. Prints the CPU time of all members together,
and the most memory. Goals: 1,024 members within 60 s of CPU, and the lost one is named. Exit 1 where one is missed.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from msgspec import structs

from envcheck.fleet.group.meeting import Coordinator, GroupMember, free_ports
from envcheck.fleet.group.membership import Hello

FULL: Final = 1024
SECONDS: Final = 60.0
PATIENCE: Final = 300.0


def measure(size: int, length: int) -> dict[str, Any]:
    """Return what a group of that many nodes takes, and whom it names when one is lost."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    (port,) = free_ports(1)
    names = tuple(f"n{number}" for number in range(size))
    first = Hello(run="1.0", node=0, nodes=size, name="n0", tool="1", plan="collectives")
    hellos = [structs.replace(first, node=number, name=name) for number, name in enumerate(names)]
    began, cpu = time.monotonic(), time.process_time()
    leading = Coordinator(first, names, port, PATIENCE)
    try:
        with ThreadPoolExecutor(size) as pool:
            members = [*pool.map(lambda hello: GroupMember.join(hello, "127.0.0.1", port, PATIENCE), hellos)]
            met = time.process_time() - cpu
            came = [*pool.map(lambda member: len(member.exchange("one", "x" * length)[0]), members)]
            exchange = time.process_time() - cpu - met
            members.pop(size // 2).leave()
            lost = [*pool.map(lambda member: member.exchange("two", None)[1], members)]
    finally:
        leading.close()
    return {
        "nodes": size,
        "bytes": length,
        "cpu_to_meet": met,
        "cpu_to_exchange": exchange,
        "cpu_seconds": time.process_time() - cpu,
        "seconds": time.monotonic() - began,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
        "all_came": came == [size] * size,
        "lost_is_named": all([*named] == [size // 2] for named in lost),
    }


def main() -> None:
    """Measure and print; exit 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=f"64,256,{FULL}")
    parser.add_argument("--bytes", type=int, default=1500)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="smallest sizes, and no goal: does it still run?")
    options = parser.parse_args()
    sizes = [16] if options.smoke else sorted(map(int, options.sizes.split(",")))
    rows = [measure(size, options.bytes) for size in sizes]
    met = all(row["all_came"] and row["lost_is_named"] and row["cpu_seconds"] <= SECONDS for row in rows)
    if options.json:
        print(json.dumps({"rows": rows, "goals_met": met}, indent=2))
    else:
        print(f"{'nodes':>6} {'meet: CPU s':>12} {'exchange: CPU s':>16} {'all: CPU s':>11} {'MB':>6}  lost is named")
        for row in rows:
            times = f"{row['cpu_to_meet']:12.1f} {row['cpu_to_exchange']:16.1f} {row['cpu_seconds']:11.1f}"
            print(f"{row['nodes']:6,} {times} {row['megabytes']:6.0f}  {'yes' if row['lost_is_named'] else 'NO'}")
        print(f"goals {'met' if met else 'NOT met'}")
    raise SystemExit(0 if met or options.smoke else 1)


if __name__ == "__main__":
    main()
