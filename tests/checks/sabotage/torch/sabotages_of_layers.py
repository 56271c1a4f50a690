"""Sabotages of attention, convolutions and Fourier transforms that are wrong for one option, form or layout only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from tests.checks.sabotage.torch.sabotages import Sabotage, Scaled, lie

F = functional
Options = dict[str, Any]


def attention(
    when: Callable[[Any, Any, Options], Any], changed: Callable[[Options], Options] | None = None
) -> Sabotage:
    """Return what makes attention too large by five percent, or changes its options, where Q, K and they are such."""

    def change(honest: Any, q: Any, k: Any, v: Any, **options: Any) -> Any:
        if not when(q, k, options):
            return honest(q, k, v, **options)
        return honest(q, k, v, **{**options, **changed(options)}) if changed else honest(q, k, v, **options) * 1.05

    return "attention", lambda: lie(F, "scaled_dot_product_attention", change)


def mask(options: Options) -> Any:
    """Return the mask, or an empty tensor."""
    return torch.zeros(0) if options.get("attn_mask") is None else options["attn_mask"]


def bottom_right(q: Any, k: Any, options: Options) -> bool:
    """Return whether a causal mask has two ways to lie."""
    return bool(options.get("is_causal")) and q.shape[-2] != k.shape[-2]


def convolution(name: str, when: Callable[[Any, Any, Options], Any], changed: Callable[..., Any]) -> Sabotage:
    """Return what changes a convolution's result where its input, its weight and its options are such."""

    def change(honest: Any, x: Any, w: Any, *a: Any, **k: Any) -> Any:
        return changed(honest, x, w, *a, **k) if when(x, w, k) else honest(x, w, *a, **k)

    return "convolution", lambda: lie(F, name, change)


def larger(honest: Any, *a: Any, **k: Any) -> Any:
    """Return a result that is too large by one percent."""
    return honest(*a, **k) * 1.01


def last(x: Any) -> bool:
    """Return whether channels lie last."""
    return not x.is_contiguous() and bool(x.is_contiguous(memory_format=torch.channels_last))


def bias_gradient(honest: Any, x: Any, w: Any, b: Any = None, **k: Any) -> Any:
    """Return the right result, whose bias has a wrong gradient."""
    return honest(x, w, None if b is None else Scaled.apply(b), **k)


SABOTAGES: dict[str, Sabotage] = {
    "attention takes a mask of keys for its opposite": attention(
        lambda *a: mask(a[2]).dim() == 4 and mask(a[2]).shape[-2] == 1 and mask(a[2]).dtype == torch.bool,
        lambda k: {"attn_mask": ~k["attn_mask"]},
    ),
    "attention has one mask for all heads": attention(
        lambda *a: mask(a[2]).dim() == 4 and mask(a[2]).shape[1] > 1,
        lambda k: {"attn_mask": k["attn_mask"][:, :1]},
    ),
    "attention learns no mask": attention(
        lambda *a: mask(a[2]).requires_grad, lambda k: {"attn_mask": k["attn_mask"].detach()}
    ),
    "attention is causal from the other corner": attention(
        bottom_right,
        lambda _: {"is_causal": False},
    ),
    "attention drops nothing": attention(lambda *a: a[2].get("dropout_p"), lambda _: {"dropout_p": 0.0}),
    "attention drops twice as much": attention(
        lambda *a: a[2].get("dropout_p"), lambda k: {"dropout_p": 2 * k["dropout_p"]}
    ),
    "attention wrong for heads of 128": attention(lambda q, *_: q.shape[-1] == 128),
    "attention wrong for odd heads": attention(lambda q, *_: q.shape[-1] % 2),
    "attention wrong for three dimensions": attention(lambda q, *_: q.dim() == 3),
    "attention wrong without gradients": attention(lambda *_: not torch.is_grad_enabled()),
    "attention wrong for many keys": attention(lambda _, k, __: k.shape[-2] > 512),
    "convolution wrong where channels lie last": convolution("conv2d", lambda x, *_: last(x), larger),
    "convolution wrong gradient of its bias": convolution("conv3d", lambda *_: True, bias_gradient),
    "convolution wrong for 64 channels": convolution("conv2d", lambda _, w, __: w.shape[1] == 64, larger),
    "convolution wrong without gradients": convolution("conv1d", lambda *_: not torch.is_grad_enabled(), larger),
    "transposed convolution starts one later": convolution(
        "conv_transpose2d", lambda *a: any(a[2]["output_padding"]), lambda h, *a, **k: h(*a, **k).roll(1, -1)
    ),
}
