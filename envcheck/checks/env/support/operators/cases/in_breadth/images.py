"""Operators on images: samples of a grid, windows and their places, pixels that become channels."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from envcheck.checks.env.support.operators import products_reference
from envcheck.checks.env.support.operators.cases.dense_layers import given
from envcheck.checks.env.support.operators.operator_trial import WIDE, Case, Input

Values = list[float]


def _reflected(at: float, low: float, high: float) -> float:
    """Return where a point lies after it was thrown back at both edges as often as needed."""
    span = high - low
    far = math.fmod(abs(at - low), 2 * span)
    return low + (far if far <= span else 2 * span - far)


def sampling(source: random.Random, _: int) -> Iterator[Case]:
    """Yield samples of images at points of a grid, within and beyond their edges, and the grid of a matrix."""
    height, width, points = source.randint(2, 5), source.randint(2, 5), source.randint(2, 6)
    image = given(source, 1, 2, height, width)
    for padding, aligned in itertools.product(("zeros", "border", "reflection"), (False, True)):
        # Points are far from whole and half pixels, where the slope changes.
        parts = (0.15, 0.35, 0.65, 0.85)
        grid = []
        for _number in range(points):
            for size in (width, height):
                at = source.randint(-2, size) + source.choice(parts)
                grid.append(2 * at / (size - 1) - 1 if aligned else (2 * at + 1) / size - 1)

        def place(at: float, size: int, padding: str = padding, aligned: bool = aligned) -> float:  # noqa: FBT001 (torch's option)
            where = (at + 1) / 2 * (size - 1) if aligned else ((at + 1) * size - 1) / 2
            if padding == "reflection":
                where = _reflected(where, *((0, size - 1) if aligned else (-0.5, size - 0.5)))
            return where if padding == "zeros" else min(max(where, 0), size - 1)

        def reference(v: Values, g: Values, place: Any = place) -> Values:
            values = []
            for plane, n in itertools.product(range(2), range(points)):
                x, y = place(g[2 * n], width), place(g[2 * n + 1], height)
                corners = itertools.product((math.floor(y), math.floor(y) + 1), (math.floor(x), math.floor(x) + 1))
                values.append(
                    math.fsum(
                        v[(plane * height + r) * width + c] * (1 - abs(y - r)) * (1 - abs(x - c))
                        for r, c in corners
                        if 0 <= r < height and 0 <= c < width
                    )
                )
            return values

        def call(t: Any, v: Any, g: Any, padding: str = padding, aligned: bool = aligned) -> Any:  # noqa: FBT001
            return t.nn.functional.grid_sample(v, g, mode="bilinear", padding_mode=padding, align_corners=aligned)

        yield Case(
            f"grid_sample {padding}{' aligned' if aligned else ''}",
            call,
            reference,
            (image, Input(grid, (1, 1, points, 2))),
            wide=8,
            dtypes=WIDE,
            least=1.0,
        )
    yield from _affine_grid(source, height, width)


def _affine_grid(source: random.Random, height: int, width: int) -> Iterator[Case]:
    """Yield the grid that a matrix of two rows makes."""
    aligned = source.random() < 0.5  # noqa: PLR2004 (half)

    def affine(m: Values) -> Values:
        def along(n: int) -> Values:
            return [2 * i / (n - 1) - 1 if aligned else (2 * i + 1) / n - 1 for i in range(n)]

        grid = itertools.product(along(height), along(width), range(2))
        return [m[3 * k] * x + m[3 * k + 1] * y + m[3 * k + 2] for y, x, k in grid]

    yield Case(
        "affine_grid",
        lambda t, m: t.nn.functional.affine_grid(m, [1, 2, height, width], align_corners=aligned),
        affine,
        (given(source, 1, 2, 3),),
        wide=8,
        dtypes=WIDE,
        least=1.0,
    )


def moved(source: random.Random, _: int) -> Iterator[Case]:
    """Yield pixels that become channels and back, shuffled channels, windows as columns and their sum."""
    images, channels, factor = source.randint(1, 2), source.randint(1, 3), source.randint(2, 3)
    height, width = source.randint(1, 4), source.randint(1, 4)
    small, large = (channels * factor * factor, height, width), (channels, height * factor, width * factor)

    grid = itertools.product(range(images), range(channels), range(large[1]), range(large[2]))
    places = [
        (((n * channels + c) * factor + y % factor) * factor + x % factor) * height * width
        + y // factor * width
        + x // factor
        for n, c, y, x in grid
    ]

    def shuffled(v: Values) -> Values:
        return [v[place] for place in places]

    def gathered(v: Values) -> Values:
        values = [0.0] * len(v)
        for value, place in zip(v, places):
            values[place] = value
        return values

    def rearranged(name: str) -> Callable[[Any, Any], Any]:
        return lambda t, v: getattr(t.nn.functional, name)(v, factor)

    for name, right, shape in (("pixel_shuffle", shuffled, small), ("pixel_unshuffle", gathered, large)):
        yield Case(name, rearranged(name), right, (given(source, images, *shape),), wide=2)
    yield from _windows(source)
    planes = channels * factor

    def mixed(v: Values) -> Values:
        return [
            v[(n * planes + c % factor * channels + c // factor) * width + x]
            for n, c, x in itertools.product(range(images), range(planes), range(width))
        ]

    yield Case(
        "channel_shuffle",
        lambda t, v: t.nn.functional.channel_shuffle(v, factor),
        mixed,
        (given(source, images, planes, width, 1),),
        gradient=False,
        wide=2,
    )


def _option(source: random.Random) -> products_reference.Convolution:
    kernel = (source.randint(1, 3), source.randint(1, 3))
    dilation = (source.randint(1, 2), source.randint(1, 2))
    sizes = tuple((k - 1) * d + 1 + source.randint(0, 3) for k, d in zip(kernel, dilation))
    return products_reference.Convolution(
        images=1,
        channels=1,
        filters=1,
        sizes=sizes,
        kernel=kernel,
        stride=(source.randint(1, 2), source.randint(1, 2)),
        padding=tuple(source.randint(0, k // 2) for k in kernel),
        dilation=dilation,
        groups=1,
    )


def _windows(source: random.Random) -> Iterator[Case]:
    """Yield unfold, which makes a column of each window, and fold, which adds them up again."""
    c = _option(source)
    planes, size, columns, taps = 2, math.prod(c.sizes), math.prod(c.out), math.prod(c.kernel)
    triples = [
        ((plane * taps + tap) * columns + place, plane * size + where)
        for plane in range(planes)
        for place, where, tap in c.triples()
    ]
    options = {"dilation": c.dilation, "padding": c.padding, "stride": c.stride}

    def added(v: Values, to: int, *, columns_first: bool) -> Values:
        sums = [0.0] * to
        for column, pixel in triples:
            one, other = (pixel, column) if columns_first else (column, pixel)
            sums[one] += v[other]
        return sums

    yield Case(
        "unfold",
        lambda t, v: t.nn.functional.unfold(v, c.kernel, **options),
        lambda v: added(v, planes * taps * columns, columns_first=False),
        (given(source, 1, planes, *c.sizes),),
        wide=4,
        dtypes=WIDE,
    )
    yield Case(
        "fold",
        lambda t, v: t.nn.functional.fold(v, c.sizes, c.kernel, **options),
        lambda v: added(v, planes * size, columns_first=True),
        (given(source, 1, planes * taps, columns),),
        wide=4,
        dtypes=WIDE,
        least=1.0,
    )


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (sampling, moved)
