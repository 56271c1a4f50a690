"""Ways to make torch compute something else, and the sabotages that are wrong for ordinary arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional


def lie(owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Replace a function by one whose result is `change(honest, *arguments, **options)`."""
    honest = getattr(owner, name)
    setattr(owner, name, lambda *a, **k: change(honest, *a, **k))


def times(owner: Any, name: str, factor: float, when: Callable[[Any], bool] = lambda _: True) -> None:
    """Multiply what a function returns, where its first argument is such a one."""
    lie(owner, name, lambda honest, *a, **k: honest(*a, **k) * (factor if when(a[0]) else 1))


class ScaledGradient(torch.autograd.Function):  # type: ignore[misc]
    """The identity, whose gradient is too large by one percent."""

    @staticmethod
    def forward(_: Any, x: Any) -> Any:
        """Return the input."""
        return x.clone()

    @staticmethod
    def backward(_: Any, grad: Any) -> Any:
        """Return a wrong gradient."""
        return grad * 1.01


def wrong_gradient(name: str) -> Callable[[], None]:
    """Return what gives a function of torch.nn.functional a wrong gradient."""
    return lambda: lie(functional, name, lambda honest, *a, **k: ScaledGradient.apply(honest(*a, **k)))


def without(owner: Any, name: str, option: str, otherwise: Any = None) -> Callable[[], None]:
    """Return what makes a function ignore an option."""

    def change(honest: Any, *a: Any, **k: Any) -> Any:
        return honest(*a, **({**k, option: otherwise} if option in k else k))

    return lambda: lie(owner, name, change)


def rows_wrong(honest: Any, index: Any, weight: Any, *a: Any, **k: Any) -> Any:
    """Look up the next row."""
    return honest((index + 1) % weight.shape[0], weight, *a, **k)


def strided(tensor: Any) -> bool:
    """Return whether a tensor has gaps or is turned."""
    return not tensor.is_contiguous()


def blind() -> None:
    """Double every product, and have every distance be 0."""
    times(torch.Tensor, "norm", 0.0)
    times(torch.Tensor, "__matmul__", 2)


def fp8_and_bfloat16() -> None:
    """Make products of FP8 and of bfloat16 too large by the same factor, so that one is no witness of the other."""
    times(torch, "_scaled_mm", 1.3)
    times(torch.Tensor, "__matmul__", 1.3, lambda x: x.dtype == torch.bfloat16)


