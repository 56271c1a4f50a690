"""Autograd's ways to a gradient, its modes, default dtypes and the rules by which dtypes are mixed."""

from __future__ import annotations

import random
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.promises.random_numbers import Promise


def gradients(torch: Any, device: Any, source: random.Random) -> str:
    """Judge autograd.grad, accumulation, hooks, detached parts and second derivatives by x^3 and its derivatives."""
    values = [source.randint(-8, 8) / 4 for _ in range(9)]  # exact in fp32, and so are their cubes
    slopes = [3 * v * v for v in values]

    def leaf() -> Any:
        return torch.nn.Parameter(seeded_numbers.tensor(torch, values, (9,), "float32", device))

    x, wrong = leaf(), list[str]()

    def check(name: str, made: Any, right: list[float]) -> None:
        if made is None or seeded_numbers.read(made) != right:
            wrong.append(name)

    (taken,) = torch.autograd.grad((x * x * x).sum(), x, create_graph=True)
    check("autograd.grad", taken, slopes)
    (second,) = torch.autograd.grad(taken.sum(), x)
    check("second derivative", second, [6 * v for v in values])
    if x.grad is not None:
        wrong.append("autograd.grad writes .grad")
    (x * x * x).sum().backward()
    check("backward", x.grad, slopes)
    (x * x * x).sum().backward()
    check("accumulation", x.grad, [2 * s for s in slopes])
    other = leaf()
    other.register_hook(lambda gradient: gradient * 2)
    (other * other * other).sum().backward()
    check("hook", other.grad, [2 * s for s in slopes])
    half = leaf()
    (half * half.detach()).sum().backward()
    check("detach", half.grad, values)
    second_leaf = leaf()
    from torch.utils import checkpoint

    checkpoint.checkpoint(lambda v: v * v * v, second_leaf, use_reentrant=False).sum().backward()
    check("checkpoint", second_leaf.grad, slopes)
    with torch.no_grad():
        quiet = x * 2
    with torch.no_grad(), torch.enable_grad():
        loud = x * 2
    if quiet.requires_grad or not loud.requires_grad or (x * 2).requires_grad is False:
        wrong.append("no_grad, enable_grad")
    with torch.inference_mode():
        if (x * 2).requires_grad:
            wrong.append("inference_mode")
    return ", ".join(wrong)


def default_dtype(torch: Any, device: Any, _: random.Random) -> str:
    """Judge that set_default_dtype decides the dtype of new tensors and modules."""
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float64, torch.bfloat16, torch.float32):
            torch.set_default_dtype(dtype)
            made = (torch.zeros(2, device=device), torch.tensor([1.5], device=device), torch.nn.Linear(2, 2).weight)
            if any(one.dtype != dtype for one in made) or torch.get_default_dtype() != dtype:
                return f"set_default_dtype({dtype}) has no effect"
    finally:
        torch.set_default_dtype(before)
    return ""


def promotion(torch: Any, device: Any, _: random.Random) -> str:
    """Judge the dtype of a sum of two (torch's documentation, Tensor Attributes, Type Promotion)."""
    table = {
        ("int32", "int64"): "int64",
        ("int64", "float32"): "float32",
        ("uint8", "int8"): "int16",
        ("bool", "int32"): "int32",
        ("float16", "bfloat16"): "float32",
        ("bfloat16", "float32"): "float32",
        ("float32", "float64"): "float64",
        ("float32", "complex64"): "complex64",
    }
    wrong = []
    for (one, other), right in table.items():
        a, b = (torch.ones(2, dtype=getattr(torch, name), device=device) for name in (one, other))
        dtypes = {str((a + b).dtype), str((b * a).dtype), str(torch.result_type(a, b))}
        if dtypes != {f"torch.{right}"}:
            wrong.append(f"{one} and {other} give {', '.join(sorted(dtypes))}, not {right}")
    integer = torch.tensor([7], device=device)
    if str((integer / 2).dtype) != "torch.float32" or seeded_numbers.read(integer / 2) != [3.5]:
        wrong.append("7 / 2 of whole numbers is not 3.5")
    return "; ".join(wrong)


PROMISES: dict[str, Promise] = {
    "gradients": gradients,
    "default dtype": default_dtype,
    "mixed dtypes": promotion,
}
