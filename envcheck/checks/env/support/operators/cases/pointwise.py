"""Operators on one element at a time, and on pairs of them with broadcasting."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.operator_trial import Case, Input

# In 16 bits they round several times, or their gradient is made of a rounded output.
WIDER = ("log", "rsqrt", "sqrt", "tanh", "sigmoid", "softsign", "hardsw")
Function = Callable[[float], float]
# The constants of SELU: Klambauer et al. 2017, arXiv 1706.02515.
SELU_SCALE, SELU_ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717


def shape(source: random.Random, size: int, least: int = 1) -> tuple[int, ...]:
    """Return a shape of one to three dimensions, odd sizes and single rows among them."""
    return tuple(source.randint(least, 3 + 3 * size) for _ in range(source.randint(1, 3)))


def sigmoid(x: float) -> float:
    """Return 1 / (1 + e^-x)."""
    return 1 / (1 + math.exp(-x))


def softplus(x: float, beta: float = 1.0) -> float:
    """Return log(1 + e^(beta x)) / beta."""
    return (max(beta * x, 0.0) + math.log1p(math.exp(-abs(beta * x)))) / beta


def _gelu(x: float) -> float:
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def _gelu_tanh(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _functional(name: str, **options: Any) -> Callable[..., Any]:
    return lambda torch, x: getattr(torch.nn.functional, name)(x, **options)


def _module(name: str, *options: Any, **named: Any) -> Callable[..., Any]:
    return lambda torch, x: getattr(torch.nn, name)(*options, **named)(x)


def _plain(name: str, *options: Any, **named: Any) -> Callable[..., Any]:
    return lambda torch, x: getattr(torch, name)(x, *options, **named)


def activations(source: random.Random) -> dict[str, tuple[Callable[..., Any], Function]]:
    """Return the activations as (call, formula), with options from the seed."""
    slope, beta, alpha = source.uniform(0.05, 0.4), source.uniform(0.5, 2), source.uniform(0.5, 1.5)
    return {
        "relu": (_functional("relu"), lambda x: max(x, 0.0)),
        "ReLU module": (_module("ReLU"), lambda x: max(x, 0.0)),
        "gelu": (_functional("gelu"), _gelu),
        "GELU module": (_module("GELU"), _gelu),
        "gelu tanh": (_functional("gelu", approximate="tanh"), _gelu_tanh),
        "silu": (_functional("silu"), lambda x: x * sigmoid(x)),
        "SiLU module": (_module("SiLU"), lambda x: x * sigmoid(x)),
        "tanh": (_plain("tanh"), math.tanh),
        "sigmoid": (_plain("sigmoid"), sigmoid),
        "softplus": (_functional("softplus", beta=beta), lambda x: softplus(x, beta)),
        "elu": (_functional("elu", alpha=alpha), lambda x: x if x > 0 else alpha * math.expm1(x)),
        "selu": (
            _functional("selu"),
            lambda x: SELU_SCALE * (x if x > 0 else SELU_ALPHA * math.expm1(x)),
        ),
        "leaky_relu": (_functional("leaky_relu", negative_slope=slope), lambda x: x if x > 0 else slope * x),
        "LeakyReLU module": (_module("LeakyReLU", slope), lambda x: x if x > 0 else slope * x),
        "hardtanh": (_functional("hardtanh", min_val=-2.5, max_val=2.6), lambda x: min(max(x, -2.5), 2.6)),
        "hardsigmoid": (_functional("hardsigmoid"), lambda x: min(max(x / 6 + 0.5, 0.0), 1.0)),
        "hardswish": (_functional("hardswish"), lambda x: x * min(max(x / 6 + 0.5, 0.0), 1.0)),
        "mish": (_functional("mish"), lambda x: x * math.tanh(softplus(x))),
        "softsign": (_functional("softsign"), lambda x: x / (1 + abs(x))),
        "logsigmoid": (_functional("logsigmoid"), lambda x: -softplus(-x)),
    }


def elementary(source: random.Random) -> dict[str, tuple[Callable[..., Any], Function]]:
    """Return elementary functions of numbers of either sign as (call, formula)."""
    low, high = -source.uniform(2.1, 3), source.uniform(2.1, 3)
    return {
        "exp": (_plain("exp"), math.exp),
        "expm1": (_plain("expm1"), math.expm1),
        "sin": (_plain("sin"), math.sin),
        "cos": (_plain("cos"), math.cos),
        "atan": (_plain("atan"), math.atan),
        "sinh": (_plain("sinh"), math.sinh),
        "asinh": (_plain("asinh"), math.asinh),
        "erf": (_plain("erf"), math.erf),
        "erfc": (_plain("erfc"), math.erfc),
        "abs": (_plain("abs"), abs),
        "neg": (_plain("neg"), lambda x: -x),
        "square": (_plain("square"), lambda x: x * x),
        "cube": (_plain("pow", 3), lambda x: x**3),
        "reciprocal": (_plain("reciprocal"), lambda x: 1 / x),
        "clamp": (_plain("clamp", low, high), lambda x: min(max(x, low), high)),
        "clamp min": (_plain("clamp", min=0.0), lambda x: max(x, 0.0)),
        "sqrt of a square": (lambda t, x: t.sqrt(x * x + 1), lambda x: math.sqrt(x * x + 1)),
        "rsqrt": (lambda t, x: t.rsqrt(x * x + 0.5), lambda x: 1 / math.sqrt(x * x + 0.5)),
        "log": (lambda t, x: t.log(x * x + 1.5), lambda x: math.log(x * x + 1.5)),
        "log1p": (lambda t, x: t.log1p(x * x), lambda x: math.log1p(x * x)),
        "log2": (lambda t, x: t.log2(x * x + 1.5), lambda x: math.log2(x * x + 1.5)),
        "log10": (lambda t, x: t.log10(x * x + 1.5), lambda x: math.log10(x * x + 1.5)),
    }


def steps() -> dict[str, tuple[Callable[..., Any], Callable[[float], Any]]]:
    """Return functions with steps, which have no gradient and no rounding."""
    return {
        "floor": (_plain("floor"), lambda x: float(math.floor(x))),
        "ceil": (_plain("ceil"), lambda x: float(math.ceil(x))),
        "round": (_plain("round"), lambda x: float(round(x))),
        "trunc": (_plain("trunc"), lambda x: float(math.trunc(x))),
        "sign": (_plain("sign"), lambda x: math.copysign(1.0, x)),
        "isfinite": (_plain("isfinite"), math.isfinite),
        "greater": (lambda t, x: x > 1, lambda x: x > 1),  # noqa: ARG005 (every call takes torch)
        "not equal itself": (lambda t, x: x != x, lambda x: x != x),  # noqa: ARG005, PLR0124 (as above; the operator)
    }


def unary(source: random.Random, size: int) -> Iterator[Case]:
    """Yield the functions of one number."""
    for name, (call, each) in {**activations(source), **elementary(source)}.items():
        given = shape(source, size)
        values = seeded_numbers.away_from_zero(source, math.prod(given), 0.1, 2.0)
        wide = 3.0 if name.startswith(WIDER) else 2.0
        yield Case(name, call, lambda x, each=each: [each(v) for v in x], (Input(values, given),), wide=wide)
    for name, (call, each) in steps().items():
        given = shape(source, size)
        values = seeded_numbers.uniform(source, math.prod(given), -4, 4)
        yield Case(
            name,
            call,
            lambda x, each=each: [each(v) for v in x],
            (Input(values, given),),
            gradient=False,
            wide=0.0,
        )


def _spread(values: list[float], given: tuple[int, ...], whole: tuple[int, ...]) -> list[float]:
    """Return values of shape `given` broadcast to `whole`."""
    padded = (1,) * (len(whole) - len(given)) + given
    steps_ = [0 if size == 1 else step for size, step in zip(padded, seeded_numbers.strides(padded))]
    return [values[place] for place in seeded_numbers.places(whole, steps_)]


def pairs(source: random.Random) -> dict[str, tuple[Callable[..., Any], Callable[[float, float], float]]]:
    """Return functions of two numbers as (call, formula)."""
    factor, weight = source.uniform(0.3, 3), source.uniform(0.1, 0.9)
    return {
        "add": (lambda t, a, b: t.add(a, b, alpha=factor), lambda a, b: a + factor * b),
        "sub": (lambda t, a, b: t.sub(a, b, alpha=factor), lambda a, b: a - factor * b),
        "plus": (lambda t, a, b: a + b, lambda a, b: a + b),  # noqa: ARG005 (every call takes torch)
        "times": (lambda t, a, b: a * b, lambda a, b: a * b),  # noqa: ARG005
        "divided by": (lambda t, a, b: a / b, lambda a, b: a / b),  # noqa: ARG005
        "maximum": (lambda t, a, b: t.maximum(a, b), max),
        "minimum": (lambda t, a, b: t.minimum(a, b), min),
        "power": (lambda t, a, b: t.pow(t.abs(a), b), lambda a, b: abs(a) ** b),
        "atan2": (lambda t, a, b: t.atan2(a, b), math.atan2),
        "lerp": (lambda t, a, b: t.lerp(a, b, weight), lambda a, b: a + weight * (b - a)),
        "hypot": (lambda t, a, b: t.hypot(a, b), math.hypot),
        "logaddexp": (lambda t, a, b: t.logaddexp(a, b), lambda a, b: a + softplus(b - a)),
    }


def binary(source: random.Random, size: int) -> Iterator[Case]:
    """Yield the functions of two numbers, one of which may be broadcast; of three; and of a mask."""
    for name, (call, each) in pairs(source).items():
        whole = tuple(source.randint(2, 3 + 2 * size) for _ in range(3))
        other = source.choice([whole, whole[1:], whole[2:], (whole[0], 1, whole[2]), (1, whole[1], 1), ()])
        # Their sizes never meet, so that no maximum changes sides within a difference quotient.
        left = seeded_numbers.away_from_zero(source, math.prod(whole), 0.2, 1.0)
        right = seeded_numbers.away_from_zero(source, math.prod(other), 1.1, 2.0)

        def reference(a: list[float], b: list[float], each: Any = each, two: Any = (other, whole)) -> list[float]:
            return [each(x, y) for x, y in zip(a, _spread(b, *two))]

        wide = 3.0 if name in ("lerp", "logaddexp", "power", "add", "sub") else 2.0
        # The gradient of a number that is broadcast adds up quotients, each rounded.
        wide = 6.0 if name == "divided by" else wide
        dtypes = (
            ("float32", "float64")
            if name in ("power", "hypot", "atan2", "logaddexp")
            else Case._field_defaults["dtypes"]
        )
        yield Case(name, call, reference, (Input(left, whole), Input(right, other)), wide=wide, dtypes=dtypes)
    given = shape(source, size)
    three = tuple(Input(seeded_numbers.away_from_zero(source, math.prod(given), 0.5, 2), given) for _ in range(3))
    value = source.uniform(0.3, 2)
    yield Case(
        "addcmul",
        lambda t, a, b, c: t.addcmul(a, b, c, value=value),
        lambda a, b, c: [x + value * y * z for x, y, z in zip(a, b, c)],
        three,
        least=1.0,
    )
    yield Case(
        "addcdiv",
        lambda t, a, b, c: t.addcdiv(a, b, c, value=value),
        lambda a, b, c: [x + value * y / z for x, y, z in zip(a, b, c)],
        three,
        least=1.0,
    )
    mask = Input([source.random() < 0.5 for _ in range(math.prod(given))], given, "bool")  # noqa: PLR2004 (half)
    yield Case(
        "where",
        lambda t, m, a, b: t.where(m, a, b),
        lambda m, a, b: [x if k else y for k, x, y in zip(m, a, b)],
        (mask, *three[:2]),
    )
    yield Case(
        "masked_fill",
        lambda t, m, a: a.masked_fill(m, value),  # noqa: ARG005
        lambda m, a: [value if k else x for k, x in zip(m, a)],
        (mask, three[0]),
    )


def integers(source: random.Random, size: int) -> Iterator[Case]:
    """Yield arithmetic of whole numbers and bits, which is exact."""
    given = shape(source, size)
    count = math.prod(given)
    table: dict[str, tuple[Callable[..., Any], Callable[[int, int], Any]]] = {
        "integer times": (lambda t, a, b: a * b, lambda a, b: a * b),  # noqa: ARG005
        "floor division": (lambda t, a, b: t.div(a, b, rounding_mode="floor"), lambda a, b: a // b),
        "remainder": (lambda t, a, b: t.remainder(a, b), lambda a, b: a % b),
        "bitwise and": (lambda t, a, b: a & b, lambda a, b: a & b),  # noqa: ARG005
        "bitwise xor": (lambda t, a, b: a ^ b, lambda a, b: a ^ b),  # noqa: ARG005
        "integer less": (lambda t, a, b: a < b, lambda a, b: a < b),  # noqa: ARG005
        "integer equal": (lambda t, a, b: a == b, lambda a, b: a == b),  # noqa: ARG005
    }
    for name, (call, each) in table.items():
        for dtype in ("int64", "int32"):
            two = tuple(
                Input([source.choice((-1, 1)) * source.randint(1, 40) for _ in range(count)], given, dtype)
                for _ in range(2)
            )
            yield Case(
                f"{name} {dtype}",
                call,
                lambda a, b, each=each: [each(x, y) for x, y in zip(a, b)],
                two,
                gradient=False,
                dtypes=("float32",),
            )


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (unary, binary, integers)
