"""Functions of one or two numbers that are used less often: special functions, shrinkage, bits, complex numbers."""

from __future__ import annotations

import cmath
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.cases.dense_layers import given
from envcheck.checks.env.support.operators.cases.pointwise import shape
from envcheck.checks.env.support.operators.operator_trial import SINGLE, WIDE, Case, Input

Values = list[float]
# A function of one number: its formula, between which numbers, and whether also of their negatives.
Row = tuple[Callable[[float], float], float, float, bool]


def normal_share(x: float) -> float:
    """Return the share of a normal distribution that is below x."""
    return 0.5 * math.erfc(-x / math.sqrt(2))


def inverse_erf(y: float) -> float:
    """Return the x with erf(x) = y, by Newton's steps."""
    x = y
    for _ in range(12):
        x -= (math.erf(x) - y) * math.sqrt(math.pi) / 2 * math.exp(x * x)
    return x


def digamma(x: float) -> float:
    """Return the slope of log gamma: shifted to where its asymptotic series holds (Abramowitz & Stegun, 6.3.18)."""
    shifted = 0.0
    while x < 20:  # noqa: PLR2004 (the next term of the series is below 1e-16)
        shifted -= 1 / x
        x += 1
    series = 1 / 12 - (1 / 120 - (1 / 252 - (1 / 240 - 1 / (132 * x * x)) / (x * x)) / (x * x)) / (x * x)
    return shifted + math.log(x) - 0.5 / x - series / (x * x)


def bessel(x: float, order: int) -> float:
    """Return the modified Bessel function of the first kind, by its series."""
    terms = ((x / 2) ** (2 * k + order) / math.factorial(k) / math.factorial(k + order) for k in range(18))
    return math.fsum(terms)


ROWS: dict[str, Row] = {
    "acos": (math.acos, 0.1, 0.9, True),
    "asin": (math.asin, 0.1, 0.9, True),
    "tan": (math.tan, 0.1, 1.2, True),
    "cosh": (math.cosh, 0.1, 2, True),
    "acosh": (math.acosh, 1.3, 3, False),
    "atanh": (math.atanh, 0.1, 0.9, True),
    "exp2": (lambda x: 2.0**x, 0.1, 2, True),
    "frac": (lambda x: math.fmod(x, 1), 2.2, 2.8, True),
    "sinc": (lambda x: math.sin(math.pi * x) / (math.pi * x), 0.2, 0.8, True),
    "logit": (lambda x: math.log(x / (1 - x)), 0.1, 0.9, False),
    "lgamma": (math.lgamma, 2.5, 6, False),
    "digamma": (digamma, 2, 6, False),
    "erfinv": (inverse_erf, 0.1, 0.8, True),
    "i0": (lambda x: bessel(x, 0), 0.2, 3, True),
    "deg2rad": (math.radians, 0.1, 2, True),
    "rad2deg": (math.degrees, 0.1, 2, True),
    "special.expit": (lambda x: 1 / (1 + math.exp(-x)), 0.1, 3, True),
    "special.ndtr": (normal_share, 0.1, 2, True),
    "special.ndtri": (lambda p: math.sqrt(2) * inverse_erf(2 * p - 1), 0.1, 0.9, False),
    "special.log_ndtr": (lambda x: math.log(normal_share(x)), 0.1, 2, True),
    "special.entr": (lambda x: -x * math.log(x), 0.1, 0.9, False),
    "special.i0e": (lambda x: bessel(x, 0) * math.exp(-abs(x)), 0.2, 3, True),
    "special.i1": (lambda x: bessel(x, 1), 0.2, 3, True),
    "special.erfcx": (lambda x: math.exp(x * x) * math.erfc(x), 0.1, 2, True),
    "nn.functional.relu6": (lambda x: min(max(x, 0.0), 6.0), 0.1, 5.5, True),
    "nn.functional.tanhshrink": (lambda x: x - math.tanh(x), 0.3, 2, True),
    "nn.functional.softshrink": (lambda x: math.copysign(max(abs(x) - 0.5, 0.0), x), 0.6, 2, True),
    "nn.functional.hardshrink": (lambda x: x if abs(x) > 0.5 else 0.0, 0.6, 2, True),  # noqa: PLR2004 (its default)
    "nn.functional.celu": (lambda x: x if x > 0 else math.expm1(x), 0.1, 2, True),
}


