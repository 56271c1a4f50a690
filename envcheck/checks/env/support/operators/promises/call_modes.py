"""Modes and forms of tensors that a call must give the same for: without gradients, empty, turned in memory, indexed.

A call that is right for an ordinary tensor has kernels of its own for these, which nothing else here runs.
"""

from __future__ import annotations

import math
import random
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.promises import sizes_and_calls
from envcheck.checks.env.support.operators.promises.random_numbers import Promise

# One call of two layouts may add in another order.
_APART = 1e-5
_SHAPE = (2, 5, 6, 7)
_PARTS = 17


def without_gradients(torch: Any, device: Any, source: random.Random) -> str:
    """Judge that each call gives the same bits under no_grad, inference_mode and enable_grad."""
    calls = sizes_and_calls.calls(torch, device, source)
    modes = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "enable_grad": torch.enable_grad}
    wrong = []
    for name, call in calls.items():
        plain = seeded_numbers.read(call())
        for mode, context in modes.items():
            with context():
                made = call()
            if seeded_numbers.read(made) != plain:
                wrong.append(f"{name} under {mode}")
    return ", ".join(wrong)


def _near(one: list[float], other: list[float]) -> bool:
    return len(one) == len(other) and all(abs(a - b) <= _APART * max(1.0, abs(b)) for a, b in zip(one, other))


def channels_last(torch: Any, device: Any, source: random.Random) -> str:
    """Judge that operators on images give the same numbers where channels lie last in memory."""
    f, channels = torch.nn.functional, _SHAPE[1]
    numbers = seeded_numbers.rounded(seeded_numbers.uniform(source, math.prod(_SHAPE)), "float32")
    x = seeded_numbers.tensor(torch, numbers, _SHAPE, "float32", device)
    scale = seeded_numbers.tensor(torch, numbers[:channels], (channels,), "float32", device)
    mean, spread = torch.zeros(channels, device=device), torch.ones(channels, device=device)
    calls: dict[str, Any] = {
        "relu": f.relu,
        "gelu": f.gelu,
        "silu": f.silu,
        "a sum": lambda v: v + v,
        "batch_norm": lambda v: f.batch_norm(v, None, None, scale, scale, training=True),
        "batch_norm in evaluation": lambda v: f.batch_norm(v, mean, spread, scale, scale),
        "group_norm": lambda v: f.group_norm(v, channels, scale, scale),
        "max_pool2d": lambda v: f.max_pool2d(v, 2),
        "avg_pool2d": lambda v: f.avg_pool2d(v, 2),
        "adaptive_avg_pool2d": lambda v: f.adaptive_avg_pool2d(v, 3),
        "interpolate": lambda v: f.interpolate(v, scale_factor=2.0),
        "interpolate, bilinear": lambda v: f.interpolate(v, scale_factor=2.0, mode="bilinear", align_corners=False),
        "softmax over channels": lambda v: f.softmax(v, dim=1),
        "pad": lambda v: f.pad(v, (1, 1)),
        "cat": lambda v: torch.cat([v, v], 1),
        "mean over an image": lambda v: v.mean(dim=(2, 3)),
        "flatten": lambda v: v.flatten(1),
    }
    wrong = []
    for name, call in calls.items():
        one, other = call(x), call(x.contiguous(memory_format=torch.channels_last))
        if one.shape != other.shape or not _near(seeded_numbers.read(other), seeded_numbers.read(one)):
            wrong.append(name)
    return f"{', '.join(wrong)}: other numbers where channels lie last" if wrong else ""


def empty(torch: Any, device: Any, source: random.Random) -> str:
    """Judge tensors without elements: shapes of results, sums of nothing, and gradients that are 0."""
    f, width = torch.nn.functional, source.randint(2, 6)
    nothing, weight = torch.zeros(0, width, device=device), torch.nn.Parameter(torch.ones(3, width, device=device))
    ones = torch.ones(2, width, device=device)
    results: dict[str, tuple[Any, tuple[int, ...], list[float]]] = {
        "linear": (f.linear(nothing, weight), (0, 3), []),
        "softmax": (f.softmax(nothing, dim=1), (0, width), []),
        "layer_norm": (f.layer_norm(nothing, (width,)), (0, width), []),
        "relu": (f.relu(nothing), (0, width), []),
        "embedding": (f.embedding(torch.zeros(0, dtype=torch.int64, device=device), ones), (0, width), []),
        "a product over no columns": (nothing.t() @ nothing, (width, width), [0.0] * width * width),
        "sum": (nothing.sum(), (), [0.0]),
        "torch.sum": (torch.sum(nothing, dim=0), (width,), [0.0] * width),
        "prod": (nothing.prod(), (), [1.0]),
        "cat": (torch.cat([nothing, ones]), (2, width), [1.0] * 2 * width),
        "all": (torch.all(nothing > 0), (), [True]),
        "any": (torch.any(nothing > 0), (), [False]),
    }
    wrong = [
        name
        for name, (made, shape, right) in results.items()
        if tuple(made.shape) != shape or seeded_numbers.read(made) != right
    ]
    results["linear"][0].sum().backward()
    if weight.grad is None or any(seeded_numbers.read(weight.grad)):
        wrong.append("the gradient of linear")
    return f"{', '.join(wrong)} of no elements" if wrong else ""


def indexed(torch: Any, device: Any, source: random.Random) -> str:
    """Judge indices from the end, steps, ellipses and new dimensions by Python's lists; and many parts put together."""
    values = [float(source.randrange(1000)) for _ in range(60)]
    x = seeded_numbers.tensor(torch, values, (60,), "float32", device)
    rows = [values[i : i + 6] for i in range(0, 60, 6)]
    table = x.reshape(10, 6)
    parts = [values[3 * i : 3 * i + 3] for i in range(_PARTS)]
    given = [seeded_numbers.tensor(torch, part, (3,), "float32", device) for part in parts]
    results: dict[str, tuple[Any, list[float]]] = {
        "x[-1]": (x[-1], values[-1:]),
        "x[-7]": (x[-7], values[-7:-6]),
        "x[5:-5]": (x[5:-5], values[5:-5]),
        "x[::2]": (x[::2], values[::2]),
        "x[1:50:7]": (x[1:50:7], values[1:50:7]),
        "x[-3]": (table[-3], rows[-3]),
        "x[-3, -2]": (table[-3, -2], [rows[-3][-2]]),
        "x[..., 2]": (table[..., 2], [row[2] for row in rows]),
        "x[::3, 1::4]": (table[::3, 1::4], [v for row in rows[::3] for v in row[1::4]]),
        "x[None]": (table[None][0, 4], rows[4]),
        "x[[-1, 3]]": (table[[-1, 3]], [*rows[-1], *rows[3]]),
        "x[mask]": (x[x > 500], [v for v in values if v > 500]),  # noqa: PLR2004 (any number)
        "narrow": (x.narrow(0, 7, 9), values[7:16]),
        "flip": (x.flip(0), values[::-1]),
        "roll": (x.roll(7), values[-7:] + values[:-7]),
        f"cat of {_PARTS}": (torch.cat(given), values[: 3 * _PARTS]),
        f"stack of {_PARTS}": (torch.stack(given), values[: 3 * _PARTS]),
        "split": (torch.cat(x.split(7)[::-1]), [v for i in range(56, -1, -7) for v in values[i : i + 7]]),
    }
    return ", ".join(name for name, (made, right) in results.items() if seeded_numbers.read(made) != right)


PROMISES: dict[str, Promise] = {
    "calls without gradients": without_gradients,
    "channels last": channels_last,
    "no elements": empty,
    "indices and parts": indexed,
}
