"""One element of what rank 1's convolution gives back is another one's."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import convolution

CHECK = convolution.CHECK
judge = convolution.judge


def measure(rank: Rank) -> Measured:
    """Write one element of the fp32 output over its neighbour."""
    import torch  # noqa: PLC0415 (as a check does)

    honest = torch.nn.functional.conv2d

    def lying(images: Any, weights: Any, **options: Any) -> Any:
        output = honest(images, weights, **options)
        if output.dtype == torch.float32:
            output.data[0, 0, 0, 1] = output.data[0, 0, 0, 0] + 1
        return output

    if rank.rank == 1:
        torch.nn.functional.conv2d = lying
    return convolution.measure(rank)
