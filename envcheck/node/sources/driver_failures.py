"""What the kernel's log says of a GPU without an Xid: it could not be started, was lost, or its PCIe link broke."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, Protocol


class Line(Protocol):
    """One line of the log, `at` so many seconds after boot."""

    @property
    def at(self) -> float:
        """Return the seconds after boot; infinite where the line does not say when it was written."""

    @property
    def text(self) -> str:
        """Return the line's text."""


_BUS: Final = re.compile(
    r"(?<![\w:])(?:PCI:)?(?P<bus>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)", re.IGNORECASE
)
# Messages of NVIDIA's kernel module, and of Linux about a device that this module holds. Unverified: the forms are
# those of public bug reports; none was compared with the sources of every driver version.
_KINDS: Final = {
    kind: re.compile(pattern, re.IGNORECASE)
    for kind, pattern in {
        "power-cable": r"NVRM:.*\bdoes not have the necessary power cables connected",
        "start": r"NVRM:.*\b(?:RmInitAdapter|rm_init_adapter) failed|NVRM: The NVIDIA probe routine failed"
        r"|\bnvidia(?: \S+)?: probe (?:of \S+|with driver nvidia) failed with error",
        "memory-window": r"NVRM: BAR[0-9] is 0M",
        "power-state": r"\bnvidia \S+: .*\bpower state\b.*(?:inaccessible|D3cold to D0)",
        "lost": r"NVRM:.*\bNV_ERR_GPU_IS_LOST\b",
        "locked": r"NVRM:.*\bGPU is probably locked",
        "link-fatal": r"\bnvidia \S+: .*\bBus Error: severity=Uncorrect(?:ed|able) \(Fatal\)",
        "link-nonfatal": r"\bnvidia \S+: .*\bBus Error: severity=Uncorrect(?:ed|able) \(Non-?Fatal\)",
    }.items()
}
_TEXT: Final = 240


def about_a_gpu(text: str) -> bool:
    """Tell whether the line is one of these failures."""
    return _kind(text) is not None


def failures(records: Iterable[Line], uptime: float) -> list[dict[str, Any]]:
    """Return the latest failure of each kind and GPU: kind, bus_id ("" where unnamed), age (s), text and count."""
    latest: dict[tuple[str, str], dict[str, Any]] = {}
    for record in records:
        kind = _kind(record.text)
        if kind is None:
            continue
        bus = _BUS.search(record.text)
        key = (kind, bus["bus"].lower() if bus else "")
        count = latest.get(key, {"count": 0})["count"] + 1
        age = round(max(0.0, uptime - record.at), 1)
        latest[key] = {"kind": kind, "bus_id": key[1], "age": age, "text": record.text[:_TEXT], "count": count}
    return list(latest.values())


def _kind(text: str) -> str | None:
    if "NVRM:" not in text and "nvidia" not in text:
        return None
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(text)), None)
