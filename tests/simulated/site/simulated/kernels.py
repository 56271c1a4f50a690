"""Operators that torch has for CUDA alone, by their formulas: the forward pass of SyncBatchNorm.

Ioffe & Szegedy 2015 (arXiv 1502.03167), algorithm 1; the statistics of several ranks are put together by their counts.
"""

# ruff: noqa: ARG001 (it stands in for torch: its names and signatures)

from __future__ import annotations

from typing import Any


def install(torch: Any) -> None:
    """Put them in torch's place."""
    torch.batch_norm_stats = stats
    torch.batch_norm_gather_stats_with_counts = gather_stats_with_counts
    torch.batch_norm_elemt = elemt


def _others(tensor: Any) -> list[int]:
    return [dimension for dimension in range(tensor.dim()) if dimension != 1]


def stats(input: Any, eps: float) -> tuple[Any, Any]:  # noqa: A002
    """Return each channel's mean, and 1 / sqrt(variance + eps), the variance divided by the count."""
    variance = input.var(_others(input), unbiased=False)
    return input.mean(_others(input)), (variance + eps).rsqrt()


def gather_stats_with_counts(
    input: Any,  # noqa: A002
    mean: Any,
    invstd: Any,
    running_mean: Any,
    running_var: Any,
    momentum: float,
    eps: float,
    counts: Any,
) -> tuple[Any, Any]:
    """Return the same of all ranks together, and move the running statistics towards them."""
    weights, total = counts[:, None], counts.sum()
    whole = (mean * weights).sum(0) / total
    spread = ((invstd**-2 - eps + (mean - whole) ** 2) * weights).sum(0)
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(whole * momentum)
    if running_var is not None:
        running_var.mul_(1 - momentum).add_(spread / (total - 1) * momentum)
    return whole, (spread / total + eps).rsqrt()


def elemt(input: Any, weight: Any, bias: Any, mean: Any, invstd: Any, eps: float) -> Any:  # noqa: A002
    """Return each value less its channel's mean, times 1 / sqrt(variance + eps) and weight, plus bias."""
    shape = [-1 if dimension == 1 else 1 for dimension in range(input.dim())]
    actual = (input - mean.view(shape)) * invstd.view(shape)
    actual = actual if weight is None else actual * weight.view(shape)
    return actual if bias is None else actual + bias.view(shape)
