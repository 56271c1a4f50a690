"""Signals of the node that cannot be judged: not collected by an older envcheck, hidden from this user, or unread."""

from __future__ import annotations

from envcheck.checks import Outcome, View, skipped, undecided


def uncollected(view: View, name: str) -> Outcome | None:
    """Return the skip of a signal that the envcheck which took this snapshot did not know; None where it did."""
    if view.snapshot.signal(name).why == "not-collected":
        return skipped(f"{name} was not read: this snapshot is from before it was", code="signal.not-collected")
    return None


def unreadable(view: View, name: str, fix: str) -> Outcome | None:
    """Return the skip of a missing or protected file, the error of one with an unexpected value; or None."""
    missing, signal = uncollected(view, name), view.snapshot.signal(name)
    if missing is not None or signal.reason is None:
        return missing
    signal_code = name.replace(".", "-").replace("_", "-")
    if signal.why in ("denied", "unsupported"):
        return skipped(f"{name} cannot be read ({signal.reason}): {fix}", code=f"{signal_code}.hidden")
    return undecided(f"{name} cannot be read: {signal.reason}", fix=fix, code=f"{signal_code}.unread")