def _named(t: Any, name: str) -> Any:
    for part in name.split("."):
        t = getattr(t, part)
    return t


def unary(source: random.Random, size: int) -> Iterator[Case]:
    """Yield functions of one number, away from their poles, zeros and edges."""
    for name, (each, low, high, both) in ROWS.items():
        given_shape = shape(source, size)
        count = math.prod(given_shape)
        values = [
            (source.choice((-1, 1)) if both else 1) * value
            for value in seeded_numbers.uniform(source, count, low, high)
        ]
        yield Case(
            name,
            lambda t, x, name=name: _named(t, name)(x),
            lambda x, each=each: [each(v) for v in x],
            (Input(values, given_shape),),
            wide=8,
            dtypes=WIDE,
            least=0.5,
        )
    threshold, value = source.uniform(-0.05, 0.05), source.uniform(1, 3)
    inputs = (Input(seeded_numbers.away_from_zero(source, 12, 0.2), (3, 4)),)
    yield Case(
        "threshold",
        lambda t, x: t.nn.functional.threshold(x, threshold, value),
        lambda x: [v if v > threshold else value for v in x],
        inputs,
        wide=2,
        dtypes=WIDE,
    )


def binary(source: random.Random, size: int) -> Iterator[Case]:
    """Yield functions of two numbers, and of whole numbers and flags."""
    given_shape = shape(source, size)
    count = math.prod(given_shape)
    # A quotient of them is a whole number and 0.2 to 0.8.
    divisors = seeded_numbers.uniform(source, count, 1, 2)
    values = [d * (source.randint(-3, 3) + source.uniform(0.2, 0.8)) for d in divisors]
    left, right = Input(values, given_shape), Input(divisors, given_shape)
    table: dict[str, Callable[[float, float], float]] = {
        "fmod": math.fmod,
        "remainder": lambda a, b: a - b * math.floor(a / b),
        "xlogy": lambda a, b: a * math.log(b),
        "special.xlog1py": lambda a, b: a * math.log1p(b),
        "copysign": lambda a, _: abs(a),
        "logaddexp2": lambda a, b: math.log2(2.0**a + 2.0**b),
        "fmax": max,
        "float_power": lambda a, b: (abs(a) + 0.5) ** b,
    }
    for name, each in table.items():

        def call(t: Any, a: Any, b: Any, name: str = name) -> Any:
            return _named(t, name)(a.abs() + 0.5 if name == "float_power" else a, b)

        # A maximum needs numbers apart, and float_power is float64 whatever it is given.
        first = Input([v - 9 * (v < 1) + 9 * (v >= 1) for v in values], given_shape) if name == "fmax" else left
        yield Case(
            name,
            call,
            lambda a, b, each=each: [each(x, y) for x, y in zip(a, b)],
            (first, right),
            wide=8,
            dtypes=("float64",) if name == "float_power" else WIDE,
            least=2.0,
            gradient=name != "copysign",
        )
    yield from _whole(source, given_shape)


