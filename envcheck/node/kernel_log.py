"""The kernel's log since boot, as /dev/kmsg gives it: what the NVIDIA driver wrote there of GPUs and switches."""

import errno
import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from envcheck.node.signal_source import fields, listed, number, string, whole
from envcheck.node.snapshot import Signal, unreadable

_FAILED_BUS = re.compile(
    r"(?<![\w:])(?:PCI:)?(?P<bus>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)", re.IGNORECASE
)
# Messages of NVIDIA's kernel module, and of Linux about a device that this module holds. Unverified: the forms are
# those of public bug reports; none was compared with the sources of every driver version.
FAILURES: dict[str, Any] = json.loads(Path(__file__).with_name("driver_failures.json").read_text(encoding="utf-8"))
_KINDS = {kind: re.compile(row["pattern"], re.IGNORECASE) for kind, row in FAILURES.items()}
# "PCI:0000:01:00" of the GPU, and on one in MIG mode " GPU-I:05 GPU-CI:00" of its instance (open-gpu-kernel-modules,
# kernel_rc.c: XID_PRINT_WITH_ATTR); old drivers leave out "PCI:" or the domain.
_PLACE = r"Xid\s*\((?:PCI:)?(?P<bus>[0-9a-fA-F:.]{1,24})(?P<instance>[^)]{0,80})\)"
_CODE = r"[^:]{0,80}:\s*(?P<code>[0-9]{1,9})(?:,\s*(?P<text>.*))?"
_XID = re.compile(rf"NVRM:\s*{_PLACE}{_CODE}")
_SXID = re.compile(rf"S{_PLACE}{_CODE}")
# Newer drivers write this one without its number, which is 79, and over three lines, of which the first names the GPU.
_BUS = r"(?P<bus>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?"
_NAMED = re.compile(rf"NVRM:.*?GPU (?:at )?(?:PCI:)?{_BUS}\b")
_FALLEN_OFF = 79
# rsyslog folds equal lines; the kernel counts what its rate limit left out, by the function that wrote.
_REPEATED = re.compile(r"message repeated ([0-9]{1,9}) times: \[")
_SUPPRESSED = re.compile(
    r"(?P<name>[\w.-]+): (?P<count>[0-9]{1,9}) (?:callbacks|messages|output lines) suppressed", re.IGNORECASE
)
_MINE = re.compile(r"nv(?!me)|uvm|rm_|os_|_*ratelimit$|printk$", re.IGNORECASE)
_NVLINK5 = range(144, 151)
_SEVERITY = re.compile(r"[\w/]*\s*\b(?:non-?)?fatal\b|\bseverity \d", re.IGNORECASE)
_REGISTERS = re.compile(r"\((0x[0-9a-f]{1,8}) (0x[0-9a-f]{1,8})", re.IGNORECASE)
_CAUSE = re.compile(r"caused by previous Xid (\d{1,3})")
_SUBCODE = 0x3F << 20
_TEXT = 240
_FIRST_SXID = 10000
# An error of a switch has up to three lines: the second one has its severity as a number (1 is fatal), the third one
# registers. They are no errors of their own.
_ADDED = re.compile(r"severity (?P<severity>\d)|data \{", re.IGNORECASE)
_RECORD = 8192
_SECONDS = 2.0
_EVENTS = listed(fields(code=whole, age=number, bus_id=string, text=string))
TYPES = {
    "kernel.xids": _EVENTS,
    "kernel.sxids": _EVENTS,
    "kernel.suppressed": listed(fields(name=string, count=whole, age=number)),
    "kernel.driver_failures": listed(fields(kind=string, bus_id=string, age=number, text=string, count=whole)),
    "kernel.log_hours": number,
}


# "priority,sequence,microseconds,flags;text" of the device, "[ seconds] text" of a file that dmesg wrote there.
_LINE = re.compile(r"\d+,\d+,(?P<micro>\d{1,18}),[^;]*;(?P<text>.*)|\[ *(?P<seconds>\d{1,12}\.\d{1,9})\] (?P<plain>.*)")


class LogRecord(NamedTuple):
    """One line of the log, `at` so many seconds after boot."""

    at: float
    text: str


def failures(records: Iterable[LogRecord], uptime: float, above: Mapping[str, list[str]]) -> list[dict[str, Any]]:
    """Return the latest failure of each kind and GPU, or bridge above `gpus`; bus_id is "" where unnamed, age in s."""
    latest: dict[tuple[str, str], dict[str, Any]] = {}
    for record in records:
        bus = _FAILED_BUS.search(record.text)
        place = bus["bus"].lower() if bus else ""
        if not ("NVRM" in record.text or "nvidia" in record.text or place in above):
            continue
        kind = next((kind for kind, pattern in _KINDS.items() if pattern.search(record.text)), None)
        if kind is not None:
            count = latest.get((kind, place), {"count": 0})["count"] + 1
            told = {"age": _age(record, uptime), "text": record.text[:_TEXT], "count": count}
            latest[kind, place] = {"kind": kind, "bus_id": place, **told, "gpus": above.get(place, [])}
    return list(latest.values())


