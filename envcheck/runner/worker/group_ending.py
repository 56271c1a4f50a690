"""How a group of ranks came to its end: the result files, and the one rank that the end is blamed on."""

from __future__ import annotations

import json
import math
import os
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from envcheck.checks.env.support.process import progress_file, rank_files
from envcheck.runner.worker import lost_rank, process_limits
from envcheck.runner.worker import rank as worker_rank

_DOING_LIMIT = 200
_SAID_LIMIT = 300
_TOO_LONG = {"error": f"its result file is over {worker_rank.RESULT_LIMIT} bytes"}
_NO_RESULT = {"error": "its result file holds neither a measurement nor an error"}
# What C++ says of an exception that nobody caught, before SIGABRT.
_UNCAUGHT = re.compile(r"what\(\):\s*(\S.*)")


class End(NamedTuple):
    """A rank that ended by itself: its exit code, or the negated signal, and the end of what it printed."""

    rank: int
    status: int | None
    log: str


def has_result(directory: Path, rank: int) -> bool:
    """Return whether a rank has left something with the name of its result file."""
    return os.path.lexists(directory / f"rank{rank}.json")


def result(directory: Path, rank: int) -> dict[str, Any]:
    """Return what a rank left: {"measured", "seconds"} or {"error"}, and nothing for one that left no file.

    `measured` may still be anything.
    """
    try:
        text = rank_files.content(directory / f"rank{rank}.json", worker_rank.RESULT_LIMIT)
        if text is None:
            return {}
        content = json.loads(text) if len(text) <= worker_rank.RESULT_LIMIT else _TOO_LONG
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
        text = rank_files.content(directory / f"rank{rank}.doing", _DOING_LIMIT) or b""
    except OSError:
        return {}
    activity = text[:_DOING_LIMIT].decode(errors="replace").strip()
    return {"doing": activity} if activity else {}


def seen(directory: Path, rank: int, state: str, log: str) -> lost_rank.ObservedRank:
    """Return what is known of a rank that had not ended."""
    return lost_rank.ObservedRank(rank, state, *progress_file.read(directory, rank), log=log)


def error(
    directory: Path,
    ended: Sequence[End],
    running: Sequence[lost_rank.ObservedRank],
    results: Mapping[int, dict[str, Any]],
    after: str,
    manner: str,
) -> dict[str, Any] | None:
    """Return {rank, text[, hung]} of the rank that the group was lost by; None where every rank left a measurement.

    `results` are by rank. `running` are the ranks that had to be ended, which took `manner`, `after` a time; `hung`
    marks an error of ranks that waited for each other.
    """
    error = _error(directory, ended, running, results, after, manner)
    return error and {**error, "text": process_limits.explained(error["text"])}


def _error(
    directory: Path,
    ended: Sequence[End],
    running: Sequence[lost_rank.ObservedRank],
    results: Mapping[int, dict[str, Any]],
    after: str,
    manner: str,
) -> dict[str, Any] | None:
    others = [progress_file.read(directory, end.rank) for end in ended]
    blamed = lost_rank.culprit(running, others)
    first = _first_lost(ended, results)
    if first is not None:
        if blamed is not None and lost_rank.waited(first["text"]):
            text = f"{blamed['why']}; rank {first['rank']} waited for it: {first['text']}"
            return {**first, "rank": blamed["rank"], "text": text}
        return first
    if running:
        return _hang(running, blamed, after, manner)
    missing = next((rank for rank, left in results.items() if "measured" not in left), None)
    return None if missing is None else {"rank": missing, "text": "gave no result"}


def _first_lost(ended: Sequence[End], results: Mapping[int, dict[str, Any]]) -> dict[str, Any] | None:
    """Return the first rank to be lost, and how."""
    for end in ended:
        raised = results[end.rank].get("error")
        if end.status is not None and end.status < 0:
            return _killed(end)
        if raised:
            timeout = lost_rank.watchdog(raised) or lost_rank.watchdog(end.log)
            return {"rank": end.rank, "text": raised, **({"hung": True} if timeout else {})}
        if end.status:
            last = process_limits.telling_line(end.log)[:300]
            return {"rank": end.rank, "text": f"exited with code {end.status}{': ' if last else ''}{last}"}
        if not results[end.rank]:
            return {"rank": end.rank, "text": "exited with code 0 and no result"}
    return None


def _killed(end: End) -> dict[str, Any]:
    number = -(end.status or 0)
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    timeout = lost_rank.watchdog(end.log)
    if number == signal.SIGABRT and timeout:
        return {"rank": end.rank, "text": f"died of {name}: NCCL's watchdog ended it ({timeout})", "hung": True}
    uncaught = _UNCAUGHT.search(end.log)
    return {"rank": end.rank, "text": f"died of {name}{': ' + uncaught[1][:_SAID_LIMIT] if uncaught else ''}"}


def _hang(
    running: Sequence[lost_rank.ObservedRank], blamed: dict[str, Any] | None, after: str, manner: str
) -> dict[str, Any]:
    ranks = ", ".join(str(seen.rank) for seen in running)
    why = f": it {blamed['why']}" if blamed else ""
    text = f"{lost_rank.HUNG} {after} (ranks {ranks}){why}; ended by {manner}"
    return {"rank": blamed["rank"] if blamed else running[0].rank, "text": text, "hung": True}
