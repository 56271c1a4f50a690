"""A GPU's PCIe link as Linux shows it just now: no library needed, only the GPU's address on the bus."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, NamedTuple

DEVICES = Path("/sys/bus/pci/devices")
# GT/s of each generation: PCI Express Base Specification.
GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_ADDRESS_LENGTH = 32


class Link(NamedTuple):
    """Generation and lanes of a link."""

    generation: int
    lanes: int


def address(ordinal: int, library: Any = None) -> str:
    """Return the bus address of CUDA's `ordinal`-th device, "0000:1b:00.0". Raises OSError where CUDA tells none."""
    cuda = ctypes.CDLL("libcuda.so.1") if library is None else library
    device, text = ctypes.c_int(), ctypes.create_string_buffer(_ADDRESS_LENGTH)
    if cuda.cuDeviceGet(ctypes.byref(device), ordinal) or cuda.cuDeviceGetPCIBusId(text, _ADDRESS_LENGTH, device):
        message = f"CUDA tells no bus address of its device {ordinal}"
        raise OSError(message)
    return text.value.decode().lower()


def link(bus_id: str, devices: Path = DEVICES) -> Link:
    """Return the link of the device at this address. Raises OSError or ValueError where the kernel does not tell it."""
    device = devices / bus_id
    speed = (device / "current_link_speed").read_text(encoding="ascii").split()[:1]
    lanes = (device / "current_link_width").read_text(encoding="ascii").strip()
    if not speed or speed[0] == "Unknown" or not lanes.isdecimal():
        message = f"{device} tells no speed of its link"
        raise ValueError(message)
    rate = float(speed[0])
    if rate not in GENERATIONS:
        message = f"{device} tells {rate:g} GT/s, which is no generation"
        raise ValueError(message)
    return Link(GENERATIONS[rate], int(lanes))
