"""What the kernel's log says of GPUs and switches, or why it may not be asked."""

from __future__ import annotations

from typing import Any, Final

from envcheck.checks import Outcome, View, skipped, undecided, warned
from envcheck.counting import counted

# An error that is older than this is reported, and judged no worse than a warning: the present has its own signals.
RECENT: Final = 24 * 3600.0
_NOT_SHOWN: Final = ("denied", "unsupported", "no-data")
_FIX: Final = "run as root, or give the container the host's /dev/kmsg and CAP_SYSLOG"


def events(view: View, name: str) -> list[dict[str, Any]] | Outcome:
    """Return the events of `name`, or the outcome where there is no driver or no right to read the log."""
    driver, nvml = view.snapshot.signal("driver.kernel"), view.snapshot.signal("driver.library")
    if not view.snapshot.gpus and driver.value is None and nvml.value is None:
        return skipped(f"no NVIDIA driver here: {driver.reason}; {nvml.reason}", code="driver.none")
    log = view.snapshot.signal(name)
    if log.why in _NOT_SHOWN:
        return skipped(f"the kernel's log may not be read ({log.reason}): {_FIX}", code="kernel-log.hidden")
    if not isinstance(log.value, list):
        return undecided(
            f"the kernel's log cannot be read: {log.reason or 'unexpected type or value'}",
            fix=_FIX,
            code="kernel-log.unread",
        )
    return log.value


def count(event: dict[str, Any]) -> int:
    """Return how often an event was seen: the collector keeps the latest of its kind, older ones kept each."""
    times = event.get("count", 1)
    return times if isinstance(times, int) and not isinstance(times, bool) and times > 0 else 1


def suppressed(view: View) -> list[Outcome]:
    """Return a warning for each function of the driver whose messages the kernel left out: an Xid may be among them."""
    gaps = view.snapshot.signal("kernel.suppressed").value
    return [
        warned(
            f"the kernel's log left out {counted(gap['count'], 'message')} of {gap['name']}, {ago(float(gap['age']))}",
            fix="raise kernel.printk_ratelimit_burst, and look at `nvidia-smi -q` for what those messages would say",
            value=gap["count"],
            unit="messages",
            code="xid.suppressed",
            culprit=str(gap["name"]),
        )
        for gap in (gaps if isinstance(gaps, list) else [])
    ]


def ago(age: float) -> str:
    """Return an age as people say it."""
    hours = age / 3600
    return f"{hours / 24:.0f} days ago" if hours >= 48 else f"{hours:.1f} h ago"  # noqa: PLR2004 (two days)


def reach(view: View) -> str:
    """Return how far the log goes back: it is a ring, and a talkative kernel overwrites its beginning."""
    hours = view.snapshot.signal("kernel.log_hours").value
    return f"in the last {hours:.0f} h" if isinstance(hours, (int, float)) and hours >= 1 else "since boot"
