"""The half of envcheck that runs in the Python under test: standard library only, Python >= 3.9.

    PYTHON -B STAGING/envcheck/runner/worker/main.py PLAN_DIR     STAGING holds nothing but `envcheck`

Three generations, none of which outlives the one above it:

    guard     holds the lifeline (stdin: its end means envcheck is gone); imports no torch, so it always answers
    nursery   imports torch once, runs no operation of it, and forks
    ranks     one group a check, in a process group of its own

Results go to PLAN_DIR/events.jsonl, one JSON object a line; what anything prints is a log and never a result.
"""

from __future__ import annotations

import importlib
import os
import sys


def _use_staging() -> None:
    staging = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 (resolves no symlink, imports nothing)
    sys.path[:] = [p for p in sys.path if os.path.realpath(p or ".") != os.path.realpath(staging)]
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(staging))))  # noqa: PTH120 (as above)


if __name__ == "__main__":
    _use_staging()
    if sys.argv[1] == "--rank":
        importlib.import_module("envcheck.runner.worker.rank_group").spawned_rank(sys.argv[2])
    sys.exit(importlib.import_module("envcheck.runner.worker.fork_server").guard(sys.argv[1:]))
