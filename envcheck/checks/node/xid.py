"""The driver writes what goes wrong with a GPU into the kernel's log, as an Xid, and goes on.

Seen in the wild: nodes that ran for days after "GPU has fallen off the bus", double-bit errors nobody looked for, and
the opposite: nodes drained for an Xid 31 that was a user's own wild pointer. The action is NVIDIA's catalogue's
(xids.json), with the overrides and their reasons beside it; Xid 154 carries the driver's own in its text.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import re
from pathlib import Path
from typing import Any, Final

from envcheck.checks import FAIL, PASS, WARN, Check, Limit, Outcome, View, passed, warned, worst
from envcheck.checks.node.support import driver_failures, gpu_readings, kernel_events, nvlink5_xids

CHECK = Check(promise="the kernel's log has no GPU error that calls for action", level="quick", seconds=0.01)

_FILE: Final = Path(__file__).with_name("xids.json")
_RECOVERY: Final = 154
_DOUBLE_BIT: Final = 48
_REMAPPED: Final = {63: "its row was remapped", 64: "its row could NOT be remapped"}
# A channel was removed because of an earlier Xid, which the text names.
_REMOVED: Final = 45
_CAUSE: Final = re.compile(r"previous Xid (\d{1,3})\b")
_WILD: Final = (13, 31)
_WILD_LIMIT: Final = 5
_SHOWN: Final = 60
_ACTION: Final = re.compile(r"\bto\s+(?:0x[0-9a-fA-F]+\s*)?\(?([A-Za-z][^()]*)")


Event = dict[str, Any]


@functools.cache
def catalogue() -> dict[str, Any]:
    """Return the file of Xids."""
    data: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return data


def judge(view: View) -> Outcome:
    """Fail on what calls for a reset or worse within a day; warn on what is older or asks for less."""
    events = kernel_events.events(view, "kernel.xids")
    if isinstance(events, Outcome):
        return events
    places: dict[str, list[Event]] = collections.defaultdict(list)
    for event in events:
        places[gpu_readings.slot(event["bus_id"])].append(event)
    findings = [finding for xids in places.values() for finding in _of_gpu(view, xids)]
    acted = [finding for finding in findings if finding.status != PASS]
    total = sum(map(kernel_events.count, events))
    noted = f"; {total} that call for nothing" if total else ""
    sound = passed(f"no such Xid {kernel_events.reach(view)}{noted}", value=0, unit="Xids", limit=_limit(), xids=events)
    return worst([*acted, *driver_failures.findings(view), *kernel_events.suppressed(view)], sound)


def _limit() -> Limit:
    return Limit(0, "Xids that call for action", catalogue()["source"], "at most")


def _of_gpu(view: View, xids: list[Event]) -> list[Outcome]:
    """Judge each kind of event of a GPU once, by its latest; 48 together with what became of its row."""
    by_age = sorted([*xids, *_causes(xids)], key=lambda x: -float(x["age"]))
    latest = {(int(x["code"]), str(x.get("instance", "")), _kind(x)): x for x in by_age}
    codes = {code for code, _, _ in latest}
    findings = [_judged(view, x, codes) for x in latest.values()]
    wild = sum(kernel_events.count(x) for x in xids if int(x["code"]) in _WILD)
    if wild >= _WILD_LIMIT:
        text = f"Xid 13 or 31 {wild} times on {by_age[-1]['bus_id']}: no longer only an application's fault"
        fix = "run the full level on this GPU; if it fails there, replace it"
        findings.append(_finding(view, by_age[-1], WARN, text, fix, code="xid.application-faults"))
    return findings


def _causes(xids: list[Event]) -> list[Event]:
    """Return the Xids that the log only names as the cause of another one: their own lines are gone."""
    codes, causes = {int(xid["code"]) for xid in xids}, []
    for xid in xids:
        cause = _CAUSE.search(str(xid["text"])) if int(xid["code"]) == _REMOVED else None
        if cause and int(cause[1]) not in codes:
            causes.append({**xid, "code": int(cause[1]), "text": f"named by Xid {_REMOVED}"})
    return causes


def _kind(xid: Event) -> str:
    """Return what tells two errors of NVLink 5 with one code apart: only some of them are fatal."""
    code = int(xid["code"])
    return (
        nvlink5_xids.action(code, str(xid["text"]), catalogue()["nvlink5"]["ignored"])
        if code in nvlink5_xids.CODES
        else ""
    )


def _judged(view: View, xid: Event, codes: set[int]) -> Outcome:
    code = int(xid["code"])
    if code == _RECOVERY:
        status, name, fix = _recovery(str(xid["text"]))
    else:
        row = catalogue()["xids"].get(str(code), {"name": "not in the catalogue", "action": "UNSTATED"})
        action = catalogue()["actions"][_kind(xid) or row["action"]]
        name, fix = row["name"].removeprefix("ROBUST_CHANNEL_"), action["fix"]
        status = catalogue()["overrides"].get(str(code), action)["status"]
    rows = [words for other, words in _REMAPPED.items() if code == _DOUBLE_BIT and other in codes]
    age, times = float(xid["age"]), kernel_events.count(xid)
    if status == FAIL and age > kernel_events.RECENT:
        status, fix = WARN, f"if nobody did so since: {fix}"
    place = " ".join(filter(None, (str(xid["bus_id"]), str(xid.get("instance", "")))))
    often = [f"{times} times"] if times > 1 else []
    text = ", ".join([f"Xid {code} ({name}) on {place}", *_detail(code, xid), *rows, *often, kernel_events.ago(age)])
    return _finding(view, xid, status, text, fix, code=f"xid.{code}")


def _detail(code: int, xid: Event) -> list[str]:
    return [str(xid["text"])[:_SHOWN]] if code in nvlink5_xids.CODES and xid["text"] else []


def _finding(view: View, xid: Event, status: str, text: str, fix: str, *, code: str) -> Outcome:
    bus, instance = xid["bus_id"], str(xid.get("instance", ""))
    verdict = warned(
        text,
        fix=fix,
        value=kernel_events.count(xid),
        unit="Xids",
        limit=_limit(),
        code=code,
        culprit=" ".join(filter(None, (gpu_readings.place(view, bus), instance and f"MIG {instance}"))),
        gpus=gpu_readings.at(view, [bus]),
        xids=[xid],
    )
    return dataclasses.replace(verdict, status=status)


def _recovery(text: str) -> tuple[str, str, str]:
    """Read the driver's own action off Xid 154; "None" is the word that all is well again."""
    match = _ACTION.search(text)
    if match is None:
        return WARN, text or "recovery action changed", "see `nvidia-smi -q` for the GPU recovery action"
    action = match[1].strip()
    return (PASS if action.lower() == "none" else FAIL), f"recovery action: {action}", f"drain the node: {action}"
