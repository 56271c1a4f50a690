"""A disk that gives back one other bit."""

from __future__ import annotations

import os
from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import disk_read

CHECK = disk_read.CHECK
judge = disk_read.judge


def measure(rank: Rank) -> Measured:
    """Flip the lowest bit of a block's byte 4711 whenever it is read."""
    honest = os.preadv

    def forget(descriptor: int, buffers: Any, offset: int, flags: int = 0, /) -> int:
        read = honest(descriptor, buffers, offset, flags)
        buffers[0][4711] ^= 1
        return read

    os.preadv = forget
    disk_read.MOST = disk_read.LEAST
    return disk_read.measure(rank)
