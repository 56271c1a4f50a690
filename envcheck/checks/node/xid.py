"""The driver writes what goes wrong with a GPU into the kernel's log, as an Xid, and goes on.

The action is NVIDIA's catalogue's (xids.json), with the overrides and their reasons beside it; Xid 154 carries the
driver's own in its text.
"""

import collections
import json
import re
from pathlib import Path
from typing import Any

from envcheck import checks
from envcheck.checks import FAIL, PASS, WARN, Limit, Outcome, View, failed, passed, skipped, warned, worst
from envcheck.checks.gpu_readings import at, lost, place, slot, unreadable
from envcheck.checks.node import kernel_module, recovery_action
from envcheck.counting import counted
from envcheck.node import kernel_log

CHECK = checks.Check("the kernel's log has no GPU error that calls for action", "quick", 0.01)

CATALOGUE: dict[str, Any] = json.loads(Path(__file__).with_name("xids.json").read_text(encoding="utf-8"))
_ACTED = Limit(0, "Xids that call for action", CATALOGUE["source"], "at most")
_RECOVERY = 154
_DOUBLE_BIT = 48
_REMAPPED = {63: "its row was remapped", 64: "its row could NOT be remapped"}
# A channel was removed because of an earlier Xid, which the text names.
_REMOVED = 45
_CAUSE = re.compile(r"previous Xid (\d{1,3})\b")
_WILD = (13, 31)
_WILD_LIMIT = 5
_SHOWN = 60
_ACTION = re.compile(r"\bto\s+(?:0x[0-9a-fA-F]+\s*)?\(?([A-Za-z][^()]*)")


Event = dict[str, Any]


def judge(view: View) -> Outcome:
    """Fail on what calls for a reset or worse within a day; warn on what is older or asks for less."""
    listed = events(view, "kernel.xids")
    if isinstance(listed, Outcome):
        return listed
    places: dict[str, list[Event]] = collections.defaultdict(list)
    for event in listed:
        places[slot(event["bus_id"])].append(event)
    findings = [finding for xids in places.values() for finding in _of_gpu(view, xids)]
    acted = [finding for finding in findings if finding.status != PASS]
    total = sum(map(count, listed))
    noted = f"; {total} that call for nothing" if total else ""
    sound = passed(f"no such Xid {reach(view)}{noted}", value=0, unit="Xids", limit=_ACTED, xids=listed)
    return worst([*acted, *driver_failures(view), *suppressed(view)], sound)


def _of_gpu(view: View, xids: list[Event]) -> list[Outcome]:
    """Judge each kind of event of a GPU once, by its latest; 48 together with what became of its row."""
    by_age = sorted([*xids, *_causes(xids)], key=lambda x: -float(x["age"]))
    latest = {(int(x["code"]), str(x.get("instance", "")), _kind(x)): x for x in by_age}
    codes = {code for code, _, _ in latest}
    findings = [_judged(view, x, codes) for x in latest.values()]
    wild = sum(count(x) for x in xids if int(x["code"]) in _WILD)
    if wild >= _WILD_LIMIT:
        text = f"Xid 13 or 31 {wild} times on {by_age[-1]['bus_id']}: no longer only an application's fault"
        fix = "run the full level on this GPU; if it fails there, replace it"
        findings.append(_finding(view, by_age[-1], WARN, text, fix, code="xid.application-faults"))
    return findings


def _causes(xids: list[Event]) -> list[Event]:
    codes, causes = {int(xid["code"]) for xid in xids}, []
    for xid in xids:
        cause = _CAUSE.search(str(xid["text"])) if int(xid["code"]) == _REMOVED else None
        if cause and int(cause[1]) not in codes:
            causes.append({**xid, "code": int(cause[1]), "text": f"named by Xid {_REMOVED}"})
    return causes


def _kind(xid: Event) -> str:
    """Return what tells two errors of NVLink 5 with one code apart: only some of them are fatal."""
    code = int(xid["code"])
    return action(code, str(xid["text"]), CATALOGUE["nvlink5"]["ignored"]) if code in CODES else ""


