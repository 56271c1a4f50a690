"""How a group of ranks came to its end: the result files, and the one rank that the end is blamed on.

The rank that says something is often the one that waited: it gives up after a time limit, or loses its connection.
So a rank that is stopped, or has begun fewer collectives than the others, is named before one that waited for it.
"""

from __future__ import annotations

import json
import math
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from envcheck.checks.support import progress_file
from envcheck.runner.worker import process_limits

RESULT_LIMIT = 1 << 20
_DOING_LIMIT = 200
_SAID_LIMIT = 300
_TOO_LONG = {"error": f"its result file is over {RESULT_LIMIT} bytes"}
_NO_RESULT = {"error": "its result file holds neither a measurement nor an error"}
HUNG = "still running after"
# torch/csrc/distributed/c10d: ProcessGroupNCCL.cpp's words for a collective that took longer than its limit, torch 1.13
# to 2.9. They come with SIGABRT, or with an exception where TORCH_NCCL_BLOCKING_WAIT is set.
WATCHDOG = re.compile(
    r"Watchdog caught collective operation timeout: \w+\([^)]*|watchdog got stuck for \d+ seconds|"
    r"Timeout at NCCL work: \d+|[Rr]eceived a dump signal due to a collective timeout"
)
# What gloo, NCCL and the stores say where the other side is gone or silent.
_WAITED = re.compile(
    r"timed? ?out|connection (was )?(closed|reset|refused)|broken pipe|remote process exited|socket|"
    r"peer|recvValue|heartbeat|DistNetworkError|DistStoreError",
    re.IGNORECASE,
)
_STOPPED = "is stopped (process state T: a SIGSTOP, a debugger or a frozen container)"
_SLEEPING = "is in uninterruptible sleep (process state D: a driver or a file server that does not answer)"
_WAITS = re.compile(r'File ".*/torch/(distributed|autograd|cuda)/')


class ObservedRank(NamedTuple):
    """A rank as its group ended: the kernel's letter for it, how far it had come, and what it printed last.

    `status` is the exit code, or the negated signal, of one that ended by itself; such a one has no `state`.
    """

    rank: int
    state: str = ""
    stage: int = -1
    begun: int = 0
    log: str = ""
    status: int = 0

    @property
    def position(self) -> tuple[int, int]:
        """Return what grows as a rank comes on."""
        return self.stage, self.begun


def result(directory: Path, rank: int) -> dict[str, Any]:
    """Return what a rank left: {"measured" (anything), "seconds"} or {"error"}; nothing for one that left no file."""
    try:
        text = progress_file.content(directory / f"rank{rank}.json", RESULT_LIMIT)
        if text is None:
            return {}
        content = json.loads(text) if len(text) <= RESULT_LIMIT else _TOO_LONG
    except OSError as error:
        return {"error": f"its result file cannot be read: {error.strerror}"}
    except (ValueError, RecursionError):
        return {"error": "its result file is not JSON"}
    return _sound(content) if isinstance(content, dict) else _NO_RESULT


def _sound(content: dict[str, Any]) -> dict[str, Any]:
    raised, seconds = content.get("error"), content.get("seconds")
    if isinstance(raised, str):
        return {"error": raised}
    if isinstance(seconds, float) and math.isfinite(seconds):
        return {"measured": content.get("measured"), "seconds": seconds}
    return _NO_RESULT


def doing(directory: Path, rank: int) -> dict[str, str]:
    """Return what a lost rank wrote to `rankN.doing` of what it was about to do."""
    try:
        text = progress_file.content(directory / f"rank{rank}.doing", _DOING_LIMIT)
    except OSError:
        text = None
    activity = (text or b"")[:_DOING_LIMIT].decode(errors="replace").strip()
    return {"doing": activity} if activity else {}


def error(
    ended: Sequence[ObservedRank],
    running: Sequence[ObservedRank],
    results: Mapping[int, dict[str, Any]],
    after: str,
    manner: str,
) -> dict[str, Any] | None:
    """Return {rank, text[, hung]} of the rank that the group was lost by; None where every rank left a measurement.

    `results` are by rank. `ended` are the ranks that ended by themselves, the first to end first; `running` those that
    had to be ended, which took `manner`, `after` a time; `hung` marks an error of ranks that waited for each other.
    """
    blamed = culprit(running, [end.position for end in ended])
    error = _first_lost(ended, results)
    if error is not None and blamed is not None and waited(error["text"]):
        text = f"{blamed['why']}; rank {error['rank']} waited for it: {error['text']}"
        error = {**error, "rank": blamed["rank"], "text": text}
    elif error is None and running:
        ranks, why = ", ".join(str(seen.rank) for seen in running), f": it {blamed['why']}" if blamed else ""
        text = f"{HUNG} {after} (ranks {ranks}){why}; ended by {manner}"
        error = {"rank": blamed["rank"] if blamed else running[0].rank, "text": text, "hung": True}
    if error is None:
        missing = next((rank for rank, left in results.items() if "measured" not in left), None)
        return None if missing is None else {"rank": missing, "text": "gave no result"}
    return {**error, "text": process_limits.explained(error["text"])}


