"""An address line of rank 0's memory is stuck: what is written into one chunk lands in another one too."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import memory_patterns

CHECK = memory_patterns.CHECK
judge = memory_patterns.judge


def measure(rank: Rank) -> Measured:
    """Let chunks 1 and 3 be one memory."""
    honest = memory_patterns._chunks  # noqa: SLF001 (what is broken is the memory itself)

    def aliased(torch: Any, device: Any, amount: int) -> list[Any]:
        chunks = honest(torch, device, amount)
        chunks[3] = chunks[1]
        return chunks

    if rank.rank == 0:
        memory_patterns._chunks = aliased  # noqa: SLF001 (as above)
    return memory_patterns.measure(rank)
