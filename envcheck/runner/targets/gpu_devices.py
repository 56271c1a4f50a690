"""The GPUs that this machine has devices for, seen without the driver, NVML or a container engine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_DEVICES: Final = ("/dev/nvidiactl", "/dev/dxg")


def shown_gpus() -> int | None:
    """Return how many GPUs this machine has devices for, without asking the driver; None where that cannot be seen."""
    if not has_gpus():
        return 0
    return sum(1 for device in Path("/dev").glob("nvidia[0-9]*")) or None


def has_gpus() -> bool:
    """Tell whether this machine has NVIDIA devices to pass in (on WSL: the paravirtual one)."""
    return any(Path(device).exists() for device in _DEVICES)
