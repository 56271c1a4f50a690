"""The driver writes what goes wrong with a GPU into the kernel's log, as an Xid, and goes on.

Seen in the wild: nodes that ran for days after "GPU has fallen off the bus", double-bit errors nobody looked for, and
the opposite: nodes drained for an Xid 31 that was a user's own wild pointer. The action is NVIDIA's catalogue's
(xids.json), with the overrides and their reasons beside it; Xid 154 carries the driver's own in its text.
"""

from __future__ import annotations

import collections
import functools
import json
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from envcheck.checks import FAIL, PASS, WARN, Check, Limit, Outcome, View, failed, passed, warned
from envcheck.checks.node import _gpus, _log

CHECK = Check(promise="the kernel's log has no GPU error that calls for action", level="quick", seconds=0.01)

_FILE: Final = Path(__file__).with_name("xids.json")
_RECOVERY: Final = 154
_DOUBLE_BIT: Final = 48
_REMAPPED: Final = {63: "its row was remapped", 64: "its row could NOT be remapped"}
_WILD: Final = (13, 31)
_WILD_LIMIT: Final = 5
_ACTION: Final = re.compile(r"\bto 0x[0-9a-fA-F]+ \(([^)]+)\)")


class Finding(NamedTuple):
    """What one Xid of the GPU in the slot `bus` comes to."""

    bus: str
    status: str
    told: str
    fix: str


@functools.cache
def catalogue() -> dict[str, Any]:
    """Return the file of Xids."""
    data: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return data


def judge(view: View) -> Outcome:
    """Fail on what calls for a reset or worse within a day; warn on what is older or asks for less."""
    events = _log.events(view, "kernel.xids")
    if isinstance(events, Outcome):
        return events
    places: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for event in events:
        places[str(event["bus_id"])].append(event)
    findings = [finding for bus, xids in places.items() for finding in _of_gpu(bus, xids)]
    grave = [f for f in findings if f.status == FAIL]
    limit = Limit(0, "Xids that call for action", catalogue()["source"], "at most")
    acted = [f for f in (*grave, *findings) if f.status != PASS]
    if not acted:
        noted = f"; {len(events)} that an application brings about itself" if events else ""
        return passed(f"no such Xid {_log.reach(view)}{noted}", value=0, unit=limit.unit, limit=limit, xids=events)
    lines = list(dict.fromkeys(f.told for f in acted))
    told = "; ".join(lines[:3]) + (f"; {len(lines) - 3} more" if len(lines) > 3 else "")  # noqa: PLR2004
    gpus = _gpus.at(view, {f.bus for f in (grave or acted)})
    verdict = failed if grave else warned
    return verdict(told, fix=acted[0].fix, value=len(lines), unit=limit.unit, limit=limit, xids=events, gpus=gpus)


def _of_gpu(bus: str, xids: list[dict[str, Any]]) -> list[Finding]:
    """Judge each code of a GPU once, by its latest event; 48 together with what became of its row."""
    latest = {int(x["code"]): x for x in sorted(xids, key=lambda x: -float(x["age"]))}
    found = [_judged(bus, code, x, latest) for code, x in latest.items()]
    wild = sum(int(x["code"]) in _WILD for x in xids)
    if wild >= _WILD_LIMIT:
        told = f"Xid 13 or 31 {wild} times on {bus}: no longer only an application's fault"
        found.append(Finding(bus, WARN, told, "run the full level on this GPU; if it fails there, replace it"))
    return found


def _judged(bus: str, code: int, xid: dict[str, Any], latest: dict[int, dict[str, Any]]) -> Finding:
    if code == _RECOVERY:
        status, name, fix = _recovery(str(xid["text"]))
    else:
        row = catalogue()["xids"].get(str(code), {"name": "not in the catalogue", "action": "UNSTATED"})
        action = catalogue()["actions"][row["action"]]
        name, fix = row["name"].removeprefix("ROBUST_CHANNEL_"), action["fix"]
        status = catalogue()["overrides"].get(str(code), action)["status"]
    rows = [told for other, told in _REMAPPED.items() if code == _DOUBLE_BIT and other in latest]
    age = float(xid["age"])
    if status == FAIL and age > _log.RECENT:
        status, fix = WARN, f"if nobody did so since: {fix}"
    words = ", ".join([f"Xid {code} ({name}) on {bus}", *rows, _log.ago(age)])
    return Finding(bus, status, words, fix)


def _recovery(text: str) -> tuple[str, str, str]:
    """Read the driver's own action off Xid 154; "None" is the word that all is well again."""
    found = _ACTION.search(text)
    if found is None:
        return WARN, text or "recovery action changed", "see `nvidia-smi -q` for the GPU recovery action"
    action = found[1]
    return (PASS if action.lower() == "none" else FAIL), f"recovery action: {action}", f"drain the node: {action}"
