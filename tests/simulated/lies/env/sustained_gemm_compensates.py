"""Two flips in one timed product leave the sum of its bits as it was."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import sustained_gemm

CHECK = sustained_gemm.CHECK
judge = sustained_gemm.judge


def measure(rank: Rank) -> Measured:
    """Flip two words of one timed product so that their sum stays."""
    import torch  # noqa: PLC0415 (as a check does)

    honest, calls = torch.mm, [0]

    def lying(left: Any, right: Any, *, out: Any = None) -> Any:
        product = honest(left, right, out=out)
        calls[0] += 1
        if calls[0] == 5:
            words = product.view(torch.int16)
            words[77, 99] += 1
            words[78, 99] -= 1
        return product

    torch.mm = lying
    return sustained_gemm.measure(rank)
