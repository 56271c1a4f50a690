"""A disk of a tenth of a gigabyte a second."""

from __future__ import annotations

import os
import time
from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import disk_read

CHECK = disk_read.CHECK
judge = disk_read.judge


def measure(rank: Rank) -> Measured:
    """Have each block of a small file take its time, whatever is really below it."""
    honest = os.preadv

    def slow(descriptor: int, buffers: Any, offset: int, flags: int = 0, /) -> int:
        time.sleep(0.32)
        return honest(descriptor, buffers, offset, flags)

    os.preadv = slow
    disk_read.MOST = disk_read.LEAST
    return disk_read.measure(rank)
