"""Pooling with adaptive windows, places of maxima and the way back, powers and divisors; norms across channels."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.cases.dense_layers import FLOATS_BUT_BFLOAT16, given
from envcheck.checks.env.support.operators.cases.reductions import distinct
from envcheck.checks.env.support.operators.operator_trial import FLOATS, WIDE, Case, Input

Values = list[float]
# So many multiples of 1/8 are exact in bfloat16.
DISTINCT_BFLOAT16 = 256


def _span(place: int, pieces: int, whole: int) -> range:
    return range(place * whole // pieces, -(-(place + 1) * whole // pieces))


def pooling(source: random.Random, size: int) -> Iterator[Case]:
    """Yield adaptive pooling of each dimension, places of maxima and the way back, powers, and divisors."""
    for dims in (1, 2, 3):
        sizes = tuple(source.randint(1, 4 + size) for _number in range(dims))
        pieces = tuple(source.randint(1, n) for n in sizes)
        steps = seeded_numbers.strides(sizes)
        cells = [
            [
                sum(i * step for i, step in zip(at, steps))
                for at in itertools.product(*(_span(i, p, n) for i, p, n in zip(cell, pieces, sizes)))
            ]
            for cell in itertools.product(*map(range, pieces))
        ]
        x = distinct(source, 1, 1, *sizes)
        dtypes = FLOATS if math.prod(sizes) <= DISTINCT_BFLOAT16 else FLOATS_BUT_BFLOAT16

        def call(kind: str, dims: int = dims, pieces: Any = pieces) -> Callable[..., Any]:
            return lambda t, v: getattr(t.nn.functional, f"adaptive_{kind}_pool{dims}d")(v, pieces)

        def largest(v: Values, cells: Any = cells) -> Values:
            return [max(v[place] for place in cell) for cell in cells]

        def mean(v: Values, cells: Any = cells) -> Values:
            return [math.fsum(v[place] for place in cell) / len(cell) for cell in cells]

        yield Case(f"adaptive_max_pool{dims}d", call("max"), largest, (x,), wide=6, dtypes=dtypes)
        yield Case(
            f"adaptive_avg_pool{dims}d of all sizes", call("avg"), mean, (given(source, 1, 1, *sizes),), wide=4,
            dtypes=WIDE, least=0.5,
        )  # fmt: skip
    yield from _with_options(source)


def _with_options(source: random.Random) -> Iterator[Case]:
    step, count = source.randint(2, 3), source.randint(2, 4)
    more = source.randint(0, step - 1)
    width = step * count + more
    yield from _largest(distinct(source, 1, 2, width), step, count, width)
    windows = [range(i, i + step) for i in range(0, step * count, step)]
    power = source.choice((1.0, 2.0, 3.0))
    positive = Input(seeded_numbers.uniform(source, 2 * width, 0.3, 2), (1, 2, width))
    yield Case(
        f"lp_pool1d {power:g}",
        lambda t, v: t.nn.functional.lp_pool1d(v, power, step),
        lambda v: [
            math.fsum(v[plane * width + i] ** power for i in window) ** (1 / power)
            for plane in range(2)
            for window in windows
        ],
        (positive,),
        wide=6,
        dtypes=WIDE,
    )
    divisor = step + source.randint(1, 3)
    yield Case(
        "avg_pool2d divisor_override",
        lambda t, v: t.nn.functional.avg_pool2d(v[..., None], (step, 1), divisor_override=divisor),
        lambda v: [
            math.fsum(v[plane * width + i] for i in window) / divisor for plane in range(2) for window in windows
        ],
        (positive,),
        wide=4,
        dtypes=WIDE,
    )
    yield from _beside_channels(source)


def _beside_channels(source: random.Random) -> Iterator[Case]:
    """Yield what divides each number by those of the channels beside it."""
    radius, alpha, beta = source.randint(1, 4), source.uniform(0.1, 1), source.uniform(0.5, 1)
    channels = source.randint(2, 6)

    def local(v: Values) -> Values:
        values = []
        for c, i in itertools.product(range(channels), range(3)):
            near = range(max(0, c - radius // 2), min(channels, c + (radius - 1) // 2 + 1))
            total = math.fsum(v[k * 3 + i] ** 2 for k in near)
            values.append(v[c * 3 + i] / (1.5 + alpha * total / radius) ** beta)
        return values

    yield Case(
        "local_response_norm",
        lambda t, v: t.nn.functional.local_response_norm(v, radius, alpha=alpha, beta=beta, k=1.5),
        local,
        (given(source, 1, channels, 3),),
        wide=4,
        dtypes=WIDE,
    )


def _largest(x: Input, step: int, count: int, width: int) -> Iterator[Case]:
    """Yield the largest values of two planes, also of a last window that is cut off, and their places."""
    windows = [range(i, min(i + step, width)) for i in range(0, width, step)]
    lines = [x.values[:width], x.values[width:]]

    def each(v: Values, do: Callable[[Values], float]) -> Values:
        return [do([v[plane * width + i] for i in window]) for plane in range(2) for window in windows]

    def up(v: Values) -> Values:
        return each(v, max)

    yield Case(
        "max_pool1d ceil_mode",
        lambda t, v: t.nn.functional.max_pool1d(v, step, ceil_mode=True),
        up,
        (x,),
        wide=4,
    )
    places = [max(window, key=lambda i: line[i]) for line in lines for window in windows[:count]]

    def back(v: Values) -> Values:
        values = [0.0] * len(v)
        for n, place in enumerate(places):
            values[n // count * width + place] = v[n // count * width + place]
        return values

    def unpooled(t: Any, v: Any) -> Any:
        top, where = t.nn.functional.max_pool1d(v, step, return_indices=True)
        return t.nn.functional.max_unpool1d(top, where, step, output_size=[width])

    yield Case("max_unpool1d", unpooled, back, (x,), wide=4, dtypes=WIDE)
    yield Case(
        "max_pool1d places",
        lambda t, v: t.nn.functional.max_pool1d(v, step, return_indices=True)[1],
        lambda _: places,
        (x,),
        gradient=False,
    )


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (pooling,)
