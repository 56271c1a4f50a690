"""A kernel that forgets the causal mask."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import attention

CHECK = attention.CHECK
judge = attention.judge


def measure(rank: Rank) -> Measured:
    """Never ask for a causal mask on rank 1."""
    import torch  # noqa: PLC0415 (as a check does)

    honest = torch.nn.functional.scaled_dot_product_attention

    def lying(*tensors: Any, is_causal: bool, **options: Any) -> Any:  # noqa: ARG001 (what is forgotten)
        return honest(*tensors, **options)

    if rank.rank == 1:
        torch.nn.functional.scaled_dot_product_attention = lying
    return attention.measure(rank)
