"""The kernel's log since boot, as /dev/kmsg gives it: what the NVIDIA driver wrote there of GPUs and switches."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from envcheck.node.snapshot import Signal

_XID: Final = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\)[^:]*: (?P<code>\d+)(?:,\s*(?P<text>.*))?")
_SXID: Final = re.compile(r"SXid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\)[^:]*: (?P<code>\d+)(?:,\s*(?P<text>.*))?")
# Newer drivers write this one without its number; NVIDIA's catalogue calls it 79.
_FALLEN: Final = re.compile(
    r"NVRM:.*?GPU (?P<bus>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})[^ ]* .*fallen off the bus"
)
_FALLEN_OFF: Final = 79
_TEXT: Final = 160
_RECORD: Final = 8192
_SECONDS: Final = 2.0
_MOST: Final = 1000
NAMES: Final = ("kernel.xids", "kernel.sxids", "kernel.log_hours")


class Record(NamedTuple):
    """One line of the log, `at` so many seconds after boot."""

    at: float
    text: str


def signals(root: Path) -> dict[str, Signal]:
    """Read the log once: kernel.xids and kernel.sxids as [{code, bus_id, age (s), text}], kernel.log_hours covered.

    Who may not read it (a container without /dev/kmsg, a user without CAP_SYSLOG) has that as the reason.
    """
    path = root / "dev/kmsg"
    try:
        uptime = float((root / "proc/uptime").read_text().split()[0])
        records = list(parse(_read(path)))
    except OSError as error:
        reason = f"/{path.relative_to(root)}: {error.strerror}"
        return {name: Signal(reason=reason, source="/dev/kmsg") for name in NAMES}
    except (ValueError, IndexError):
        return {name: Signal(reason="/proc/uptime is unreadable", source="/dev/kmsg") for name in NAMES}
    if not records:
        return {name: Signal(reason="/dev/kmsg is empty", source="/dev/kmsg") for name in NAMES}
    return {
        "kernel.xids": Signal(events(records, uptime, "NVRM"), source="/dev/kmsg"),
        "kernel.sxids": Signal(events(records, uptime, "SXid"), source="/dev/kmsg"),
        "kernel.log_hours": Signal(round((uptime - records[0].at) / 3600, 2), unit="h", source="/dev/kmsg"),
    }


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


def parse(chunks: Iterable[bytes]) -> Iterable[Record]:
    """Yield the lines of "priority,sequence,microseconds,flags;text" records; anything else is left out."""
    for line in b"".join(chunks).decode(errors="replace").splitlines():
        head, found, text = line.partition(";")
        fields = head.split(",")
        if found and len(fields) >= 4 and fields[2].isdecimal():  # noqa: PLR2004 (the fields of a record)
            yield Record(int(fields[2]) / 1e6, text)


def events(records: Iterable[Record], uptime: float, kind: str) -> list[dict[str, Any]]:
    """Return the Xids ("NVRM") or SXids ("SXid") of the log, oldest first, the latest thousand of them."""
    found = [event for record in records if kind in record.text and (event := _event(record, uptime, kind))]
    return found[-_MOST:]


def _event(record: Record, uptime: float, kind: str) -> dict[str, Any] | None:
    match = (_XID if kind == "NVRM" else _SXID).search(record.text)
    age = round(max(0.0, uptime - record.at), 1)
    if match:
        said = {"code": int(match["code"]), "text": (match["text"] or "").strip()[:_TEXT]}
        return {**said, "bus_id": match["bus"].lower(), "age": age}
    fallen = _FALLEN.search(record.text) if kind == "NVRM" else None
    if fallen is None:
        return None
    return {"code": _FALLEN_OFF, "text": record.text[:_TEXT], "bus_id": fallen["bus"].lower(), "age": age}