def _judged(view: View, xid: Event, codes: set[int]) -> Outcome:
    code = int(xid["code"])
    if code == _RECOVERY:
        status, name, fix = _recovery(str(xid["text"]))
    else:
        row = CATALOGUE["xids"].get(str(code), {"name": "not in the catalogue", "action": "UNSTATED"})
        action = CATALOGUE["actions"][_kind(xid) or row["action"]]
        name, fix = row["name"].removeprefix("ROBUST_CHANNEL_"), action["fix"]
        status = CATALOGUE["overrides"].get(str(code), action)["status"]
    rows = [words for other, words in _REMAPPED.items() if code == _DOUBLE_BIT and other in codes]
    age, times = float(xid["age"]), count(xid)
    if status == FAIL and age > RECENT:
        status, fix = WARN, f"if nobody did so since: {fix}"
    where = " ".join(filter(None, (str(xid["bus_id"]), str(xid.get("instance", "")))))
    detail = [str(xid["text"])[:_SHOWN]] if code in CODES and xid["text"] else []
    text = ", ".join([f"Xid {code} ({name}) on {where}", *detail, *rows, *_often(times), ago(age)])
    return _finding(view, xid, status, text, fix, code=f"xid.{code}")


def _often(times: int) -> list[str]:
    return [f"{times} times"] if times > 1 else []


def _finding(view: View, xid: Event, status: str, text: str, fix: str, *, code: str) -> Outcome:
    bus, instance = xid["bus_id"], str(xid.get("instance", ""))
    culprit = " ".join(filter(None, (place(view, bus), instance and f"MIG {instance}")))
    about: dict[str, Any] = {"value": count(xid), "unit": "Xids", "limit": _ACTED, "culprit": culprit}
    return checks.Verdict(status)(text, fix=fix, code=code, gpus=at(view, [bus]), xids=[xid], **about)


def _recovery(text: str) -> tuple[str, str, str]:
    """Read the driver's own action off Xid 154; "None" is the word that all is well again."""
    match = _ACTION.search(text)
    if match is None:
        return WARN, text or "recovery action changed", "see `nvidia-smi -q` for the GPU recovery action"
    action = match[1].strip()
    if "imex" in action.lower():
        return WARN, f"recovery action: {action}", recovery_action.IMEX
    return (PASS if action.lower() == "none" else FAIL), f"recovery action: {action}", f"drain the node: {action}"


_LIMIT = Limit(0, "failures", "NVIDIA open-gpu-kernel-modules and Linux: messages about a GPU", "at most")


def driver_failures(view: View) -> list[Outcome]:
    """Fail on a failure within a day; warn on an older one, and where the GPU answers NVML after all."""
    failures = view.snapshot.signal("kernel.driver_failures").value or []
    # The driver gives up such a GPU a line later, and its probe routine without naming it: that is one failure.
    final = [failure for failure in failures if "explains" in kernel_log.FAILURES.get(failure["kind"], {})]
    unfit = kernel_module.unfit(view)
    explained = {*unfit, *(slot(failure["bus_id"]) for failure in final)}
    explained |= {slot("")} if explained else set()
    return [
        _driver_finding(view, failure)
        for failure in failures
        if not (failure["kind"] in kernel_module.TOLD and _elsewhere(view, str(failure["bus_id"]), unfit))
        and (failure["kind"] != "start" or slot(failure["bus_id"]) not in explained)
    ]


def _elsewhere(view: View, bus: str, unfit: dict[str, str]) -> bool:
    """Return whether kernel-module tells of that GPU, or it answers NVML: the log's word of its module is no news."""
    return slot(bus) in unfit or (not bus and bool(unfit)) or _answers(view, bus)


def _driver_finding(view: View, failure: dict[str, Any]) -> Outcome:
    kind, bus, age = str(failure["kind"]), str(failure["bus_id"]), float(failure["age"])
    row = kernel_log.FAILURES.get(kind, {"means": f"a GPU's failure ({kind})", "fix": "drain and reboot"})
    row, below = {**row, **(row.get("beside", {}) if _has_sibling(view, bus) else {})}, failure.get("gpus") or []
    # A GPU that answers NVML got over what is passing.
    over = "mild" in row or ("passing" in row and all(_answers(view, gpu) for gpu in below or [bus]))
    verdict = warned if over or age > RECENT else failed
    where = row["means"] + (
        "" if "node" in row and not bus else f" on {bus or 'an address that the log does not name'}"
    )
    where += f", the bridge above {' and '.join(below)}" if below else ""
    text, culprit = ", ".join([where, *_often(count(failure)), ago(age)]), place(view, bus) if bus else ""
    about: dict[str, Any] = {"value": count(failure), "limit": _LIMIT, "code": f"xid.{kind}", "culprit": culprit}
    return verdict(text, fix=row["fix"], gpus=at(view, below or ([bus] if bus else [])), log=[failure], **about)


