"""Operators with options that are rarely set, and with numbers that are not finite."""

from __future__ import annotations

import cmath
import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from envcheck.checks.env.support.operators import products_reference, seeded_numbers
from envcheck.checks.env.support.operators.cases.dense_layers import given
from envcheck.checks.env.support.operators.cases.pointwise import sigmoid
from envcheck.checks.env.support.operators.operator_trial import SINGLE, WIDE, Case, Input

Values = list[float]
INFINITE = math.inf


def numbers(source: random.Random, _: int) -> Iterator[Case]:
    """Yield what is not finite, bounds that cross, whole numbers divided, gates."""
    odd = Input([1.5, INFINITE, -INFINITE, math.nan, -2.25, 0.0], (6,))
    other = Input([math.nan, 1.0, 1.0, 2.0, INFINITE, -0.5], (6,))
    low, high = source.uniform(1, 2), source.uniform(-2, -1)
    top, bottom = 96.0, -48.0

    def replaced(v: float) -> float:
        return 0.5 if v != v else min(max(v, bottom), top)  # noqa: PLR0124 (NaN)

    def larger(a: float, b: float, pick: Callable[[float, float], float]) -> float:
        return math.nan if math.isnan(a) or math.isnan(b) else pick(a, b)

    exact: dict[str, Any] = {"gradient": False, "wide": 0.0}
    pair = "nan_to_num"
    yield Case(pair, lambda t, v: t.nan_to_num(v, 0.5, top, bottom), lambda v: list(map(replaced, v)), (odd,), **exact)
    for name, pick in (("maximum", max), ("minimum", min)):

        def reference(a: Values, b: Values, pick: Any = pick) -> Values:
            return [larger(x, y, pick) for x, y in zip(a, b)]

        def call(t: Any, a: Any, b: Any, name: str = name) -> Any:
            return getattr(t, name)(a, b)

        yield Case(f"{name} with NaN", call, reference, (odd, other), **exact)
    yield Case(
        "isnan, isinf, isfinite",
        lambda t, v: (t.isnan(v), t.isinf(v), t.isfinite(v)),
        lambda v: tuple([test(x) for x in v] for test in (math.isnan, math.isinf, math.isfinite)),
        (odd,),
        **exact,
    )
    x = given(source, 7)
    yield Case(
        "clamp with crossed bounds", lambda t, v: t.clamp(v, low, high), lambda v: [high] * len(v), (x,),
        gradient=False, wide=1,
    )  # fmt: skip
    mask = Input([source.random() < 0.5 for _ in range(7)], (7,), "bool")  # noqa: PLR2004 (half)
    yield Case(
        "masked_fill with infinity",
        lambda t, m, v: v.masked_fill(m, -math.inf),  # noqa: ARG005 (every call takes torch)
        lambda m, v: [-INFINITE if k else a for k, a in zip(m, v)],
        (mask, x),
        **exact,
    )
    yield from _whole_numbers(source)
    yield from _gates(source)


