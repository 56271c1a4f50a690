"""Waits in tests: as long as a busy machine needs, and no longer than what is awaited takes."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

PATIENCE: Final = 60.0  # seconds

T = TypeVar("T")


def eventually(read: Callable[[], T], expected: T) -> T:
    """Return what is read once it is what is wanted, or what it still is after a minute."""
    deadline = time.monotonic() + PATIENCE
    while (actual := read()) != expected and time.monotonic() < deadline:
        time.sleep(0.02)
    return actual
