"""Nodes whose clocks differ write logs nobody can put in order, and certificates of tomorrow are not yet valid.

Seen in the wild: a TLS mirror refused by one node of a hundred; an NCCL timeout blamed on the wrong node.
"""

from __future__ import annotations

from typing import Final

from envcheck.checks import Check, Limit, Outcome, View, passed, skipped, undecided, warned
from envcheck.node.snapshot import Signal

CHECK = Check(promise="something keeps this node's clock", level="quick", seconds=0.01)

_NO_CALL: Final = ("unsupported", "denied")
_LIMIT: Final = Limit(True, "", "adjtimex(2): TIME_ERROR means that the clock is not synchronised", "equal")  # noqa: FBT003


def judge(view: View) -> Outcome:
    """Warn on a machine whose kernel clock nobody disciplines; a guest's may be kept by its host."""
    signal = view.snapshot.signal("clock.synchronized")
    if signal.reason is not None:
        return _unread(signal)
    state, kernel = signal.value, str(view.snapshot.signal("host.kernel").value).lower()
    if not isinstance(state, bool):
        return undecided(
            f"clock.synchronized has an unexpected type or value: {state!r}", code="clock-sync.unexpected-value"
        )
    if state:
        return passed("the kernel's clock is synchronised", value=True, limit=_LIMIT)
    if "microsoft" in kernel:
        return skipped(
            "not synchronised by this kernel's word; WSL2's clock is the one of Windows", code="clock-sync.wsl"
        )
    if view.snapshot.signal("container.runtime").value not in (None, "none"):
        return skipped(
            "not synchronised by this kernel's word; a container cannot see who keeps the host's clock",
            code="clock-sync.in-container",
        )
    fix = "start chronyd or systemd-timesyncd"
    return warned(
        "the kernel's clock is not synchronised", fix=fix, value=False, limit=_LIMIT, code="clock-sync.not-synchronized"
    )


def _unread(signal: Signal) -> Outcome:
    """Return the skip of a sandbox without that system call, the error of one that failed."""
    if signal.why in _NO_CALL:
        return skipped(
            f"this sandbox does not let the kernel's clock be asked ({signal.reason})", code="clock-sync.hidden"
        )
    return undecided(f"clock.synchronized: {signal.reason}", fix="look at `timedatectl`", code="clock-sync.unread")
