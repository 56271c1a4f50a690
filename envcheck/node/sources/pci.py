"""What stands between GPUs on the PCIe bus: the bridges above them with their ACS, the IOMMU, a hypervisor."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any, Final

from envcheck.node.parallel import Source
from envcheck.node.snapshot import Signal, unreadable
from envcheck.node.value_types import fields, flag, listed, mapped, maybe, text

_ADDRESS: Final = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NVIDIA, _DISPLAY = "0x10de", ("0x0300", "0x0302")
# PCI Express Base Specification: extended capabilities begin at 0x100; ACS is 0x000d, its control register at +6.
_EXTENDED, _ACS, _CONTROL = 0x100, 0x000D, 6
_BRIDGES: Final = listed(fields(bus_id=text, gpus=listed(text), enabled=listed(text)))
_UNITS: Final = fields(units=listed(text), cmdline=listed(text))
_BITS: Final = (
    "source validation",
    "translation blocking",
    "request redirect",
    "completion redirect",
    "upstream forwarding",
    "egress control",
    "direct translated",
)


def sources(root: Path) -> dict[str, Source]:
    """Return what reads pci.acs, pci.iommu, host.iommu and host.hypervisor."""
    bus = root / "sys/bus/pci/devices"
    return {
        "pci.acs": Source(_BRIDGES, lambda: _signal(bus, _bridges)),
        "pci.iommu": Source(mapped(maybe(text)), lambda: _signal(bus, _domains)),
        "host.iommu": Source(_UNITS, lambda: _iommu(root)),
        "host.hypervisor": Source(flag, lambda: _hypervisor(root)),
    }


def _signal(path: Path, read: Any) -> Signal:
    try:
        return Signal(read(path), source=str(path))
    except OSError as error:
        return unreadable(error, error.filename or path, source=str(path))


def _gpus(bus: Path) -> list[Path]:
    return [d for d in sorted(bus.iterdir()) if _word(d / "vendor") == _NVIDIA and _word(d / "class")[:6] in _DISPLAY]


def _word(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _bridges(bus: Path) -> list[dict[str, Any]]:
    """Return each bridge above a GPU: bus_id, the `gpus` below it, and what of ACS is `enabled` (nothing without ACS).

    Raises PermissionError where more than 64 bytes of configuration space are for root alone.
    """
    below: dict[str, list[str]] = {}
    for gpu in _gpus(bus):
        for part in gpu.resolve().parts:
            if _ADDRESS.fullmatch(part) and part != gpu.name:
                below.setdefault(part, []).append(gpu.name)
    return [
        {"bus_id": bridge, "gpus": gpus, "enabled": acs(_config(bus / bridge))}
        for bridge, gpus in sorted(below.items())
    ]


def _config(bridge: Path) -> bytes:
    content = (bridge / "config").read_bytes()
    if len(content) <= _EXTENDED:
        raise PermissionError(1, "only root may read more than its first 64 bytes", str(bridge / "config"))
    return content


def acs(config: bytes) -> list[str]:
    """Return what of Access Control Services is switched on in a bridge's configuration space."""
    at, seen = _EXTENDED, set()
    while at >= _EXTENDED and at not in seen and at + _CONTROL + 2 <= len(config):
        seen.add(at)
        [header] = struct.unpack_from("<I", config, at)
        if header & 0xFFFF == _ACS:
            [control] = struct.unpack_from("<H", config, at + _CONTROL)
            return [name for bit, name in enumerate(_BITS) if control >> bit & 1]
        at = header >> 20 & 0xFFC
    return []


def _domains(bus: Path) -> dict[str, str | None]:
    return {gpu.name: _domain(gpu) for gpu in _gpus(bus)}


def _domain(gpu: Path) -> str | None:
    """Return the type of a GPU's IOMMU group: "identity" passes through, "DMA" and "DMA-FQ" translate; None without."""
    return _word(gpu / "iommu_group/type") or None


def _iommu(root: Path) -> Signal:
    """Return the IOMMUs there are and the kernel's options about them."""
    path = root / "proc/cmdline"
    try:
        words = path.read_text(errors="replace").split()
    except OSError as error:
        return unreadable(error, path)
    units = root / "sys/class/iommu"
    names = sorted(unit.name for unit in units.iterdir()) if units.is_dir() else []
    return Signal({"units": names, "cmdline": [word for word in words if "iommu" in word]}, source=str(units))


def _hypervisor(root: Path) -> Signal:
    """Tell whether this is a virtual machine: x86 CPUs carry a flag for it, other kernels do not say."""
    path = root / "proc/cpuinfo"
    flags = next((line.split() for line in _word(path).splitlines() if line.startswith("flags")), None)
    if flags is None:
        return Signal(reason=f"{path} has no flags", why="no-data", source=str(path))
    return Signal("hypervisor" in flags, source=str(path))
