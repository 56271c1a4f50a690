"""Which rank a group was lost by, decided from what was seen of all of them. Pure.

The rank that says something is often the one that waited: it gives up after a time limit, or loses its connection.
So a rank that is stopped, or has begun fewer collectives than the others, is named before one that waited for it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from envcheck.checks.env.support.process import progress_file

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
_DUMP = re.compile(r"(?:Current thread|Thread) 0x\w+ .*\(most recent call first\):\n((?:  .*\n?)*)")
_WAITS = re.compile(r'File ".*/torch/(distributed|autograd|cuda)/')


@dataclasses.dataclass(frozen=True)
class ObservedRank:
    """A rank that had not ended: the kernel's letter for it, and how far it had come (see `_progress`)."""

    rank: int
    state: str
    stage: int
    begun: int = 0
    log: str = ""

    @property
    def position(self) -> tuple[int, int]:
        """Return what grows as a rank comes on."""
        return self.stage, self.begun


def culprit(running: Sequence[ObservedRank], others: Sequence[tuple[int, int]]) -> dict[str, Any] | None:
    """Return {rank, why} of the running rank that the others waited for, or None where that cannot be seen.

    `others` are the positions of the ranks that have ended.
    """
    for state, why in (("T", _STOPPED), ("D", _SLEEPING)):
        if named := [seen for seen in running if seen.state == state]:
            return {"rank": named[0].rank, "why": _also(named, why)}
    furthest = max([*others, *(seen.position for seen in running)], default=(-1, 0))
    behind = [seen for seen in running if seen.position < furthest]
    if behind:
        return {"rank": behind[0].rank, "why": _also(behind, _missing(behind[0], furthest))}
    waiting = [seen for seen in running if _waits(seen.log)]
    elsewhere = [seen for seen in running if seen.log and not _waits(seen.log)]
    if waiting and elsewhere:
        return {"rank": elsewhere[0].rank, "why": _also(elsewhere, "does something else while the others wait for it")}
    return None


def waited(text: str) -> bool:
    """Return whether an error is one that a healthy rank has when another one is silent or gone."""
    return _WAITED.search(text) is not None or watchdog(text) is not None


def watchdog(log: str) -> str | None:
    """Return what NCCL's watchdog said of a collective that took too long, if it did."""
    match = WATCHDOG.search(log)
    return match and match[0][:200]


def _also(named: Sequence[ObservedRank], why: str) -> str:
    more = ", ".join(str(seen.rank) for seen in named[1:])
    return f"{why}; so is rank {more}" if more else why


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
    dumps = _DUMP.findall(log)
    return bool(dumps) and _WAITS.search("\n".join(dumps[-1].splitlines()[:4])) is not None