def _first_lost(ended: Sequence[ObservedRank], results: Mapping[int, dict[str, Any]]) -> dict[str, Any] | None:
    for end in ended:
        raised = results[end.rank].get("error")
        if end.status < 0:
            return _killed(end)
        if raised:
            timeout = watchdog(raised) or watchdog(end.log)
            return {"rank": end.rank, "text": raised, **({"hung": True} if timeout else {})}
        if end.status:
            last = process_limits.telling_line(end.log)[:_SAID_LIMIT]
            return {"rank": end.rank, "text": f"{process_limits.ended(end.status)}{': ' if last else ''}{last}"}
        if not results[end.rank]:
            return {"rank": end.rank, "text": "exited with code 0 and no result"}
    return None


def _killed(end: ObservedRank) -> dict[str, Any]:
    manner, timeout = process_limits.ended(end.status), watchdog(end.log)
    if end.status == -signal.SIGABRT and timeout:
        return {"rank": end.rank, "text": f"{manner}: NCCL's watchdog ended it ({timeout})", "hung": True}
    # What C++ says of an exception that nobody caught, before SIGABRT.
    uncaught = re.search(r"what\(\):\s*(\S.*)", end.log)
    return {"rank": end.rank, "text": f"{manner}{': ' + uncaught[1][:_SAID_LIMIT] if uncaught else ''}"}


def culprit(running: Sequence[ObservedRank], others: Sequence[tuple[int, int]]) -> dict[str, Any] | None:
    """Return {rank, why} of the running rank that the others, at these positions, waited for; None where unseen."""
    for state, why in (("T", _STOPPED), ("D", _SLEEPING)):
        if named := [seen for seen in running if seen.state == state]:
            return _also(named, why)
    furthest = max([*others, *(seen.position for seen in running)], default=(-1, 0))
    behind = [seen for seen in running if seen.position < furthest]
    if behind:
        return _also(behind, _missing(behind[0], furthest))
    waiting = [seen for seen in running if _waits(seen.log)]
    elsewhere = [seen for seen in running if seen.log and not _waits(seen.log)]
    return _also(elsewhere, "does something else while the others wait for it") if waiting and elsewhere else None


def waited(text: str) -> bool:
    """Return whether an error is one that a healthy rank has when another one is silent or gone."""
    return _WAITED.search(text) is not None or watchdog(text) is not None


def watchdog(log: str) -> str | None:
    """Return what NCCL's watchdog said of a collective that took too long, if it did."""
    match = WATCHDOG.search(log)
    return match and match[0][:200]


def _also(named: Sequence[ObservedRank], why: str) -> dict[str, Any]:
    more = ", ".join(str(seen.rank) for seen in named[1:])
    return {"rank": named[0].rank, "why": f"{why}; so is rank {more}" if more else why}


def _missing(seen: ObservedRank, furthest: tuple[int, int]) -> str:
    if seen.stage < progress_file.STARTED:
        return "has not started, and the others wait for it"
    if seen.stage < progress_file.LOADED:
        return "still imports its check, and the others wait for it"
    if seen.stage < progress_file.JOINED <= furthest[0] or seen.stage < progress_file.JOINING:
        return "has not joined the group that the others wait in"
    if furthest[0] > progress_file.JOINED:
        return "has not left the group, as the others have"
    return f"has begun {seen.begun} collectives, and the others wait for it in number {furthest[1]}"


def _waits(log: str) -> bool:
    """Return whether the stack that was dumped last is in a call that waits for other ranks or for a GPU."""
    dumps = re.findall(r"(?:Current thread|Thread) 0x\w+ .*\(most recent call first\):\n((?:  .*\n?)*)", log)
    return bool(dumps) and _WAITS.search("\n".join(dumps[-1].splitlines()[:4])) is not None
