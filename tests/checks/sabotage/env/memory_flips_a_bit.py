"""One bit of one word of rank 1's memory is stuck at 1, whatever is written over it."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import memory_patterns

CHECK = memory_patterns.CHECK
judge = memory_patterns.judge


def measure(rank: Rank) -> Measured:
    """Set the bit in the chunk that is tested before each comparison."""
    honest = memory_patterns._compare  # noqa: SLF001 (what is broken is the memory under it)

    def stuck(counts: Measured, chunk: Any, expected: Any, number: int) -> None:
        if number == 2:
            chunk[77] |= 1 << 20
        honest(counts, chunk, expected, number)

    if rank.rank == 1:
        memory_patterns._compare = stuck  # noqa: SLF001 (as above)
    return memory_patterns.measure(rank)
