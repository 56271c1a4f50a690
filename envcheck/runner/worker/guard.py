"""The guard: starts the nursery, listens to the lifeline, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

from envcheck.runner.worker import fork_server, process_tree

_TICK = 0.05
_LIMIT = 5.0


def main(argv: list[str]) -> int:
    """Run the plan in the directory named by the one argument; return 0 when the nursery came to its end."""
    directory = Path(argv[0])
    plan: dict[str, Any] = json.loads((directory / "plan.json").read_text(encoding="utf-8"))
    # Python 3.12 warns of a fork beside threads; that the nursery runs no torch operation is what makes it safe.
    warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
    process_tree.adopt_orphans()
    status = _watch(_start(directory, plan))
    process_tree.end_descendants(_LIMIT)
    if status is None:
        if plan["ours"]:
            shutil.rmtree(directory, ignore_errors=True)
            with contextlib.suppress(OSError):
                directory.parent.rmdir()
        return 0
    if status != 0:
        fork_server.Events(directory).emit("died", **fork_server.how(status))
    return min(abs(status), 1)


def _start(directory: Path, plan: dict[str, Any]) -> int:
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    process_tree.die_with_parent(guard)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    code = 1
    try:
        fork_server.run(directory, plan)
        code = 0
    except BaseException:  # noqa: BLE001 (the process ends here; its log and exit code are what is reported)
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _watch(nursery: int) -> int | None:
    """Return the nursery's wait status when it ends (positive: exit code, negative: signal); None on a cut lifeline."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    while True:
        ready, _, _ = select.select([0, woken], [], [], _TICK)
        if 0 in ready and not os.read(0, 4096):
            return None
        if woken in ready:
            os.read(woken, 4096)
        # Orphans come to us too; leave them to the end and wait for the nursery alone.
        pid, status = os.waitpid(nursery, os.WNOHANG)
        if pid:
            return fork_server.exit_status(status)
