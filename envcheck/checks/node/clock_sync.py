"""Nodes whose clocks differ write logs nobody can put in order, and certificates of tomorrow are not yet valid.

Seen in the wild: a TLS mirror refused by one node of a hundred; an NCCL timeout blamed on the wrong node.
"""

from __future__ import annotations

from typing import Final

from envcheck.checks import Check, Limit, Outcome, View, passed, skipped, undecided, warned

CHECK = Check(promise="something keeps this node's clock", level="quick", seconds=0.01, signals=("clock.synchronized",))

_LIMIT: Final = Limit(True, "", "adjtimex(2): TIME_ERROR means that the clock is not synchronised", "equal")  # noqa: FBT003


def judge(view: View) -> Outcome:
    """Warn on a machine whose kernel clock nobody disciplines; a guest's may be kept by its host."""
    state = view.snapshot.signal("clock.synchronized").value
    if not isinstance(state, bool):
        return undecided(f"clock.synchronized is nonsense: {state!r}")
    if state:
        return passed("the kernel's clock is synchronised", value=True, limit=_LIMIT)
    if view.snapshot.signal("container.runtime").value not in (None, "none"):
        return skipped("not synchronised by this kernel's word; a container cannot see who keeps the host's clock")
    fix = "start chronyd or systemd-timesyncd"
    return warned("the kernel's clock is not synchronised", fix=fix, value=False, limit=_LIMIT)
