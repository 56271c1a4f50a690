"""Second derivatives, gradients of in-place forms and views, and the refusal to differentiate what was overwritten."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.promises.random_numbers import Promise

ROWS, WIDTH = 3, 4
# The difference quotient of fourth order is off by h^4 f^(6) / 30; seen at 1e-10 (ours).
_STEP, _APART = 1e-3, 1e-6


def second(torch: Any, device: Any, source: random.Random) -> str:
    """Judge second derivatives along a direction by differences of the first ones, which `operators` compares."""
    f = torch.nn.functional

    def made(*shape: int) -> Any:
        numbers = seeded_numbers.away_from_zero(source, math.prod(shape), 0.3, 1.2)
        return seeded_numbers.tensor(torch, numbers, shape, "float64", device)

    weight, direction = made(WIDTH, WIDTH), made(ROWS, WIDTH)
    target = torch.arange(ROWS, device=device)
    calls: dict[str, Callable[[Any], Any]] = {
        "exp": torch.exp,
        "log": lambda v: torch.log(v * v),
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "gelu": f.gelu,
        "silu": f.silu,
        "softplus": f.softplus,
        "a product": lambda v: v * v * v,
        "a quotient": lambda v: 1 / (v * v + 1),
        "pow": lambda v: v.pow(3),
        "matmul": lambda v: torch.matmul(v.t(), v),
        "linear": lambda v: f.linear(v, weight) ** 2,
        "softmax": lambda v: f.softmax(v, dim=1),
        "log_softmax": lambda v: f.log_softmax(v, dim=1),
        "layer_norm": lambda v: f.layer_norm(v, (WIDTH,)),
        "cross_entropy": lambda v: f.cross_entropy(v, target),
        "mse_loss": lambda v: f.mse_loss(v * v, direction),
        "norm": lambda v: v.norm(),
        "var": lambda v: v.var(dim=1),
        "logsumexp": lambda v: v.logsumexp(dim=1),
    }
    wrong = []
    for name, call in calls.items():
        at = made(ROWS, WIDTH)
        error = _second_off(torch, call, at, direction)
        if not error <= _APART:
            wrong.append(f"the second derivative of {name} is off by {error:.2g}")
    return "; ".join(wrong)


def _second_off(torch: Any, call: Callable[[Any], Any], at: Any, direction: Any) -> float:
    """Return how far the derivative of a gradient along a direction is from its difference quotient."""

    def loss(x: Any) -> Any:
        result = call(x)
        ramp = torch.arange(1, result.numel() + 1, dtype=result.dtype, device=result.device)
        return (result.reshape(-1) * ramp).sum()

    def gradient(step: float) -> list[float]:
        x = torch.nn.Parameter(at + step * direction)
        (slopes,) = torch.autograd.grad(loss(x), x)
        read: list[float] = seeded_numbers.read(slopes)
        return read

    x = torch.nn.Parameter(at.clone())
    (slopes,) = torch.autograd.grad(loss(x), x, create_graph=True)
    (bends,) = torch.autograd.grad((slopes * direction).sum(), x)
    near, far = (zip(gradient(n * _STEP), gradient(-n * _STEP)) for n in (1, 2))
    right = [(8 * (a - b) - (c - d)) / (12 * _STEP) for (a, b), (c, d) in zip(near, far)]
    return seeded_numbers.off(seeded_numbers.read(bends), right, 1.0, least=1.0)


def forms(torch: Any, device: Any, source: random.Random) -> str:
    """Judge the gradients of in-place forms, views, conversions and sparse lookups, all of them exact in fp32."""
    values = [source.choice((-1, 1)) * source.randint(1, 8) / 4 for _ in range(6)]
    f, wrong = torch.nn.functional, list[str]()
    cases: dict[str, tuple[Callable[[Any], Any], list[float]]] = {
        "mul_": (lambda v: (v * 1).mul_(3), [3.0] * 6),
        "add_": (lambda v: (v * 1).add_(v, alpha=2), [3.0] * 6),
        "div_": (lambda v: (v * 1).div_(2), [0.5] * 6),
        "relu in place": (lambda v: f.relu(v * 1, inplace=True), [float(x > 0) for x in values]),
        "clamp_": (lambda v: (v * 1).clamp_(-0.6, 0.6), [float(abs(x) <= 0.6) for x in values]),  # noqa: PLR2004
        "a slice that is written": (lambda v: _written(v * 1), [2.0, 2.0, 1.0, 1.0, 1.0, 1.0]),
        "expand": (lambda v: v.expand(5, 6), [5.0] * 6),
        "repeat": (lambda v: v.repeat(3), [3.0] * 6),
        "to bfloat16": (lambda v: v.to(torch.bfloat16), [1.0] * 6),
        "to float64": (lambda v: v.double(), [1.0] * 6),
        "unfold": (lambda v: v.unfold(0, 2, 1), [1.0, 2.0, 2.0, 2.0, 2.0, 1.0]),
        "squeeze and unsqueeze": (lambda v: v[None].squeeze(0).unsqueeze(1) * 2, [2.0] * 6),
        "clone": (lambda v: v.clone(), [1.0] * 6),
        "contiguous": (lambda v: v.reshape(2, 3).t().contiguous(), [1.0] * 6),
    }
    for name, (call, right) in cases.items():
        x = torch.nn.Parameter(seeded_numbers.tensor(torch, values, (6,), "float32", device))
        call(x).sum().backward()
        if x.grad is None or seeded_numbers.read(x.grad) != right:
            wrong.append(name)
    # On the CPU: a sparse gradient on a GPU never ran.
    table = torch.nn.Parameter(seeded_numbers.tensor(torch, values, (3, 2), "float32"))
    found = f.embedding(torch.tensor([0, 2, 2]), table, sparse=True)
    found.sum().backward()
    read = [seeded_numbers.read(t) for t in (found, table.grad.to_dense())]
    if read != [[*values[:2], *values[4:], *values[4:]], [1.0, 1.0, 0.0, 0.0, 2.0, 2.0]] or not table.grad.is_sparse:
        wrong.append("a sparse lookup")
    return f"{', '.join(wrong)}: another gradient" if wrong else ""


def _written(x: Any) -> Any:
    x[:2] *= 2
    return x


def overwritten(torch: Any, device: Any, source: random.Random) -> str:
    """Judge that backward refuses a tensor that it needs and that was overwritten in place."""
    changes: dict[str, Callable[[Any], Any]] = {
        "mul_": lambda v: v.mul_(2),
        "add_": lambda v: v.add_(1),
        "zero_": lambda v: v.zero_(),
        "copy_": lambda v: v.copy_(v + 1),
        "x[0] = 0": lambda v: v.__setitem__(0, 0.0),
    }
    wrong = []
    for name, change in changes.items():
        x = torch.nn.Parameter(torch.full((3,), source.uniform(1, 2), device=device))
        hidden = x * 2
        made = hidden * hidden
        with torch.no_grad():
            change(hidden)
        try:
            made.sum().backward()
        except RuntimeError as error:
            if "modified by an inplace operation" in str(error):
                continue
            raise
        wrong.append(name)
    return f"backward goes through tensors that {', '.join(wrong)} changed" if wrong else ""


PROMISES: dict[str, Promise] = {
    "second derivatives": second,
    "gradients of forms and views": forms,
    "overwritten tensors": overwritten,
}
