"""InfiniBand and RoCE ports as the kernel shows them under /sys/class/infiniband. Nothing that names a port's owner."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from envcheck.node.parallel import Source
from envcheck.node.snapshot import Signal, unreadable
from envcheck.node.value_types import fields, listed, maybe, number, text

_RATE: Final = re.compile(r"^(\d+(?:\.\d+)?) Gb/sec")
_PORTS: Final = listed(fields(device=text, layer=maybe(text), state=maybe(text), rate=maybe(number)))
_ADDRESS: Final = re.compile(r"[0-9a-fA-F]{4,}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_NO_GID: Final = "0000:0000:0000:0000:0000:0000:0000:0000"
# What counts trouble; traffic is left out. Cumulative since the driver's load, or since somebody cleared them.
_COUNTERS: Final = (
    "link_downed",
    "link_error_recovery",
    "symbol_error",
    "port_rcv_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)


def sources(root: Path) -> dict[str, Source]:
    """Return what reads ib.ports."""
    return {"ib.ports": Source(_PORTS, lambda: ports(root))}


def ports(root: Path) -> Signal:
    """Read ib.ports: an empty list where the kernel has no such device, a reason where /sys cannot be read."""
    classes = root / "sys/class"
    devices = classes / "infiniband"
    source = str(devices)
    if not devices.is_dir() and classes.is_dir():
        return Signal([], source=source)
    try:
        return Signal([_port(device, port) for device, port in _ports(devices)], source=source)
    except OSError as error:
        return unreadable(error, source)


def _ports(devices: Path) -> Iterator[tuple[Path, Path]]:
    for device in sorted(devices.iterdir()):
        # A virtual function on its own host is somebody's guest's, and down until that guest runs.
        if (device / "ports").is_dir() and not (device / "device/physfn").exists():
            yield from ((device, port) for port in sorted((device / "ports").iterdir()))


def _port(device: Path, port: Path) -> dict[str, Any]:
    """Return one port; what a driver does not tell is None, and `rate` is in Gb/s."""
    rate = _RATE.match(_word(port / "rate") or "")
    return {
        "device": device.name,
        "slot": _slot(device),
        "port": int(port.name) if port.name.isdecimal() else port.name,
        "type": _after_colon(_word(device / "node_type")),
        "model": _word(device / "board_id") or _word(device / "hca_type"),
        "firmware": _word(device / "fw_ver"),
        "layer": _word(port / "link_layer"),
        "state": _after_colon(_word(port / "state")),
        "physical": _after_colon(_word(port / "phys_state")),
        "rate": float(rate[1]) if rate else None,
        "gids": _gids(port),
        "counters": {name: _number(port / "counters" / name) for name in _COUNTERS},
    }


def _slot(device: Path) -> str | None:
    """Return the card's place on the PCI bus without the function: the ports of one card are functions of one slot."""
    place = (device / "device").resolve().name
    return place.partition(".")[0].lower() if _ADDRESS.fullmatch(place) else None


def _gids(port: Path) -> dict[str, int]:
    """Count the GIDs there are, by type ("IB/RoCE v1", "RoCE v2"); an empty place of the table reads as zeros."""
    gids: dict[str, int] = {}
    table = port / "gids"
    names = sorted(path.name for path in table.iterdir()) if table.is_dir() else []
    for name in names:
        if (_word(table / name) or _NO_GID) != _NO_GID:
            kind = _word(port / "gid_attrs/types" / name) or "untyped"
            gids[kind] = gids.get(kind, 0) + 1
    return gids


def _after_colon(text: str | None) -> str | None:
    """Return "ACTIVE" of "4: ACTIVE"."""
    return text.rpartition(":")[2].strip() if text else None


def _number(path: Path) -> int | None:
    text = _word(path) or ""
    return int(text) if text.isdecimal() else None


def _word(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None
