"""Operators that make one number of a line, and running sums."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.cases.dense_layers import given
from envcheck.checks.env.support.operators.operator_trial import SINGLE, WIDE, Case, Input

Values = list[float]
Line = Sequence[float]


def line_shape(source: random.Random, size: int) -> tuple[int, int, int]:
    """Return three dimensions that grow with `size`."""
    return source.randint(2, 3 + size), source.randint(2, 4 + 3 * size), source.randint(1, 5)


def distinct(source: random.Random, *shape: int) -> Input:
    """Return shuffled multiples of 1/8, all different and exact in 16 bits up to 256 of them."""
    count = math.prod(shape)
    numbers = [(n - count // 2) / 8 for n in range(count)]
    source.shuffle(numbers)
    return Input(numbers, shape)


def _variance(line: Line, less: int) -> float:
    mean = math.fsum(line) / len(line)
    return math.fsum((x - mean) ** 2 for x in line) / (len(line) - less)


def reductions(source: random.Random, size: int) -> Iterator[Case]:
    """Yield what makes one number of a line, along each dimension and over all."""
    table: dict[str, tuple[Callable[..., Any], Callable[[Line], Any], float]] = {
        "sum": (lambda t, x, d: t.sum(x, dim=d), math.fsum, 2),
        "mean": (lambda t, x, d: x.mean(dim=d, keepdim=True), lambda v: math.fsum(v) / len(v), 2),  # noqa: ARG005
        "var": (lambda t, x, d: t.var(x, dim=d), lambda v: _variance(v, 1), 4),
        "var biased": (lambda t, x, d: t.var(x, dim=d, unbiased=False), lambda v: _variance(v, 0), 4),
        "std": (lambda t, x, d: x.std(dim=d), lambda v: math.sqrt(_variance(v, 1)), 8),  # noqa: ARG005
        "logsumexp": (
            lambda t, x, d: t.logsumexp(x, dim=d),
            lambda v: max(v) + math.log(math.fsum(math.exp(a - max(v)) for a in v)),
            3,
        ),
        "norm": (lambda t, x, d: t.linalg.vector_norm(x, dim=d), lambda v: math.hypot(*v), 3),
        "norm 1": (lambda t, x, d: t.norm(x, p=1, dim=d), lambda v: math.fsum(map(abs, v)), 3),
        "norm 2": (lambda t, x, d: x.norm(dim=d), lambda v: math.hypot(*v), 3),  # noqa: ARG005
    }
    for name, (call, each, wide) in table.items():
        shape, dim = line_shape(source, size), source.randint(0, 1)
        values = Input(seeded_numbers.away_from_zero(source, math.prod(shape), 0.1), shape)
        # Near a line of equal numbers the slope of a standard deviation has no bound.
        values = distinct(source, *shape) if name == "std" else values

        def run(t: Any, x: Any, call: Any = call, dim: int = dim) -> Any:
            return call(t, x, dim)

        def reference(x: Values, shape: Any = shape, dim: int = dim, each: Any = each) -> Values:
            return seeded_numbers.along(x, shape, dim, lambda line: [each(line)])

        # The largest number and the logarithm of the rest may cancel.
        least = 1.0 if name == "logsumexp" else 0.0
        yield Case(name, run, reference, (values,), wide=wide, least=least)
    shape = line_shape(source, size)
    whole = given(source, *shape)
    count = math.prod(shape)
    yield Case("sum of all", lambda t, x: x.sum(), lambda x: [math.fsum(x)], (whole,), wide=8, least=math.sqrt(count))  # noqa: ARG005
    yield Case(
        "mean of all",
        lambda t, x: t.mean(x),
        lambda x: [math.fsum(x) / count],
        (whole,),
        wide=8,
        least=1 / math.sqrt(count),
    )
    yield from _extremes(source, size)


def _extremes(source: random.Random, size: int) -> Iterator[Case]:
    shape, dim = line_shape(source, size), source.randint(0, 1)
    x = distinct(source, *shape)
    table: dict[str, tuple[Callable[..., Any], Callable[[Line], Any]]] = {
        "amax": (lambda t, v: t.amax(v, dim=dim), max),
        "amin": (lambda t, v: t.amin(v, dim=dim), min),
        "max": (lambda t, v: t.max(v, dim=dim)[0], max),
        "min": (lambda t, v: v.min(dim=dim)[0], min),  # noqa: ARG005
        "median": (lambda t, v: t.median(v, dim=dim)[0], lambda line: sorted(line)[(len(line) - 1) // 2]),
    }
    for name, (call, each) in table.items():
        yield Case(name, call, lambda v, each=each: seeded_numbers.along(v, shape, dim, lambda li: [each(li)]), (x,))
    for name, best in (("argmax", max), ("argmin", min)):

        def place(v: Values, best: Any = best) -> list[int]:
            return seeded_numbers.along(v, shape, dim, lambda li: [list(li).index(best(li))])

        def call_(t: Any, v: Any, name: str = name) -> Any:
            return getattr(t, name)(v, dim=dim)

        yield Case(name, call_, place, (x,), gradient=False)
    flags = Input([source.random() < 0.7 for _ in range(math.prod(shape))], shape, "bool")  # noqa: PLR2004 (a share)
    for name, test in (("all", all), ("any", any)):
        yield Case(
            name,
            lambda t, v, name=name: getattr(t, name)(v, dim=dim),
            lambda v, test=test: seeded_numbers.along(v, shape, dim, lambda li: [test(li)]),
            (flags,),
            gradient=False,
            dtypes=SINGLE,
        )


def scans(source: random.Random, size: int) -> Iterator[Case]:
    """Yield running sums, products and maxima, and differences."""
    shape, dim = line_shape(source, size), source.randint(0, 1)
    x = Input(seeded_numbers.away_from_zero(source, math.prod(shape), 0.6, 1.3), shape)
    running: dict[str, tuple[Callable[..., Any], Any, float]] = {
        "cumsum": (lambda t, v: t.cumsum(v, dim=dim), lambda a, b: a + b, 8),
        "cumprod": (lambda t, v: t.cumprod(v, dim=dim), lambda a, b: a * b, 32),
    }
    for name, (call, each, wide) in running.items():

        def reference(v: Values, each: Any = each) -> Values:
            return seeded_numbers.along(v, shape, dim, lambda line: list(itertools.accumulate(line, each)))

        yield Case(name, call, reference, (x,), wide=wide, dtypes=WIDE)
    spread = distinct(source, *shape)
    yield Case(
        "cummax",
        lambda t, v: t.cummax(v, dim=dim)[0],
        lambda v: seeded_numbers.along(v, shape, dim, lambda line: list(itertools.accumulate(line, max))),
        (spread,),
        dtypes=WIDE,
    )
    yield Case(
        "diff",
        lambda t, v: t.diff(v, dim=dim),
        lambda v: seeded_numbers.along(v, shape, dim, lambda line: [b - a for a, b in zip(line, line[1:])]),
        (spread,),
        wide=2,
        dtypes=WIDE,
    )


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (reductions, scans)