def _has_sibling(view: View, bus: str) -> bool:
    """Return whether another GPU with the same PCI device id answers NVML (NVIDIA/aicr#1858)."""
    models = {slot(gpu["bus_id"]): gpu.get("device") for gpu in view.snapshot.signal("pci.gpus").value or []}
    return any(
        number and number == models.get(slot(bus)) and place != slot(bus) and _answers(view, place)
        for place, number in models.items()
    )


def _answers(view: View, bus: str) -> bool:
    places = {slot(gpu.signal("bus_id").value) for gpu in view.snapshot.gpus if not lost(gpu)}
    return slot(bus) in places if bus else bool(places)


CODES = range(144, 151)
_DETAILS = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_]*)(?:/[A-Z0-9_]+)*\s+(?P<severity>Non-?fatal|(?:Link )?Fatal)\b"
    r"(?:[^(]*\((?P<intrinfo>0x[0-9a-f]{1,8})\s+(?P<status>0x[0-9a-f]{1,8}))?",
    re.IGNORECASE,
)
_PROCESS = re.compile(r"^pid=[^,]*, name=[^,]*, ")


def action(code: int, text: str, ignored: list[dict[str, Any]]) -> str:
    """Return the name of the action in xids.json that such an error calls for; `ignored` are the rows of that file."""
    words = _DETAILS.search(_PROCESS.sub("", text))
    if words is None:
        return "WORKFLOW_NVLINK5_ERR"
    fatal = not words["severity"].lower().startswith("non")
    if any(_matches(row, code, words, fatal=fatal) for row in ignored):
        return "NVLINK5_IGNORED" if fatal else "IGNORE"
    return "NVLINK5_FATAL" if fatal else "WORKFLOW_NVLINK5_ERR"


def _matches(row: dict[str, Any], code: int, words: re.Match[str], *, fatal: bool) -> bool:
    if words["intrinfo"] is None or row["xid"] != code or words["unit"].upper() not in row["units"]:
        return False
    bits, status = f"{int(words['intrinfo'], 16):032b}", int(words["status"], 16)
    fits = any(all(want in ("-", bit) for want, bit in zip(layout, bits, strict=True)) for layout in row["intrinfo"])
    return fits and status == row["error_status"] and fatal == row["fatal"]


# An error that is older than this is reported, and judged no worse than a warning: the present has its own signals.
RECENT = 24 * 3600.0
_NOT_SHOWN = ("denied", "unsupported", "no-data")
_FIX = "run as root, or give the container the host's /dev/kmsg and CAP_SYSLOG"


def events(view: View, name: str) -> list[Event] | Outcome:
    """Return the events of `name`, or the outcome where there is no driver or no right to read the log."""
    driver, nvml = view.snapshot.signal("driver.kernel"), view.snapshot.signal("driver.library")
    if not view.snapshot.gpus and driver.value is None and nvml.value is None:
        return skipped(f"no NVIDIA driver here: {driver.reason}; {nvml.reason}", code="driver.none")
    found: list[Event] = view.snapshot.signal(name).value or []
    return found or unreadable(view, name, _FIX, _NOT_SHOWN) or found


def count(event: Event) -> int:
    """Return how often an event was seen: the collector keeps the latest of its kind, older ones kept each."""
    return int(event.get("count") or 1)


def suppressed(view: View) -> list[Outcome]:
    """Return a warning for each function of the driver whose messages the kernel left out: an Xid may be among them."""
    fix = "raise kernel.printk_ratelimit_burst, and look at `nvidia-smi -q` for what those messages would say"
    findings = []
    for gap in view.snapshot.signal("kernel.suppressed").value or []:
        name, number = str(gap["name"]), gap["count"]
        text = f"the kernel's log left out {counted(number, 'message')} of {name}, {ago(float(gap['age']))}"
        findings.append(warned(text, fix=fix, value=number, unit="messages", code="xid.suppressed", culprit=name))
    return findings


def ago(age: float) -> str:
    """Return an age as people say it."""
    hours = age / 3600
    return f"{hours / 24:.0f} days ago" if hours >= 48 else f"{hours:.1f} h ago"  # noqa: PLR2004 (two days)


def reach(view: View) -> str:
    """Return how far the log goes back: it is a ring, and a talkative kernel overwrites its beginning."""
    hours = view.snapshot.signal("kernel.log_hours").value
    return f"in the last {hours:.0f} h" if hours and hours >= 1 else "since boot"
