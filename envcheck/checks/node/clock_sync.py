"""Nodes whose clocks differ write logs nobody can put in order, and certificates of tomorrow are not yet valid."""

from envcheck.checks import Check, Limit, Outcome, View, passed, skipped, undecided, warned

CHECK = Check("something keeps this node's clock", "quick", 0.01)

_LIMIT = Limit(True, "", "adjtimex(2): TIME_ERROR means that the clock is not synchronised", "equal")  # noqa: FBT003


def judge(view: View) -> Outcome:
    """Warn on a machine whose kernel clock nobody disciplines; a guest's may be kept by its host."""
    signal, unsynchronized = view.snapshot.signal("clock.synchronized"), "not synchronised by this kernel's word"
    if signal.why in ("unsupported", "denied"):
        text = f"this sandbox does not let the kernel's clock be asked ({signal.reason})"
        return skipped(text, code="clock-sync.hidden")
    if signal.reason is not None:
        return undecided(f"clock.synchronized: {signal.reason}", fix="look at `timedatectl`", code="clock-sync.unread")
    if signal.value:
        return passed("the kernel's clock is synchronised", value=True, limit=_LIMIT)
    if "microsoft" in str(view.snapshot.signal("host.kernel").value).lower():
        return skipped(f"{unsynchronized}; WSL2's clock is the one of Windows", code="clock-sync.wsl")
    if view.snapshot.signal("container.runtime").value not in (None, "none"):
        text = f"{unsynchronized}; a container cannot see who keeps the host's clock"
        return skipped(text, code="clock-sync.in-container")
    text, fix = "the kernel's clock is not synchronised", "start chronyd or systemd-timesyncd"
    return warned(text, fix=fix, value=False, limit=_LIMIT, code="clock-sync.not-synchronized")
