"""Sabotages of operators that only `operators-in-breadth` looks at."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from tests.checks.sabotage.torch.sabotages import Sabotage, lie, times, without

F, L = functional, torch.linalg
MODES = {"circular": "replicate"}


def rising(honest: Any, a: Any, **k: Any) -> Any:
    """Return the singular values from the smallest on."""
    u, s, v = honest(a, **k)
    return u.flip(-1), s.flip(-1), v.flip(-2)


def unbalanced(honest: Any, a: Any) -> Any:
    """Return factors whose product is right, the first of which is not orthogonal."""
    q, r = honest(a)
    return 2 * q, r / 2


def one_less(honest: Any, a: Any) -> Any:
    """Return eigenvalues of which the largest is 0."""
    values, vectors = honest(a)
    return values * (values < values.max()), vectors


def scaled_logarithm(honest: Any, a: Any) -> Any:
    """Return a logarithm that is too large by one percent."""
    sign, logarithm = honest(a)
    return sign, logarithm * 1.01


SABOTAGES: dict[str, Sabotage] = {
    "ctc_loss forgets its blank": ("losses in breadth", without(F, "ctc_loss", "blank", 1)),
    "pairwise_distance x 1.01": ("losses in breadth", lambda: times(F, "pairwise_distance", 1.01)),
    "gaussian_nll_loss x 1.01": ("losses in breadth", lambda: times(F, "gaussian_nll_loss", 1.01)),
    "cdist x 1.01": ("losses in breadth", lambda: times(torch, "cdist", 1.01)),
    "multilabel_soft_margin_loss x 1.01": (
        "losses in breadth",
        lambda: times(F, "multilabel_soft_margin_loss", 1.01),
    ),
    "qr is not orthogonal": ("matrices", lambda: lie(L, "qr", unbalanced)),
    "svd rises": ("matrices", lambda: lie(L, "svd", rising)),
    "eigh leaves out the last value": ("matrices", lambda: lie(L, "eigh", one_less)),
    "slogdet x 1.01": ("matrices", lambda: lie(L, "slogdet", scaled_logarithm)),
    "solve_triangular x 1.01": ("matrices", lambda: times(L, "solve_triangular", 1.01)),
    "kron changes sides": ("matrices", lambda: lie(torch, "kron", lambda h, a, b: h(b, a))),
    "local_response_norm forgets k": ("pooling", without(F, "local_response_norm", "k", 1.0)),
    "avg_pool2d divides by all": ("pooling", without(F, "avg_pool2d", "divisor_override", None)),
    "adaptive_max_pool2d x 1.01": ("pooling", lambda: times(F, "adaptive_max_pool2d", 1.01)),
    "grid_sample is aligned": ("images", without(F, "grid_sample", "align_corners", otherwise=True)),
    "grid_sample pads zeros": ("images", without(F, "grid_sample", "padding_mode", "zeros")),
    "pixel_shuffle turns channels": ("images", lambda: lie(F, "pixel_shuffle", lambda h, x, n: h(x.flip(1), n))),
    "fold x 1.01": ("images", lambda: times(F, "fold", 1.01)),
    "pad circular replicates": (
        "images",
        lambda: lie(F, "pad", lambda h, x, p, mode="", **k: h(x, p, mode=MODES.get(mode, mode or "constant"), **k)),
    ),
    "lgamma x 1.01": ("functions", lambda: times(torch, "lgamma", 1.01)),
    "ndtri x 1.01": ("functions", lambda: times(torch.special, "ndtri", 1.01)),
    "lcm is the product": ("functions", lambda: setattr(torch, "lcm", torch.mul)),
    "polar changes its sign": ("functions", lambda: lie(torch, "polar", lambda h, r, w: h(r, -w))),
    "fmod is remainder": ("functions", lambda: setattr(torch, "fmod", torch.remainder)),
    "quantile is the median": ("selections", lambda: lie(torch, "quantile", lambda h, x, _, **k: h(x, 0.5, **k))),
    "logcumsumexp x 1.01": ("selections", lambda: times(torch, "logcumsumexp", 1.01)),
    "masked_scatter does nothing": ("selections", lambda: setattr(torch, "masked_scatter", lambda x, *_: x)),
    "block_diag changes its order": ("selections", lambda: lie(torch, "block_diag", lambda h, *a: h(*a[::-1]))),
    "bincount ignores weights": ("selections", without(torch, "bincount", "weights")),
    "stft ignores its window": ("spectra", without(torch, "stft", "window")),
    "istft x 1.01": ("spectra", lambda: times(torch, "istft", 1.01)),
    "ifftn is fftn": ("spectra", lambda: setattr(torch.fft, "ifftn", torch.fft.fftn)),
}
