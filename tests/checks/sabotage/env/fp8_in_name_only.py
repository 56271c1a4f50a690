"""Rank 0 trains in bfloat16 and calls it FP8."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import fp8_training

CHECK = fp8_training.CHECK
judge = fp8_training.judge


def measure(rank: Rank) -> Measured:
    """Put bfloat16 where FP8 was meant."""
    if rank.rank == 0:
        fp8_training._linear = in_name_only  # noqa: SLF001 (what a fallback would do)
    return fp8_training.measure(rank)


def in_name_only(torch: Any, made: list[str]) -> Any:  # noqa: ARG001 (what it stands in for)
    """Return a plain product."""
    made.append("bfloat16 x bfloat16")
    return fp8_training._plain  # noqa: SLF001 (as above)
