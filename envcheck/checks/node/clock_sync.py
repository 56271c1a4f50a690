"""Nodes whose clocks differ write logs nobody can put in order, and certificates of tomorrow are not yet valid."""

from envcheck.checks import Check, Limit, Outcome, View, passed, skipped, warned
from envcheck.checks.gpu_readings import unreadable

CHECK = Check("something keeps this node's clock", "quick", 0.01)

_LIMIT = Limit(True, "", "adjtimex(2): TIME_ERROR means that the clock is not synchronised", "equal")  # noqa: FBT003


def judge(view: View) -> Outcome:
    """Warn on a machine whose kernel clock nobody disciplines; a guest's may be kept by its host."""
    unsynchronized = "not synchronised by this kernel's word"
    missing = unreadable(view, "clock.synchronized", "look at `timedatectl`")
    if missing is not None:
        return missing
    if view.snapshot.signal("clock.synchronized").value:
        return passed("the kernel's clock is synchronised", value=True, limit=_LIMIT)
    if "microsoft" in str(view.snapshot.signal("host.kernel").value).lower():
        return skipped(f"{unsynchronized}; WSL2's clock is the one of Windows", code="clock-sync.wsl")
    if view.snapshot.signal("container.runtime").value not in (None, "none"):
        text = f"{unsynchronized}; a container cannot see who keeps the host's clock"
        return skipped(text, code="clock-sync.in-container")
    text, fix = "the kernel's clock is not synchronised", "start chronyd or systemd-timesyncd"
    return warned(text, fix=fix, value=False, limit=_LIMIT, code="clock-sync.not-synchronized")
