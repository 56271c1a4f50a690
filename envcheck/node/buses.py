"""What GPUs are connected by: PCIe bridges with their ACS, the IOMMU, InfiniBand and RoCE ports.

Nothing that names a port's owner is read.
"""

import re
import struct
from pathlib import Path
from typing import Any

from envcheck.node.signal_source import Source, fields, index, listed, mapped, maybe, number, text, whole, word

_NVIDIA, _DISPLAY = "0x10de", ("0x0300", "0x0302")
# PCI Express Base Specification: extended capabilities begin at 0x100; ACS is 0x000d, its control register at +6.
# A conventional bridge, as virtual machines have them, has no such: 256 bytes are all of it, and 64 are for everybody.
_EXTENDED, _ACS, _CONTROL = 0x100, 0x000D, 6
_BRIDGES = listed(fields(bus_id=text, gpus=listed(text), enabled=listed(text)))
_BUS = listed(fields(bus_id=text, driver=maybe(text), numa_node=maybe(index), aer=mapped(maybe(whole))))
_AER = ("fatal", "nonfatal", "correctable")
_BITS = (
    "source validation",
    "translation blocking",
    "request redirect",
    "completion redirect",
    "upstream forwarding",
    "egress control",
    "direct translated",
)
_RATE = re.compile(r"^(\d+(?:\.\d+)?) Gb/sec")
_PORTS = listed(fields(device=text, layer=maybe(text), state=maybe(text), rate=maybe(number)))
_ADDRESS = re.compile(r"[0-9a-fA-F]{4,}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
# What counts trouble; traffic is left out. Cumulative since the driver's load, or since somebody cleared them.
_COUNTERS = (
    *("link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors", "port_xmit_discards"),
    *("local_link_integrity_errors", "excessive_buffer_overrun_errors"),
)


def pci_sources(root: Path) -> dict[str, Source]:
    """Return what reads pci.gpus, pci.acs and pci.iommu ("identity" passes through, "DMA" and "DMA-FQ" translate)."""
    bus = root / "sys/bus/pci/devices"

    def iommu() -> dict[str, str | None]:
        return {gpu.name: word(gpu / "iommu_group/type") or None for gpu in _gpus(bus)}

    return {
        "pci.gpus": Source(_BUS, lambda: [_gpu(gpu) for gpu in _gpus(bus)], bus),
        "pci.acs": Source(_BRIDGES, lambda: _bridges(bus), bus),
        "pci.iommu": Source(mapped(maybe(text)), iommu, bus),
    }


def _gpus(bus: Path) -> list[Path]:
    """Return the GPUs, without the virtual functions that a vGPU host makes of them (harvester/harvester#6487)."""
    nvidia = [d for d in sorted(bus.iterdir()) if word(d / "vendor") == _NVIDIA and not (d / "physfn").exists()]
    return [d for d in nvidia if (word(d / "class") or "").startswith(_DISPLAY)]


def _gpu(device: Path) -> dict[str, Any]:
    """Return a GPU on the bus: bus_id, device (an id), driver, numa_node and, where the kernel counts, AER errors."""
    driver, numa = device / "driver", word(device / "numa_node")
    return {
        "bus_id": device.name.lower(),
        "device": word(device / "device"),
        "driver": driver.resolve().name if driver.exists() else None,
        "numa_node": int(numa) if numa and numa.lstrip("-").isdecimal() else None,
        "aer": {kind: aer_total(word(device / f"aer_dev_{kind}") or "") for kind in _AER},
    }


def aer_total(text: str) -> int | None:
    """Read the TOTAL line of aer_dev_fatal and its like; None where the kernel does not count."""
    words = next((line.split() for line in reversed(text.splitlines()) if line.startswith("TOTAL")), [])
    return int(words[1]) if len(words) > 1 and words[1].isdecimal() else None


def _bridges(bus: Path) -> list[dict[str, Any]]:
    """Return each bridge above a GPU: bus_id, `gpus` below it, and what of ACS is `enabled`; root alone may read it."""
    below = sorted(above(bus).items())
    return [{"bus_id": bridge, "gpus": gpus, "enabled": acs(_config(bus / bridge))} for bridge, gpus in below]


def above(bus: Path) -> dict[str, list[str]]:
    """Return the GPUs below each bridge, by address, without those that are for guests and never answer here."""
    below: dict[str, list[str]] = {}
    for gpu in _gpus(bus):
        if "vfio" in (gpu / "driver").resolve().name:
            continue
        for part in gpu.resolve().parts:
            if _ADDRESS.fullmatch(part) and part != gpu.name:
                below.setdefault(part, []).append(gpu.name)
    return below


def _config(bridge: Path) -> bytes:
    content = (bridge / "config").read_bytes()
    if len(content) < _EXTENDED:
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


def infiniband_sources(root: Path) -> dict[str, Source]:
    """Return what reads ib.ports, and the addresses of cards that their driver holds and shows nothing of."""
    place, bus = root / "sys/class/infiniband", root / "sys/bus/pci/devices"
    return {
        "ib.ports": Source(_PORTS, lambda: ports(place), place),
        "ib.torn_down": Source(listed(text), lambda: [d.name.lower() for d in sorted(bus.iterdir()) if _dead(d)], bus),
    }


def _dead(device: Path) -> bool:
    """Return whether it is a whole card of mlx5_core's that has neither ports nor an interface; bridges have none."""
    own = (device / "driver").resolve().name == "mlx5_core" and not (device / "physfn").exists()
    shown = [*device.glob("infiniband"), *device.glob("net"), *device.glob("mlx5_core.rdma.*")] if own else []
    return own and not shown and (word(device / "class") or "").startswith("0x02")


def ports(devices: Path) -> list[dict[str, Any]]:
    """Return the ports, none where the kernel has no such device. Raises OSError where /sys cannot be read."""
    if not devices.is_dir() and devices.parent.is_dir():
        return []
    # A virtual function on its own host is somebody's guest's, and down until that guest runs.
    own = [device for device in sorted(devices.iterdir()) if not (device / "device/physfn").exists()]
    own = [device for device in own if not _manages_switches(device)]
    return [_port(device, port) for device in own for port in sorted(device.glob("ports/*"))]


def _manages_switches(device: Path) -> bool:
    """Return whether this is the bridge of NVLink 5 to its switches, and no network: root may read that off its VPD."""
    try:
        return b"SW_MNG" in (device / "device/vpd").read_bytes()
    except OSError:
        return False


def _port(device: Path, port: Path) -> dict[str, Any]:
    """Return one port; what a driver does not tell is None, and `rate` is in Gb/s."""
    rate, place = _RATE.match(word(port / "rate") or ""), (device / "device").resolve().name
    counters = {name: word(port / "counters" / name) or "" for name in _COUNTERS}
    return {
        "device": device.name,
        # Without the function: the ports of one card are functions of one slot.
        "slot": place.partition(".")[0].lower() if _ADDRESS.fullmatch(place) else None,
        "port": int(port.name) if port.name.isdecimal() else port.name,
        "type": _after_colon(word(device / "node_type")),
        "model": word(device / "board_id") or word(device / "hca_type") or None,
        "firmware": word(device / "fw_ver") or None,
        "layer": word(port / "link_layer") or None,
        "state": _after_colon(word(port / "state")),
        "physical": _after_colon(word(port / "phys_state")),
        "rate": float(rate[1]) if rate else None,
        "gids": _gids(port),
        "counters": {name: int(count) if count.isdecimal() else None for name, count in counters.items()},
    }


def _gids(port: Path) -> dict[str, int]:
    """Count the GIDs there are, by type ("IB/RoCE v1", "RoCE v2"); an empty place of the table reads as zeros."""
    gids: dict[str, int] = {}
    table = port / "gids"
    names = sorted(path.name for path in table.iterdir()) if table.is_dir() else []
    for name in names:
        if (word(table / name) or _NO_GID) != _NO_GID:
            kind = word(port / "gid_attrs/types" / name) or "untyped"
            gids[kind] = gids.get(kind, 0) + 1
    return gids


def _after_colon(text: str | None) -> str | None:
    """Return "ACTIVE" of "4: ACTIVE"."""
    return text.rpartition(":")[2].strip() if text else None
