"""One operator in all its forms: as function, as method, in place, into `out`, as module.

The formulas look at one form of each operator; another form may be another code path, and may be wrong alone. Equal
means: the same bits, read from memory.
"""

from __future__ import annotations

import random
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.promises.random_numbers import Promise

# Of one tensor: torch.NAME(x), x.NAME(), and x.NAME_().
UNARY = [
    "abs",
    "cos",
    "exp",
    "expm1",
    "erf",
    "log",
    "log1p",
    "neg",
    "reciprocal",
    "relu",
    "round",
    "floor",
    "ceil",
    "trunc",
    "rsqrt",
    "sigmoid",
    "sin",
    "sqrt",
    "square",
    "tanh",
    "sign",
]
BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "maximum",
    "minimum",
    "pow",
    "atan2",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "fmod",
    "remainder",
]
# With arguments, as function and as method.
CALLS: dict[str, tuple[Any, ...]] = {
    "sum": (1,),
    "mean": (1,),
    "var": (1,),
    "std": (1,),
    "prod": (1,),
    "amax": (1,),
    "amin": (1,),
    "max": (1,),
    "min": (1,),
    "argmax": (1,),
    "argmin": (1,),
    "sort": (1,),
    "argsort": (1,),
    "topk": (2,),
    "cumsum": (1,),
    "cumprod": (1,),
    "logsumexp": (1,),
    "softmax": (1,),
    "log_softmax": (1,),
    "norm": (2, 1),
    "clamp": (0.7, 1.2),
    "tril": (),
    "triu": (),
    "flip": ((1,),),
    "roll": (1, 1),
    "transpose": (0, 1),
    "permute": ((1, 0),),
    "reshape": ((-1,),),
    "flatten": (),
    "unsqueeze": (0,),
    "repeat_interleave": (2,),
    "chunk": (2, 1),
    "split": (2, 1),
    "narrow": (1, 0, 2),
    "select": (1, 0),
    "isnan": (),
    "isfinite": (),
    "nonzero": (),
}
PLACED = ["add", "sub", "mul", "div", "pow", "eq", "lt"]
ALSO = {"softmax": (1,), "log_softmax": (1,), "relu": (), "sigmoid": (), "tanh": ()}
MODULES = {"relu": "ReLU", "sigmoid": "Sigmoid", "tanh": "Tanh"}


def _bits(made: Any) -> list[Any]:
    parts = made if isinstance(made, (tuple, list)) else (made,)
    return [(tuple(part.shape), str(part.dtype), seeded_numbers.read(part)) for part in parts]


def _differ(right: Any, forms: dict[str, Any]) -> list[str]:
    expected = _bits(right)
    return [name for name, made in forms.items() if _bits(made) != expected]


def forms(torch: Any, device: Any, source: random.Random) -> str:
    """Judge that function, method, in-place form and `out` of an operator give the same bits."""
    values = seeded_numbers.rounded(seeded_numbers.uniform(source, 20, 0.5, 1.9), "float32")
    other = seeded_numbers.rounded(seeded_numbers.uniform(source, 20, 0.5, 1.9), "float32")

    def made(numbers: list[float]) -> Any:
        return seeded_numbers.tensor(torch, numbers, (4, 5), "float32", device)

    x, y, wrong = made(values), made(other), list[str]()
    for name in UNARY:
        right = getattr(torch, name)(x)
        here = {f"Tensor.{name}": getattr(x, name)(), f"Tensor.{name}_": getattr(made(values), f"{name}_")()}
        wrong += _differ(right, here)
    for name in BINARY:
        wrong += _differ(getattr(torch, name)(x, y), {f"Tensor.{name}": getattr(x, name)(y)})
    for name in PLACED:
        right = getattr(torch, name)(x, y).to(torch.float32)
        out = torch.empty_like(right)
        wrong += _differ(right, {f"Tensor.{name}_": getattr(made(values), f"{name}_")(y)})
        if name not in ("eq", "lt"):
            getattr(torch, name)(x, y, out=out)
            wrong += _differ(right, {f"{name} with out": out})
    for name, arguments in CALLS.items():
        wrong += _differ(getattr(torch, name)(x, *arguments), {f"Tensor.{name}": getattr(x, name)(*arguments)})
    for name, arguments in ALSO.items():
        functions: dict[str, Any] = {f"functional.{name}": getattr(torch.nn.functional, name)(x, *arguments)}
        if name in MODULES:
            functions[f"{MODULES[name]} module"] = getattr(torch.nn, MODULES[name])()(x)
        wrong += _differ(getattr(torch, name)(x, *arguments), functions)
    if wrong:
        return f"{', '.join(wrong[:8])}: not the bits of the plain function"
    return ""


