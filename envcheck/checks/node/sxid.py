"""An NVSwitch has its own errors, SXids, and a fatal one takes every GPU behind it along.

Seen in the wild: NCCL hangs on eight healthy GPUs, with one "SXid …, Fatal" in the kernel's log. Whether one is fatal
stands in its own text; a few are fatal to the whole fabric whatever they say.
"""

from __future__ import annotations

from typing import Any, Final

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, warned
from envcheck.checks.node import _log

CHECK = Check(promise="the kernel's log has no NVSwitch error that calls for action", level="quick", seconds=0.01)

_SOURCE: Final = "NVIDIA Fabric Manager user guide, appendix D: NVSwitch SXid errors (always fatal: D.6)"
_ALWAYS_FATAL: Final = (10003,)
# Corrected single-bit errors: the switch has dealt with them.
_CORRECTED: Final = (11012, 11021, 11022, 11023, 12021, 12023)
_RESET: Final = "drain the node, reset all GPUs together and restart the fabric manager; reboot if it comes back"


def judge(view: View) -> Outcome:
    """Fail on a fatal SXid within a day; warn on an older one, and on what is neither fatal nor corrected."""
    events = _log.events(view, "kernel.sxids")
    if isinstance(events, Outcome):
        return events
    limit = Limit(0, "SXids that call for action", _SOURCE, "at most")
    acted = [e for e in events if int(e["code"]) not in _CORRECTED]
    fatal = [e for e in acted if _fatal(e) and float(e["age"]) <= _log.RECENT]
    if not acted:
        noted = f"; {len(events)} corrected" if events else ""
        return passed(f"no such SXid {_log.reach(view)}{noted}", value=0, unit=limit.unit, limit=limit)
    shown = fatal or acted
    told = "; ".join(dict.fromkeys(f"SXid {e['code']} on {e['bus_id']}, {_log.ago(float(e['age']))}" for e in shown))
    verdict = failed if fatal else warned
    fix = _RESET if any(_fatal(e) for e in shown) else "watch it; if NCCL hangs or slows down: " + _RESET
    return verdict(told, fix=fix, value=len(shown), unit=limit.unit, limit=limit, sxids=events)


def _fatal(event: dict[str, Any]) -> bool:
    text = str(event["text"]).lower()
    return int(event["code"]) in _ALWAYS_FATAL or ("fatal" in text and "non-fatal" not in text)