def signals(root: Path, above: Mapping[str, list[str]]) -> dict[str, Signal]:
    """Read the log once; who may not (a container without /dev/kmsg, no CAP_SYSLOG) has that as the reason."""
    path = root / "dev/kmsg"
    try:
        uptime = float((root / "proc/uptime").read_text().split()[0])
        records = list(parse(_read(path)))
    except OSError as error:
        return dict.fromkeys(TYPES, unreadable(error, f"/{path.relative_to(root)}", source="/dev/kmsg"))
    except (ValueError, IndexError):
        return dict.fromkeys(TYPES, Signal(reason="/proc/uptime is unreadable", why="failed", source="/dev/kmsg"))
    if not records:
        return dict.fromkeys(TYPES, Signal(reason="/dev/kmsg is empty", why="no-data", source="/dev/kmsg"))
    values = {
        "kernel.xids": events(records, uptime, "NVRM"),
        "kernel.sxids": events(records, uptime, "SXid"),
        "kernel.suppressed": suppressed(records, uptime),
        "kernel.driver_failures": failures(records, uptime, above),
        "kernel.log_hours": round(_age(records[0], uptime) / 3600, 2),
    }
    units = {"kernel.log_hours": "h"}
    return {name: Signal(value, unit=units.get(name), source="/dev/kmsg") for name, value in values.items()}


def _read(path: Path) -> Iterable[bytes]:
    """Yield the log's records until its end; the device gives one a read, an ordinary file what fits."""
    deadline = time.monotonic() + _SECONDS
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while time.monotonic() < deadline:
            try:
                record = os.read(handle, _RECORD)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.EPIPE:  # a record was overwritten while it was read: the next one is whole
                    raise
                continue
            if not record:
                return
            yield record
        message = f"took longer than {_SECONDS:g} s to read"
        raise TimeoutError(errno.ETIMEDOUT, message)
    finally:
        os.close(handle)


def parse(chunks: Iterable[bytes]) -> Iterable[LogRecord]:
    """Yield the lines of the log, as the device gives them or as dmesg writes them."""
    for line in b"".join(chunks).decode(errors="replace").splitlines():
        if record := _LINE.fullmatch(line):
            at = int(record["micro"]) / 1e6 if record["micro"] else float(record["seconds"])
            yield LogRecord(at, record["text"] or record["plain"] or "")


def events(records: Iterable[LogRecord], uptime: float, kind: str) -> list[dict[str, Any]]:
    """Return the Xids ("NVRM") or SXids ("SXid") of the log: the latest of each GPU and code, with its `count`.

    So a flood of one code leaves the others in place. Instances of MIG, and errors of NVLink that differ in their
    severity, are kept apart.
    """
    latest: dict[tuple[Any, ...], dict[str, Any]] = {}
    named = ""
    for record in records:
        if kind not in record.text:
            continue
        place = _NAMED.search(record.text)
        named = _full(place["bus"]) if place else named
        event = _event(record, uptime, kind, named)
        if event is not None:
            key = _key(event)
            latest[key] = {**event, "count": latest.pop(key, {"count": 0})["count"] + event["count"]}
    return _complete_events(list(latest.values()))


def _complete_events(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out what only adds to a switch's error, but keep a fatal severity whose first line is gone."""
    added = [(event, _ADDED.match(event["text"]), (event["bus_id"], event["code"])) for event in events]
    told = {key for _, line, key in added if line is None}
    words = ((key, _SEVERITY.search(event["text"])) for event, line, key in added if line is None)
    fatal = {key for key, word in words if word and "non" not in word[0].lower()}
    return [event for event, line, key in added if not line or key not in (fatal if line["severity"] == "1" else told)]


def _key(event: dict[str, Any]) -> tuple[Any, ...]:
    key = (event["bus_id"].partition(".")[0], event.get("instance", ""), event["code"])
    if event["code"] not in _NVLINK5 and event["code"] < _FIRST_SXID:
        cause = _CAUSE.search(event["text"])
        return (*key, cause[1]) if cause else key
    words, registers = _SEVERITY.search(event["text"]), _REGISTERS.search(event["text"])
    sub = (int(registers[1], 16) & _SUBCODE, int(registers[2], 16)) if registers else ()
    return (*key, words[0].lower() if words else "", *sub)


def _full(bus: str) -> str:
    """Return an address with its domain, which old drivers leave out."""
    return (bus if bus.count(":") > 1 else f"0000:{bus}").lower()


def suppressed(records: Iterable[LogRecord], uptime: float) -> list[dict[str, Any]]:
    """Return what the kernel's rate limit left out of the driver's messages: name of the function, count, age (s)."""
    gaps: dict[str, dict[str, Any]] = {}
    for record in records:
        match = _SUPPRESSED.search(record.text)
        if match and (_MINE.match(match["name"]) or "NVRM" in record.text):
            count = gaps.get(match["name"], {"count": 0})["count"] + int(match["count"])
            gaps[match["name"]] = {"name": match["name"], "count": count, "age": _age(record, uptime)}
    return list(gaps.values())


def _age(record: LogRecord, uptime: float) -> float:
    return round(max(0.0, uptime - record.at), 1)


def _event(record: LogRecord, uptime: float, kind: str, named: str) -> dict[str, Any] | None:
    match = (_XID if kind == "NVRM" else _SXID).search(record.text)
    repeated = _REPEATED.search(record.text)
    base = {"age": _age(record, uptime), "count": int(repeated[1]) if repeated else 1}
    if match:
        text, instance = (match["text"] or "").strip()[:_TEXT], match["instance"].strip()
        bus = _full(match["bus"]) if kind == "NVRM" else match["bus"].lower()
        event = {"code": int(match["code"]), "text": text, "bus_id": bus, **base}
        return {**event, "instance": instance} if instance else event
    if kind != "NVRM" or "fallen off the bus" not in record.text or not named:
        return None
    return {"code": _FALLEN_OFF, "text": record.text[:_TEXT], "bus_id": named, **base}