F, T = functional, torch
Sabotage = tuple[str, Callable[[], None]]
SABOTAGES: dict[str, Sabotage] = {
    "linear x 1.001": ("dense", lambda: times(F, "linear", 1.001)),
    "linear forgets its bias": (
        "dense",
        lambda: lie(F, "linear", lambda h, x, w, b=None: h(x, w, None if b is None else b * 0)),
    ),
    "linear wrong for one row": ("dense", lambda: times(F, "linear", 1.01, lambda x: x.dim() == 2 and len(x) == 1)),
    "linear wrong for odd inner sizes": ("dense", lambda: times(F, "linear", 1.01, lambda x: x.shape[-1] % 2 == 1)),
    "linear wrong in bf16": ("dense", lambda: times(F, "linear", 1.1, lambda x: x.dtype == T.bfloat16)),
    "linear wrong in fp64": ("dense", lambda: times(F, "linear", 1 + 1e-9, lambda x: x.dtype == T.float64)),
    "linear wrong gradient": ("dense", wrong_gradient("linear")),
    "matmul wrong for turned tensors": ("dense", lambda: times(T, "matmul", 1.01, strided)),
    "bmm x 1.001": ("dense", lambda: times(T, "bmm", 1.001)),
    "einsum swaps its operands": (
        "dense",
        lambda: lie(T, "einsum", lambda h, e, x, y: h(e, x, y).flip(0) + 0.01),
    ),
    "addmm ignores beta": ("dense", without(T, "addmm", "beta", 1)),
    "conv1d x 2": ("dense", lambda: times(F, "conv1d", 2)),
    "conv2d ignores dilation of its kernel": ("dense", lambda: times(F, "conv2d", 1.001)),
    "conv3d wrong gradient": ("dense", wrong_gradient("conv3d")),
    "conv_transpose2d x 1.01": ("dense", lambda: times(F, "conv_transpose2d", 1.01)),
    "max_pool2d is a mean": ("dense", lambda: times(F, "max_pool2d", 0.99)),
    "avg_pool1d counts padding": ("dense", lambda: times(F, "avg_pool1d", 1.02)),
    "interpolate ignores align_corners": ("dense", without(F, "interpolate", "align_corners", otherwise=False)),
    "layer_norm x 1.01": ("layers", lambda: times(F, "layer_norm", 1.01)),
    "layer_norm another eps": (
        "layers",
        lambda: lie(F, "layer_norm", lambda h, x, s, w=None, b=None, eps=1e-5: h(x, s, w, b, eps * 2)),
    ),
    "layer_norm wrong gradient": ("layers", wrong_gradient("layer_norm")),
    "group_norm forgets its bias": (
        "layers",
        lambda: lie(F, "group_norm", lambda h, x, g, w, _, eps: h(x, g, w, None, eps)),
    ),
    "batch_norm keeps no statistics": (
        "layers",
        lambda: lie(F, "batch_norm", lambda h, x, m, v, *a: h(x, m.clone(), v.clone(), *a)),
    ),
    "softmax over another dimension": (
        "layers",
        lambda: lie(F, "softmax", lambda h, x, dim=None, **k: h(x, dim=(dim + 1) % x.dim(), **k)),
    ),
    "log_softmax + 0.001": (
        "layers",
        lambda: lie(F, "log_softmax", lambda h, *a, **k: h(*a, **k) + 0.001),
    ),
    "embedding off by one": ("layers", lambda: lie(F, "embedding", rows_wrong)),
    "embedding ignores padding_idx": (
        "layers",
        lambda: lie(F, "embedding", lambda h, i, w, padding_idx=None, *a: h(i, w, None, *a)),  # noqa: ARG005
    ),
    "cross_entropy x 0.5": ("layers", lambda: times(F, "cross_entropy", 0.5)),
    "cross_entropy ignores label_smoothing": ("layers", without(F, "cross_entropy", "label_smoothing", 0.0)),
    "nll_loss ignores its weights": ("layers", lambda: lie(F, "nll_loss", lambda h, x, y, _, **k: h(x, y, **k))),
    "mse_loss wrong gradient": ("layers", wrong_gradient("mse_loss")),
    "huber_loss ignores delta": ("layers", without(F, "huber_loss", "delta", 5.0)),
    "kl_div ignores log_target": ("layers", without(F, "kl_div", "log_target", otherwise=False)),
    "gelu wrong gradient": ("pointwise", wrong_gradient("gelu")),
    "gelu ignores approximate": ("pointwise", without(F, "gelu", "approximate", "none")),
    "silu x 1.001": ("pointwise", lambda: times(F, "silu", 1.001)),
    "softplus ignores beta": ("pointwise", without(F, "softplus", "beta", 1)),
    "where swaps its choices": ("pointwise", lambda: lie(T, "where", lambda h, m, a, b: h(m, b, a))),
    "add ignores alpha": ("pointwise", without(T, "add", "alpha", 1)),
    "sort is stable in reverse": ("order", without(T, "sort", "descending", otherwise=False)),
    "sort wrong for long lines": (
        "order",
        lambda: lie(T, "sort", lambda h, x, **k: h(x * (-1 if x.numel() > 150 else 1), **k)),
    ),
    "topk gives the smallest": ("order", lambda: lie(T, "topk", lambda h, x, n, **k: h(x, n, largest=False, **k))),
    "cumsum starts late": ("order", lambda: lie(T, "cumsum", lambda h, x, **k: h(x, **k) - x)),
    "gather another row": ("order", lambda: lie(T, "gather", lambda h, x, d, i: h(x, d, (i + 1) % len(x)))),
    "scatter_add overwrites": ("order", lambda: setattr(T, "scatter_add", T.scatter)),
    "var is biased": ("order", lambda: lie(T, "var", lambda h, x, **k: h(x, **{**k, "unbiased": False}))),
    "logsumexp x 1.001": ("order", lambda: times(T, "logsumexp", 1.001)),
    "lstm x 1.001": ("models", lambda: lie(T.nn.LSTM, "forward", lambda h, *a: (h(*a)[0] * 1.001, None))),
    "rfft of the mirror image": ("models", lambda: lie(T.fft, "rfft", lambda h, x, *a: h(x.flip(-1), *a))),
    "solve x 1.001": ("models", lambda: times(T.linalg, "solve", 1.001)),
    "rand gives zeros": ("random", lambda: times(T, "rand", 0.0)),
    "randn is too wide": ("random", lambda: times(T, "randn", 1.1)),
    "randn gives zeros": ("random", lambda: times(T, "randn", 0.0)),
    "dropout does not scale": (
        "random",
        lambda: lie(
            F, "dropout", lambda h, x, p=0.5, training=True, *a: h(x, p, training, *a) * (1 - p if training else 1)
        ),
    ),
    "dropout in evaluation": (
        "random",
        lambda: lie(F, "dropout", lambda h, x, p=0.5, *_, **__: h(x, p, training=True)),
    ),
    "equal is always true": ("state", lambda: setattr(T, "equal", lambda *_: True)),
    "allclose is always true": ("state", lambda: setattr(T, "allclose", lambda *_, **__: True)),
    "Tensor.norm gives 0": ("order", lambda: times(T.Tensor, "norm", 0.0)),
    "half rounds down": ("state", lambda: times(T.Tensor, "half", 0.999)),
    "numpy is not available": ("state", lambda: setattr(T.Tensor, "numpy", lambda *_: T._no_such_thing)),  # noqa: SLF001
    "loading is unsafe": ("state", without(T, "load", "weights_only", otherwise=False)),
    "matmul x 1.001": ("matmul", lambda: times(T.Tensor, "__matmul__", 1.001)),
    "matmul wrong in bf16": ("matmul", lambda: times(T.Tensor, "__matmul__", 1.05, lambda x: x.dtype == T.bfloat16)),
    "Tensor.norm gives 0, matmul x 2": ("matmul", blind),
    "matmul x 1.01, the same bits each time": ("fingerprint", lambda: times(T.Tensor, "__matmul__", 1.01)),
    "matmul gives zeros": ("fingerprint", lambda: times(T.Tensor, "__matmul__", 0.0)),
    "products of FP8 and bf16 x 1.3 alike": ("fp8-training", fp8_and_bfloat16),
    "fill_ writes zeros": ("memory-patterns", lambda: lie(T.Tensor, "fill_", lambda h, x, _: h(x, 0))),
    "arange writes zeros": (
        "memory-patterns",
        lambda: lie(T, "arange", lambda h, *a, out=None, **k: h(*a, **k) if out is None else out.zero_()),
    ),
    "random_ writes zeros": ("memory-patterns", lambda: lie(T.Tensor, "random_", lambda _, x, *_a, **_k: x.zero_())),
    "!= sees nothing": ("memory-patterns", lambda: lie(T.Tensor, "__ne__", lambda _, x, y: T.zeros_like(x) > y.max())),
    "attention ignores its mask": (
        "attention",
        lambda: lie(F, "scaled_dot_product_attention", lambda h, *a, **k: h(*a, **{**k, "attn_mask": None})),
    ),
    "attention ignores its scale": ("attention", without(F, "scaled_dot_product_attention", "scale")),
    "attention wrong dV": (
        "attention",
        lambda: lie(F, "scaled_dot_product_attention", lambda h, q, k, v, **o: h(q, k, ScaledGradient.apply(v), **o)),
    ),
    "attention wrong dK": (
        "attention",
        lambda: lie(F, "scaled_dot_product_attention", lambda h, q, k, v, **o: h(q, ScaledGradient.apply(k), v, **o)),
    ),
    "convolution wrong for groups": (
        "convolution",
        lambda: lie(F, "conv2d", lambda h, *a, **k: h(*a, **k) * (1.01 if k.get("groups", 1) > 1 else 1)),
    ),
    "convolution wrong gradient": ("convolution", wrong_gradient("conv1d")),
}
