"""Rendering every cell: how long does it take, against Jinja alone rendering the same template as often.

    python benchmarks/render.py [--json] [--cells 320] [--repeat 5]

Cells are the published ones, with synthetic patch numbers until there are enough. Measured is everything from specs in
memory to bytes (Dockerfile and locks, checked by their count); the peer is `jinja2.Template.render` with a context made
beforehand. Both are the median of --repeat rounds in one process, taken in turn. Goal: 300 cells in 1 s.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import jinja2
import msgspec

from envcheck.data import data_path
from envcheck.images import dockerfile
from envcheck.images.spec import ImageSpec, load_spec
from envcheck.matrix.file.load import load

GOAL_S = 1.0


def specs(count: int) -> list[ImageSpec]:
    """Return `count` different specs with real locks."""
    matrix = load()
    real = [spec for cell in matrix.cells() if (spec := load_spec(matrix, cell)).locks]
    return [_patched(spec, number) for number, spec in zip(range(count), itertools.cycle(real), strict=False)]


def _patched(spec: ImageSpec, number: int) -> ImageSpec:
    cell = msgspec.structs.replace(spec.cell, torch=f"{spec.cell.torch.rpartition('.')[0]}.{number}")
    return msgspec.structs.replace(spec, cell=cell, promises={**spec.promises, "cell": str(cell)})


def seconds(work: Callable[[], object]) -> float:
    """Return how long one round takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(cells: list[ImageSpec], repeat: int) -> dict[str, Any]:
    """Render the cells `repeat` times with us and with the peer, in turn."""
    with mock.patch("envcheck.images.dockerfile.rendered", return_value="") as given:
        dockerfile.render_cells(cells)
    contexts = [call.args[1] for call in given.call_args_list]
    loader = jinja2.FileSystemLoader(data_path("templates"))
    peer = jinja2.Environment(autoescape=False, undefined=jinja2.StrictUndefined, loader=loader)  # noqa: S701
    peer.filters["json"] = json.dumps
    template = peer.get_template("Dockerfile.j2")
    rounds = [
        (seconds(lambda: dockerfile.render_cells(cells)), seconds(lambda: [template.render(c) for c in contexts]))
        for _ in range(repeat)
    ]
    ours, theirs = [a for a, _ in rounds], [b for _, b in rounds]
    median, peers = statistics.median(ours), statistics.median(theirs)
    return {
        "schema": "envcheck/benchmark/1",
        "name": "render",
        "cells": sum(name.endswith("/Dockerfile") for name in dockerfile.render_cells(cells)),
        "seconds": round(median, 4),
        "spread": [round(min(ours), 4), round(max(ours), 4)],
        "peer_seconds": round(peers, 4),
        "ratio": round(median / peers, 2),
        "goal_seconds": GOAL_S,
        "met": median <= GOAL_S,
    }


def main() -> None:
    """Measure and print; exit 1 when the goal is missed."""
    parser = argparse.ArgumentParser(description="Rendering every cell, against Jinja alone.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="smallest sizes, and no goal: does it still run?")
    parser.add_argument("--cells", type=int, default=320)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    if options.smoke:
        options.cells, options.repeat = 3, 1
    figures = measure(specs(options.cells), options.repeat)
    if options.json:
        print(json.dumps(figures))
    else:
        low, high = figures["spread"]
        print(f"{figures['cells']} cells: {figures['seconds']} s ({low} to {high}); goal {GOAL_S} s")
        print(f"{figures['ratio']} x Jinja alone ({figures['peer_seconds']} s)")
    raise SystemExit(0 if figures["met"] or options.smoke else 1)


if __name__ == "__main__":
    main()