def _whole_numbers(source: random.Random) -> Iterator[Case]:
    """Yield whole numbers divided, shifted and combined bit by bit."""
    whole = tuple(
        Input([source.choice((-1, 1)) * source.randint(3, 40) for _ in range(24)], (4, 6), "int64") for _ in "ab"
    )
    divisions: dict[str, tuple[Callable[..., Any], Callable[[int, int], Any]]] = {
        "a // b": (lambda t, a, b: a // b, lambda a, b: a // b),  # noqa: ARG005
        "floor_divide": (lambda t, a, b: t.floor_divide(a, b), lambda a, b: a // b),
        "div trunc": (lambda t, a, b: t.div(a, b, rounding_mode="trunc"), lambda a, b: math.trunc(a / b)),
        "a % b": (lambda t, a, b: a % b, lambda a, b: a % b),  # noqa: ARG005
        "fmod": (lambda t, a, b: t.fmod(a, b), lambda a, b: int(math.fmod(a, b))),
        "a << b": (lambda t, a, b: a << (b % 7), lambda a, b: a << (b % 7)),  # noqa: ARG005
        "a | b": (lambda t, a, b: a | b, lambda a, b: a | b),  # noqa: ARG005
    }
    for name, (call_, each) in divisions.items():
        yield Case(
            f"{name} of whole numbers", call_, lambda a, b, each=each: [each(p, q) for p, q in zip(a, b)], whole,
            gradient=False, dtypes=SINGLE,
        )  # fmt: skip


def _gates(source: random.Random) -> Iterator[Case]:
    """Yield units that let through a share of what comes."""
    two = given(source, 3, 8)
    yield Case(
        "glu",
        lambda t, v: t.nn.functional.glu(v, dim=1),
        lambda v: [v[r * 8 + i] * sigmoid(v[r * 8 + 4 + i]) for r in range(3) for i in range(4)],
        (two,),
        wide=3,
    )
    slope = given(source, 1)
    yield Case(
        "prelu",
        lambda t, v, s: t.nn.functional.prelu(v, s),
        lambda v, s: [a if a > 0 else a * s[0] for a in v],
        (Input(seeded_numbers.away_from_zero(source, 12, 0.2), (3, 4)), slope),
        wide=8,
    )


def products(source: random.Random, _: int) -> Iterator[Case]:
    """Yield batches of one matrix, sums by several letters, and padding and resizing of images."""
    n, k, m = (source.randint(2, 6) for _ in range(3))
    a, b = given(source, 1, n, k), given(source, 1, k, m)

    def product(x: Values, y: Values) -> Values:
        return products_reference.matmul(x, y, k, m)

    def turned(x: Values, y: Values) -> Values:
        return products_reference.transposed(product(x, y), m)

    yield Case("bmm of one", lambda t, x, y: t.bmm(x, y), product, (a, b), wide=2)
    yield Case("matmul of one", lambda t, x, y: t.matmul(x, y), product, (a, b), wide=2)
    flat = (given(source, n, k), given(source, k, m))
    yield Case("einsum ij,jk->ki", lambda t, x, y: t.einsum("ij,jk->ki", x, y), turned, flat, wide=2)
    yield Case(
        "einsum ij->ji", lambda t, x: t.einsum("ij->ji", x), lambda x: products_reference.transposed(x, k), flat[:1]
    )
    yield Case(
        "einsum ij->",
        lambda t, x: t.einsum("ij->", x),
        lambda x: [math.fsum(x)],
        flat[:1],
        wide=8,
        least=math.sqrt(n * k),
    )
    yield from _images(source)


def _images(source: random.Random) -> Iterator[Case]:
    height, width = source.randint(3, 5), source.randint(3, 5)
    rows, columns = height + source.randint(1, 4), width + source.randint(1, 4)
    x = given(source, 1, 1, height, width)

    def bilinear(v: Values, aligned: bool) -> Values:  # noqa: FBT001 (torch's option)
        def at(i: int, size: int, target: int) -> tuple[int, int, float]:
            where = i * (size - 1) / (target - 1) if aligned else max((i + 0.5) * size / target - 0.5, 0.0)
            low = min(int(where), size - 1)
            return low, min(low + 1, size - 1), where - low

        values = []
        for r, c in itertools.product(range(rows), range(columns)):
            (top, bottom, down), (left, right, across) = at(r, height, rows), at(c, width, columns)
            upper = v[top * width + left] * (1 - across) + v[top * width + right] * across
            lower = v[bottom * width + left] * (1 - across) + v[bottom * width + right] * across
            values.append(upper * (1 - down) + lower * down)
        return values

    for aligned in (True, False):

        def resize(t: Any, v: Any, aligned: bool = aligned) -> Any:  # noqa: FBT001
            return t.nn.functional.interpolate(v, size=(rows, columns), mode="bilinear", align_corners=aligned)

        def reference(v: Values, aligned: bool = aligned) -> Values:  # noqa: FBT001
            return bilinear(v, aligned)

        yield Case(f"interpolate bilinear{' aligned' if aligned else ''}", resize, reference, (x,), wide=8, dtypes=WIDE)
    modes: dict[str, Callable[[int], int]] = {
        "reflect": lambda i: abs(i) if i < width else 2 * (width - 1) - i,
        "replicate": lambda i: min(max(i, 0), width - 1),
        "circular": lambda i: i % width,
    }
    line = given(source, 1, 2, width)
    for mode, place in modes.items():

        def padded(v: Values, place: Any = place) -> Values:
            return [v[plane * width + place(i)] for plane in range(2) for i in range(-2, width + 1)]

        def pad(t: Any, v: Any, mode: str = mode) -> Any:
            return t.nn.functional.pad(v, (2, 1), mode=mode)

        yield Case(f"pad {mode}", pad, padded, (line,), wide=3)


def spectra(source: random.Random, _: int) -> Iterator[Case]:
    """Yield Fourier transforms with each norm, and a Cholesky factor."""
    n = source.randint(3, 9)
    real = given(source, 1, n)

    def transform(v: Values, count: int, scale: float) -> Values:
        lines = [
            scale * sum(a * cmath.exp(-2j * math.pi * (j * k % n) / n) for j, a in enumerate(v)) for k in range(count)
        ]
        return [part for c in lines for part in (c.real, c.imag)]

    for norm, scale in (("ortho", 1 / math.sqrt(n)), ("forward", 1 / n), ("backward", 1.0)):
        for name, count in (("rfft", n // 2 + 1), ("fft", n)):

            def call(t: Any, v: Any, name: str = name, norm: str = norm) -> Any:
                return t.view_as_real(getattr(t.fft, name)(v, norm=norm))

            def reference(v: Values, count: int = count, scale: float = scale) -> Values:
                return transform(v, count, scale)

            yield Case(f"{name} {norm}", call, reference, (real,), wide=4, dtypes=WIDE)
    factor = [
        [source.uniform(1, 2) if i == j else source.uniform(-0.3, 0.3) * (j < i) for j in range(4)] for i in range(4)
    ]
    square = [math.fsum(p * q for p, q in zip(a, b)) for a in factor for b in factor]

    def cholesky(v: Values) -> Values:
        made = [[0.0] * 4 for _ in range(4)]
        for i in range(4):
            for j in range(i + 1):
                remainder = v[i * 4 + j] - math.fsum(p * q for p, q in zip(made[i][:j], made[j][:j]))
                made[i][j] = math.sqrt(remainder) if i == j else remainder / made[j][j]
        return [x for row in made for x in row]

    yield Case(
        "cholesky", lambda t, v: t.linalg.cholesky(v), cholesky, (Input(square, (4, 4)),), wide=8, dtypes=WIDE,
        gradient=False,
    )  # fmt: skip


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (numbers, products, spectra)
