"""An NVSwitch has its own errors, SXids, and a fatal one takes every GPU behind it along.

Whether one is fatal stands in its own text; a few are fatal to the whole fabric whatever they say.
"""

import re
from typing import Any

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, warned, worst
from envcheck.checks.node.xid import RECENT, ago, count, events, reach

CHECK = Check("the kernel's log has no NVSwitch error that calls for action", "quick", 0.01)

_SOURCE = "NVIDIA Fabric Manager user guide, appendix D: NVSwitch SXid errors (always fatal: D.6)"
_ALWAYS_FATAL = (10003,)
# D.4: single-bit errors that the switch has corrected, and 22013, a link's request that "can be safely ignored".
_HARMLESS = frozenset(
    {11012, 11021, 11022, 11023, 12021, 12023, 15008, 15011, 19049, 19055, 19057, 19059, 19062, 19065, 19068, 19071}
    | {22013, 24001, 24002, 24003}
)
_LIMIT = Limit(0, "SXids that call for action", _SOURCE, "at most")
# The word by itself: "Non-fatal" and "nonfatal" are the opposite. A second line says it as a number
# (nvswitch_error_severity_type in open-gpu-kernel-modules: 1 is fatal).
_FATAL = re.compile(r"(?<!non)(?<!non[- ])\bfatal\b|\bseverity 1\b")
_WATCH = "watch it; if NCCL hangs or slows down: "
_RESET = "drain the node, reset all GPUs together and restart the fabric manager; reboot if it comes back"


def judge(view: View) -> Outcome:
    """Fail on a fatal SXid within a day; warn on an older one, and on what is neither fatal nor corrected."""
    listed = events(view, "kernel.sxids")
    if isinstance(listed, Outcome):
        return listed
    acted = [event for event in listed if _fatal(event) or int(event["code"]) not in _HARMLESS]
    latest = {(e["bus_id"], int(e["code"]), _fatal(e)): e for e in sorted(acted, key=lambda e: -float(e["age"]))}
    noted = f"; {sum(map(count, listed))} corrected or harmless" if listed else ""
    sound = passed(f"no such SXid {reach(view)}{noted}", value=0, limit=_LIMIT)
    return worst([_finding(event) for event in latest.values()], sound)


def _finding(event: dict[str, Any]) -> Outcome:
    age, fatal, times = float(event["age"]), _fatal(event), count(event)
    verdict = failed if fatal and age <= RECENT else warned
    often = f", {times} times" if times > 1 else ""
    text, code = f"SXid {event['code']} on {event['bus_id']}{often}, {ago(age)}", f"sxid.{event['code']}"
    fix, culprit = (_RESET if fatal else f"{_WATCH}{_RESET}"), f"NVSwitch {event['bus_id']}"
    return verdict(text, fix=fix, value=times, limit=_LIMIT, code=code, culprit=culprit, sxids=[event])


def _fatal(event: dict[str, Any]) -> bool:
    return int(event["code"]) in _ALWAYS_FATAL or bool(_FATAL.search(str(event["text"]).lower()))
