"""What it takes to read the node, its sources side by side and one after the other.

    python benchmarks/node.py [--repeat 15] [--slow 0.2] [--json]     exit 1: a goal is missed

`here` are this machine's own sources; where none of them waits for anything there is nothing to gain, and the threads
cost some milliseconds beside the import of torch. `slow` puts five more beside them that wait `--slow` seconds each, as
a driver that initialises, a firmware that is asked or a file server does; `hung` five that never answer and are given
up after that time. Of each the medians of alternating rounds, and their ratio. The goal is that `slow` and `hung`
take, side by side, no more beyond `here` than the one wait and a quarter of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from envcheck.node import signal_source
from envcheck.node.collect import sources
from envcheck.node.signal_source import ReadTask, SourceReading, number

WAITING: Final = 5
GOAL: Final = 1.25


def one_after_the_other(read: Sequence[ReadTask]) -> None:
    """Read each of them when the one before is done, or given up."""
    for task in read:
        signal_source.read([task])


def seconds(read: Callable[[list[ReadTask]], Any], make: Callable[[], list[ReadTask]]) -> float:
    """Return how long it takes to read these sources."""
    made, begun = make(), time.perf_counter()
    read(made)
    return time.perf_counter() - begun


def here() -> list[ReadTask]:
    """Return this machine's own sources."""
    return sources(Path("/"), os.environ)


def slow(wait: float) -> list[ReadTask]:
    """Return them with five that wait."""
    return [*here(), *(ReadTask({f"slow {n}": number}, lambda: _after(wait), 10 * wait) for n in range(WAITING))]


def hung(wait: float) -> list[ReadTask]:
    """Return them with five that never answer."""
    never = threading.Event()
    return [*here(), *(ReadTask({f"hung {n}": number}, lambda: _after(None, never), wait) for n in range(WAITING))]


def _after(wait: float | None, event: threading.Event | None = None) -> SourceReading:
    (event or threading.Event()).wait(wait)
    return SourceReading({})


def measured(make: Callable[[], list[ReadTask]], repeat: int) -> dict[str, float]:
    """Return the medians, in seconds, and how many times longer one after the other takes."""
    for read in (one_after_the_other, signal_source.read):
        seconds(read, make)
    pairs = [(seconds(one_after_the_other, make), seconds(signal_source.read, make)) for _ in range(repeat)]
    serial, read_proofs = (statistics.median(pair[at] for pair in pairs) for at in (0, 1))
    return {"serial_s": round(serial, 4), "beside_s": round(read_proofs, 4), "ratio": round(serial / read_proofs, 2)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--slow", type=float, default=0.2, help="seconds that a slow source takes [default: 0.2]")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="smallest sizes, and no goal: does it still run?")
    given = parser.parse_args()
    if given.smoke:
        given.repeat, given.slow = 1, 0.05
    figures = {
        "here": measured(here, given.repeat),
        "slow": measured(lambda: slow(given.slow), given.repeat),
        "hung": measured(lambda: hung(given.slow), given.repeat),
    }
    goal = round(figures["here"]["beside_s"] + GOAL * given.slow, 3)
    missed = [name for name in ("slow", "hung") if figures[name]["beside_s"] > goal]
    if given.json:
        print(json.dumps({"benchmark": "node", "wait_s": given.slow, "goal_s": goal, **figures}))
        raise SystemExit(bool(missed) and not given.smoke)
    for name, row in figures.items():
        line = f"one after the other {row['serial_s']:.3f} s, side by side {row['beside_s']:.3f} s"
        print(f"{name}: {line}: {row['ratio']:.2f} x{'' if name == 'here' else f'; goal <= {goal:g} s'}")
    raise SystemExit(bool(missed) and not given.smoke)


if __name__ == "__main__":
    main()