def _whole(source: random.Random, given_shape: tuple[int, ...]) -> Iterator[Case]:
    count = math.prod(given_shape)
    table: dict[str, Callable[[int, int], Any]] = {
        "bitwise_or": lambda a, b: a | b,
        "bitwise_left_shift": lambda a, b: a << b,
        "bitwise_right_shift": lambda a, b: a >> b,
        "gcd": math.gcd,
        "lcm": lambda a, b: abs(a * b) // math.gcd(a, b),
        "logical_and": lambda a, b: bool(a and b),
        "logical_or": lambda a, b: bool(a or b),
        "logical_xor": lambda a, b: bool(a) != bool(b),
        "ge": lambda a, b: a >= b,
        "le": lambda a, b: a <= b,
        "ne": lambda a, b: a != b,
        "fmod of whole numbers by rows": lambda a, b: int(math.fmod(a, b)),
    }
    for name, each in table.items():
        for dtype in ("int64", "int32", "int16"):
            a = Input([source.randint(-60, 60) for _ in range(count)], given_shape, dtype)
            b = Input([source.randint(1, 8) for _ in range(count)], given_shape, dtype)

            def call(t: Any, x: Any, y: Any, name: str = name) -> Any:
                return getattr(t, name.partition(" ")[0])(x, y)

            yield Case(
                f"{name} {dtype}",
                call,
                lambda x, y, each=each: [each(p, q) for p, q in zip(x, y)],
                (a, b),
                gradient=False,
                dtypes=SINGLE,
            )
    whole = Input([source.randint(-60, 60) for _ in range(count)], given_shape, "int32")
    yield Case(
        "bitwise_not",
        lambda t, x: (t.bitwise_not(x), t.logical_not(x), t.signbit(x)),
        lambda x: ([~v for v in x], [not v for v in x], [v < 0 for v in x]),
        (whole,),
        gradient=False,
        dtypes=SINGLE,
    )
    x, at = given(source, count), source.uniform(0.2, 0.8)
    yield Case(
        "heaviside",
        lambda t, v: t.heaviside(t.cat([v, v * 0]), t.full((1,), at, dtype=v.dtype, device=v.device)),
        lambda v: [float(a > 0) for a in v] + [at] * count,
        (x,),
        gradient=False,
        dtypes=WIDE,
        wide=1,
    )


def _numbers(v: Values) -> list[complex]:
    return [complex(*pair) for pair in zip(v[::2], v[1::2])]


def _parts(v: list[complex]) -> Values:
    return [part for c in v for part in (c.real, c.imag)]


def complexes(source: random.Random, size: int) -> Iterator[Case]:
    """Yield arithmetic of complex numbers, given and returned as pairs."""
    count = source.randint(1, 3 + 3 * size)
    a, b = (Input(seeded_numbers.away_from_zero(source, 2 * count, 0.4, 1.5), (count, 2)) for _ in "ab")

    pairs: dict[str, tuple[Callable[..., Any], Callable[[complex, complex], complex]]] = {
        "plus": (lambda _, x, y: x + y, lambda p, q: p + q),
        "times": (lambda _, x, y: x * y, lambda p, q: p * q),
        "divided by": (lambda _, x, y: x / y, lambda p, q: p / q),
        "conjugate times": (lambda _, x, y: x.conj() * y, lambda p, q: p.conjugate() * q),
    }
    for name, (do, each) in pairs.items():

        def call(t: Any, x: Any, y: Any, do: Any = do) -> Any:
            return t.view_as_real(do(t, t.complex(x[:, 0], x[:, 1]), t.complex(y[:, 0], y[:, 1])).resolve_conj())

        def reference(x: Values, y: Values, each: Any = each) -> Values:
            return _parts([each(p, q) for p, q in zip(_numbers(x), _numbers(y))])

        yield Case(f"complex {name}", call, reference, (a, b), wide=8, dtypes=WIDE, least=2.0)
    single: dict[str, Callable[[complex], complex]] = {"exp": cmath.exp, "sin": cmath.sin, "cosh": cmath.cosh}
    for name, one in single.items():

        def applied(t: Any, x: Any, name: str = name) -> Any:
            return t.view_as_real(getattr(t, name)(t.complex(x[:, 0], x[:, 1])))

        yield Case(
            f"complex {name}",
            applied,
            lambda x, one=one: _parts([one(p) for p in _numbers(x)]),
            (a,),
            wide=8,
            dtypes=WIDE,
            least=2.0,
        )
    yield Case(
        "complex abs, angle",
        lambda t, x: (t.abs(t.complex(x[:, 0], x[:, 1])), t.angle(t.complex(x[:, 0], x[:, 1]))),
        lambda x: ([abs(p) for p in _numbers(x)], [cmath.phase(p) for p in _numbers(x)]),
        (a,),
        wide=8,
        dtypes=WIDE,
        least=1.0,
    )
    angles = given(source, count)
    sizes = Input(seeded_numbers.uniform(source, count, 0.3, 2), (count,))
    yield Case(
        "polar",
        lambda t, r, w: t.view_as_real(t.polar(r, w)),
        lambda r, w: _parts([cmath.rect(p, q) for p, q in zip(r, w)]),
        (sizes, angles),
        wide=8,
        dtypes=WIDE,
        least=1.0,
    )


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (unary, binary, complexes)
