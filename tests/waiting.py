"""Waits in tests: as long as a busy machine needs, and no longer than what is awaited takes."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

PATIENCE: Final = 60.0  # seconds

T = TypeVar("T")


def runs(pid: int | str) -> bool:
    """Tell whether a process runs; one that is only waiting to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(read: Callable[[], T], expected: T, seconds: float = PATIENCE) -> T:
    """Return what is read once it is what is wanted, or what it still is after so long."""
    deadline = time.monotonic() + seconds
    while (actual := read()) != expected and time.monotonic() < deadline:
        time.sleep(0.02)
    return actual