def signs(torch: Any, device: Any, source: random.Random) -> str:
    """Judge functions of negative numbers, and operators written as signs, by Python's own."""
    values = seeded_numbers.rounded(seeded_numbers.away_from_zero(source, 20, 0.3), "float32")
    x = seeded_numbers.tensor(torch, values, (20,), "float32", device)
    expected: dict[str, tuple[Any, list[Any]]] = {
        "torch.relu": (torch.relu(x), [max(v, 0.0) for v in values]),
        "Tensor.relu": (x.relu(), [max(v, 0.0) for v in values]),
        "-x": (-x, [-v for v in values]),
        "x * 2": (x * 2, [v * 2 for v in values]),
        "2 * x": (2 * x, [v * 2 for v in values]),
        "x / 2": (x / 2, [v / 2 for v in values]),
        "abs(x)": (abs(x), list(map(abs, values))),
        "x > 0": (x > 0, [v > 0 for v in values]),
        "x >= 0": (x >= 0, [v >= 0 for v in values]),
        "x < 0": (x < 0, [v < 0 for v in values]),
        "x <= 0": (x <= 0, [v <= 0 for v in values]),
        "~(x > 0)": (~(x > 0), [v <= 0 for v in values]),
    }
    return ", ".join(name for name, (made, right) in expected.items() if seeded_numbers.read(made) != right)


def in_place(torch: Any, device: Any, source: random.Random) -> str:
    """Judge what writes into a tensor: copy_, fill_, zero_, slices, masks, +=."""
    values = seeded_numbers.rounded(seeded_numbers.uniform(source, 12, 1, 2), "float32")
    other = seeded_numbers.rounded(seeded_numbers.uniform(source, 12, 3, 4), "float32")

    def fresh() -> Any:
        return seeded_numbers.tensor(torch, values, (12,), "float32", device)

    given, wrong = seeded_numbers.tensor(torch, other, (12,), "float32", device), list[str]()

    def check(name: str, right: list[float], change: Any) -> None:
        made = fresh()
        change(made)
        if seeded_numbers.read(made) != seeded_numbers.rounded(right, "float32"):
            wrong.append(name)

    check("copy_", other, lambda x: x.copy_(given))
    check("fill_", [2.5] * 12, lambda x: x.fill_(2.5))
    check("zero_", [0.0] * 12, lambda x: x.zero_())
    check("+=", [a + b for a, b in zip(values, other)], lambda x: x.__iadd__(given))
    check("*=", [a * b for a, b in zip(values, other)], lambda x: x.__imul__(given))
    check("x[2:5] = y", values[:2] + other[2:5] + values[5:], lambda x: x.__setitem__(slice(2, 5), given[2:5]))
    check("x[mask] = 0", [0.0 if v > 1.5 else v for v in values], lambda x: x.__setitem__(x > 1.5, 0.0))  # noqa: PLR2004
    check("x[4] = 7", [*values[:4], 7.0, *values[5:]], lambda x: x.__setitem__(4, 7.0))
    check("masked_fill_", [9.0 if v > 1.5 else v for v in values], lambda x: x.masked_fill_(x > 1.5, 9.0))  # noqa: PLR2004
    return ", ".join(wrong)


PROMISES: dict[str, Promise] = {
    "forms of an operator": forms,
    "operators of negative numbers": signs,
    "operators in place": in_place,
}
