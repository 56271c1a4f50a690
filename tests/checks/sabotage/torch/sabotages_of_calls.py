"""Sabotages that are wrong in one mode, memory layout or size only, for random numbers, or for derivatives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from tests.checks.sabotage.torch.sabotages import Sabotage, ScaledGradient, lie, times
from tests.checks.sabotage.torch.sabotages_of_layers import Bent, last, where

F, T = functional, torch
LONG = 1 << 16


def long(x: Any, *_: Any, **__: Any) -> bool:
    """Return whether a tensor has more elements than 2^16."""
    return bool(x.numel() > LONG)


def bent(kind: str, owner: Any, name: str) -> Sabotage:
    """Return what gives the gradient of a function a wrong gradient."""
    return kind, lambda: lie(owner, name, lambda h, x, *a, **k: h(Bent.apply(x), *a, **k))


def scaled(owner: Any, name: str, when: Callable[..., Any] = lambda *_, **__: True) -> Sabotage:
    """Return what gives a function a wrong gradient where it is called in such a way."""

    def change(honest: Any, *a: Any, **k: Any) -> Any:
        made = honest(*a, **k)
        return ScaledGradient.apply(made) if made.requires_grad and when(*a, **k) else made

    return "derivatives", lambda: lie(owner, name, change)


def unnoticed() -> None:
    """Have autograd not notice what is multiplied in place."""

    def change(honest: Any, x: Any, *a: Any) -> Any:
        with T.autograd._unsafe_preserve_version_counter(x):  # noqa: SLF001 (what is broken)
            return honest(x, *a)

    lie(T.Tensor, "mul_", change)


def dense(honest: Any, index: Any, weight: Any, *a: Any, sparse: bool = False, **k: Any) -> Any:
    """Look up rows that are too small where their gradient is sparse."""
    return honest(index, weight * 0.9 if sparse else weight, *a, **k)


def same_mask(honest: Any, *a: Any, **k: Any) -> Any:
    """Leave out the same elements each time."""
    state = T.get_rng_state()
    T.manual_seed(5)
    made = honest(*a, **k)
    T.set_rng_state(state)
    return made


def periodic(honest: Any, *a: Any, **k: Any) -> Any:
    """Repeat the first half of what is drawn."""
    made = honest(*a, **k)
    if made.numel() > LONG:
        made[LONG // 2 : LONG] = made[: LONG // 2]
    return made


def unmoved(honest: Any, count: Any, *a: Any, **k: Any) -> Any:
    """Leave a long permutation as it was."""
    return T.arange(count) if isinstance(count, int) and count > LONG else honest(count, *a, **k)


SABOTAGES: dict[str, Sabotage] = {
    "linear wrong in inference_mode": where(
        "call modes", F, "linear", lambda *_, **__: torch.is_inference_mode_enabled()
    ),
    "bmm wrong without gradients": where("call modes", T, "bmm", lambda *_, **__: not torch.is_grad_enabled()),
    "batch_norm wrong where channels lie last": where(
        "call modes", F, "batch_norm", lambda x, *_, **__: x.dim() == 4 and last(x)
    ),
    "max_pool2d wrong where channels lie last": where("call modes", F, "max_pool2d", lambda x, *_, **__: last(x)),
    "the sum of nothing is 1": (
        "call modes",
        lambda: lie(T.Tensor, "sum", lambda h, x, *a, **k: h(x, *a, **k) + (x.numel() == 0)),
    ),
    "cat of many turns its parts": (
        "call modes",
        lambda: lie(T, "cat", lambda h, parts, *a, **k: h(parts[::-1] if len(parts) > 8 else parts, *a, **k)),
    ),
    "indices from the end are off by one": (
        "call modes",
        lambda: lie(T.Tensor, "__getitem__", lambda h, x, i: h(x, i + 1 if isinstance(i, int) and i < -1 else i)),
    ),
    "softmax wrong for a vocabulary": where("wide", F, "softmax", long),
    "a sum wrong beyond 2^16": where("wide", T.Tensor, "__add__", lambda x, *_: long(x)),
    "matmul wrong with several threads": (
        "large",
        lambda: times(T, "matmul", 1.01, lambda _: torch.get_num_threads() > 1),
    ),
    "tanh wrong second derivative": bent("derivatives", T, "tanh"),
    "softmax wrong second derivative": bent("derivatives", F, "softmax"),
    "relu in place wrong gradient": scaled(F, "relu", lambda *_, **k: k.get("inplace")),
    "expand wrong gradient": scaled(T.Tensor, "expand"),
    "bfloat16 wrong gradient": scaled(T.Tensor, "to", lambda *a, **_: T.bfloat16 in a),
    "a sparse lookup x 0.9": ("derivatives", lambda: lie(F, "embedding", dense)),
    "overwriting goes unnoticed": ("derivatives", unnoticed),
    "dropout leaves out the same each time": ("random", lambda: lie(F, "dropout", same_mask)),
    "randn repeats itself": ("random", lambda: lie(T, "randn", periodic)),
    "randperm leaves long lines": ("random", lambda: lie(T, "randperm", unmoved)),
    "rand ignores its generator": (
        "random",
        lambda: lie(T, "rand", lambda h, *a, generator=None, **k: h(*a, **k)),  # noqa: ARG005 (what is ignored)
    ),
    "fork_rng forks nothing": (
        "random",
        lambda: setattr(T.random, "fork_rng", lambda *_, **__: contextlib.nullcontext()),
    ),
    "dropout2d drops elements": ("random", lambda: setattr(F, "dropout2d", F.dropout)),
    "from_numpy copies": ("state", lambda: lie(T, "from_numpy", lambda h, a: h(a).clone())),
}
