"""Sabotages of torch that act at certain sizes, calls, options or forms of an operator only."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from tests.checks.sabotage.torch.sabotages import Sabotage, ScaledGradient, lie, times, without

F, T = functional, torch


def every(owner: Any, name: str, number: int) -> Callable[[], None]:
    """Return what makes each call of that number wrong."""
    calls = itertools.count(1)
    return lambda: lie(owner, name, lambda h, *a, **k: h(*a, **k) * (1.1 if next(calls) % number == 0 else 1))


def large(x: Any) -> bool:
    """Return whether a dimension of a tensor is 1024 or longer."""
    return max(x.shape, default=0) >= 1024


def overflows(x: Any, dim: int = -1, **_: Any) -> Any:
    """Return softmax without subtracting the largest element."""
    return x.exp() / x.exp().sum(dim, keepdim=True)


def wrong_only_by_grad() -> None:
    """Scale what torch.autograd.grad returns, and leave backward right."""
    lie(T.autograd, "grad", lambda h, *a, **k: tuple(g * 1.01 for g in h(*a, **k)))


def runs_code() -> None:
    """Have torch.load unpickle whatever the file holds."""
    honest = T.load
    T.load = lambda f, *a, **k: honest(f, *a, **{**k, "weights_only": False, "pickle_module": pickle})


def unstable(honest: Any, *a: Any, **k: Any) -> Any:
    """Sort, and reverse the order of equal elements."""
    stable = k.pop("stable", False)
    if not stable:
        return honest(*a, **k)
    values, places = honest(a[0].flip(-1), *a[1:], stable=True, **k)
    return values, a[0].shape[-1] - 1 - places


def lost_carry(honest: Any, x: Any, dim: int, **k: Any) -> Any:
    """Begin again after each 128 elements."""
    return T.cat([honest(part, dim, **k) for part in x.split(128, dim)], dim)


def second_only(honest: Any, x: Any, d: Any, i: Any, o: Any, **k: Any) -> Any:
    """Add only the last of several rows that go to one place."""
    return honest(x, d, i, o, **k) if i.unique().numel() == i.numel() else x.index_copy(d, i, x[i] + o)


SABOTAGES: dict[str, Sabotage] = {
    "softmax overflows": ("layers", lambda: lie(F, "softmax", lambda _, *a, **k: overflows(*a, **k))),
    "log_softmax overflows": (
        "layers",
        lambda: lie(F, "log_softmax", lambda _, x, dim, **k: x - x.exp().sum(dim, keepdim=True).log()),  # noqa: ARG005
    ),
    "softmax of four dimensions over another": (
        "layers",
        lambda: lie(F, "softmax", lambda h, x, dim, **k: h(x, dim=(dim + 1) % 4 if x.dim() == 4 else dim, **k)),
    ),
    "softmax wrong for long lines": ("wide", lambda: times(F, "softmax", 1.01, large)),
    "layer_norm wrong for wide lines": ("wide", lambda: times(F, "layer_norm", 1.01, large)),
    "LayerNorm has another default eps": (
        "layers",
        lambda: lie(T.nn.LayerNorm, "__init__", lambda h, s, n, eps=1e-3, **k: h(s, n, eps=eps, **k)),
    ),
    "batch_norm ignores momentum": (
        "layers",
        lambda: lie(F, "batch_norm", lambda h, x, m, v, w, b, t, _, e: h(x, m, v, w, b, t, 0.1, e)),
    ),
    "embedding wrong for large tables": (
        "wide",
        lambda: lie(F, "embedding", lambda h, i, w, *a, **k: h(i, w, *a, **k) * (1.1 if len(w) > 1000 else 1)),
    ),
    "cross_entropy wrong for many classes": ("wide", lambda: times(F, "cross_entropy", 1.01, large)),
    "cross_entropy of images wrong": ("losses", lambda: times(F, "cross_entropy", 1.01, lambda x: x.dim() > 2)),
    "cross_entropy wrong for soft targets": (
        "losses",
        lambda: lie(
            F, "cross_entropy", lambda h, x, y, *a, **k: h(x, y, *a, **k) * (1 if y.dtype == T.int64 else 1.01)
        ),
    ),
    "matmul wrong from 1024 on": ("large", lambda: times(T, "matmul", 1.001, lambda x: min(x.shape) >= 1024)),
    "@ wrong from 1024 on": ("large", lambda: times(T.Tensor, "__matmul__", 1.001, lambda x: min(x.shape) >= 1024)),
    "mm wrong from 1024 on": ("large", lambda: times(T, "mm", 1.001, large)),
    "linear wrong from 1024 on": ("large", lambda: times(F, "linear", 1.001, lambda x: min(x.shape) >= 1024)),
    "linear wrong gradient from 1024 on": (
        "large",
        lambda: lie(F, "linear", lambda h, x, *a: ScaledGradient.apply(h(x, *a)) if large(x) else h(x, *a)),
    ),
    "linear wrong at every 50th call": ("repeated", every(F, "linear", 50)),
    "layer_norm wrong at every 50th call": ("repeated", every(F, "layer_norm", 50)),
    "@ wrong at every 50th call": ("repeated", every(T.Tensor, "__matmul__", 50)),
    "gelu wrong at every 50th call": ("repeated", every(F, "gelu", 50)),
    "bmm wrong for one matrix": ("dense", lambda: times(T, "bmm", 1.01, lambda x: len(x) == 1)),
    "einsum wrong for a turned result": (
        "dense",
        lambda: lie(T, "einsum", lambda h, e, *a: h(e, *a) * (1.01 if e.endswith("ki") else 1)),
    ),
    "pad reflects nothing": ("order", without(F, "pad", "mode", "constant")),
    "interpolate of images ignores align_corners": (
        "dense",
        lambda: lie(
            F,
            "interpolate",
            lambda h, x, **k: h(x, **({**k, "align_corners": False} if k.get("mode") == "bilinear" else k)),
        ),
    ),
    "sort is unstable": ("order", lambda: lie(T, "sort", unstable)),
    "topk wrong for one": (
        "order",
        lambda: lie(T, "topk", lambda h, x, n, *a, **k: h(-x if n == 1 else x, n, *a, **k)),
    ),
    "topk wrong places": (
        "order",
        lambda: lie(T, "topk", lambda h, *a, **k: (h(*a, **k)[0], h(*a, **k)[1] * 0)),
    ),
    "sort wrong places": ("order", lambda: lie(T, "sort", lambda h, *a, **k: (h(*a, **k)[0], h(*a, **k)[1].flip(-1)))),
    "max wrong places": ("order", lambda: lie(T, "max", lambda h, *a, **k: (h(*a, **k)[0], h(*a, **k)[1] * 0))),
    "cumsum loses its carry": ("order", lambda: lie(T, "cumsum", lost_carry)),
    "cumsum of bf16 adds in bf16": (
        "order",
        lambda: lie(T, "cumsum", lambda h, x, dim, **k: h(x, dim, **k) * (0.9 if x.dtype == T.bfloat16 else 1)),
    ),
    "index_add forgets duplicates": ("order", lambda: lie(T, "index_add", second_only)),
    "scatter_reduce wrong for amax": (
        "order",
        lambda: lie(T, "scatter_reduce", lambda h, x, d, i, s, r, **k: h(x, d, i, s, "sum" if r == "amax" else r, **k)),
    ),
    "index_put_ does not add up": (
        "order",
        lambda: lie(T.Tensor, "index_put_", lambda h, x, i, v, **_: h(x, i, v)),
    ),
    "prod x 1.01": ("order", lambda: times(T, "prod", 1.01)),
    "rfft ignores ortho": ("models", without(T.fft, "rfft", "norm")),
    "fft ignores ortho": ("models", without(T.fft, "fft", "norm")),
    "cholesky x 1.01": ("models", lambda: times(T.linalg, "cholesky", 1.01)),
    "a // b is cut": (
        "pointwise",
        lambda: lie(T.Tensor, "__floordiv__", lambda _, x, y: T.div(x, y, rounding_mode="trunc")),
    ),
    "div cut is floored": (
        "pointwise",
        lambda: lie(T, "div", lambda h, a, b, **k: h(a, b, **{**k, "rounding_mode": "floor"})),
    ),
    "nan_to_num keeps infinities": (
        "pointwise",
        lambda: lie(T, "nan_to_num", lambda _, x, *a, **__: T.where(x != x, T.zeros_like(x), x)),  # noqa: ARG005, PLR0124
    ),
    "clamp swaps its bounds": (
        "pointwise",
        lambda: lie(T, "clamp", lambda h, x, *a, **k: h(x, *(sorted(a) if len(a) == 2 else a), **k)),
    ),
    "masked_fill of infinity is the largest number": (
        "pointwise",
        lambda: lie(T.Tensor, "masked_fill", lambda h, x, m, v: h(x, m, max(v, -1e30) if isinstance(v, float) else v)),
    ),
    "maximum loses NaN": ("pointwise", lambda: setattr(T, "maximum", T.fmax)),
    "glu x 1.01": ("pointwise", lambda: times(F, "glu", 1.01)),
    "Tensor.add_ adds twice": ("forms", lambda: lie(T.Tensor, "add_", lambda h, x, y, **k: h(h(x, y, **k), y, **k))),
    "Tensor.mul_ does nothing": ("forms", lambda: lie(T.Tensor, "mul_", lambda _, x, *a: x)),  # noqa: ARG005
    "Tensor.softmax x 1.01": ("forms", lambda: times(T.Tensor, "softmax", 1.01)),
    "Tensor.sum x 1.01": ("forms", lambda: times(T.Tensor, "sum", 1.01)),
    "Tensor.exp x 1.01": ("forms", lambda: times(T.Tensor, "exp", 1.01)),
    "torch.relu keeps negatives": ("forms", lambda: setattr(T, "relu", lambda x: x)),
    "Tensor.sort descends": ("forms", lambda: lie(T.Tensor, "sort", lambda h, x, *a, **k: h(-x, *a, **k))),
    "Tensor.copy_ copies zeros": ("forms", lambda: lie(T.Tensor, "copy_", lambda h, x, y, *a: h(x, y * 0, *a))),
    "autograd.grad x 1.01": ("state", wrong_only_by_grad),
    "no_grad records": ("state", lambda: setattr(T, "no_grad", T.enable_grad)),
    "set_default_dtype does nothing": ("state", lambda: setattr(T, "set_default_dtype", lambda _: None)),
    "tolist lies of integers": (
        "state",
        lambda: lie(T.Tensor, "tolist", lambda h, x: h(x if x.is_floating_point() else x + 1)),
    ),
    "item lies of integers": (
        "state",
        lambda: lie(T.Tensor, "item", lambda h, x: h(x if x.is_floating_point() else x + 1)),
    ),
    "isinf sees nothing": ("state", lambda: setattr(T, "isinf", lambda x: T.zeros_like(x, dtype=T.bool))),
    "assert_close accepts all": ("state", lambda: setattr(T.testing, "assert_close", lambda *_, **__: None)),
    "Tensor.numpy of a turned tensor is not turned": (
        "state",
        lambda: lie(T.Tensor, "numpy", lambda h, x, *a, **k: h(x.t() if not x.is_contiguous() else x, *a, **k)),
    ),
    "from_numpy of a turned array is not turned": (
        "state",
        lambda: lie(T, "from_numpy", lambda h, a: h(a if a.flags.c_contiguous else a.T.copy().reshape(a.shape))),
    ),
    "load runs code": ("state", runs_code),
    "load_state_dict is never strict": (
        "state",
        lambda: lie(T.nn.Module, "load_state_dict", lambda h, m, s, strict=True, **k: h(m, s, strict=False, **k)),  # noqa: ARG005
    ),
    "assign copies": ("state", without(T.nn.Module, "load_state_dict", "assign", otherwise=False)),
    "recomputed dropout falls out otherwise": (
        "state",
        lambda: lie(T.utils.checkpoint, "checkpoint", lambda h, *a, **k: h(*a, **{**k, "preserve_rng_state": False})),
    ),
    "multinomial is uniform": (
        "random",
        lambda: lie(T, "multinomial", lambda h, p, *a, **k: h(T.ones_like(p), *a, **k)),
    ),
    "kaiming_uniform_ is too wide": (
        "random",
        lambda: lie(T.nn.init, "kaiming_uniform_", lambda h, w, *a, **k: h(w, *a, **k).mul_(2)),
    ),
    "normal_ ignores std": ("random", without(T.Tensor, "normal_", "std", 1.0)),
    "integers and floats become float64": ("state", lambda: setattr(T, "result_type", lambda *_: T.float64)),
}
