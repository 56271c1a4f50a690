"""Operators on images: samples of a grid, windows and their places, resizing, pixels that become channels, padding."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from envcheck.checks.env.support.operators import products_reference, seeded_numbers
from envcheck.checks.env.support.operators.cases.dense_layers import given
from envcheck.checks.env.support.operators.operator_trial import WIDE, Case, Input

Values = list[float]
# A cubic's slope parameter in torch (upsample_bicubic2d, grid_sample); Keys 1981 has -0.5.
CUBIC = -0.75


def _reflected(at: float, low: float, high: float) -> float:
    """Return where a point lies after it was thrown back at both edges as often as needed."""
    span = high - low
    far = math.fmod(abs(at - low), 2 * span)
    return low + (far if far <= span else 2 * span - far)


def sampling(source: random.Random, _: int) -> Iterator[Case]:  # noqa: C901 (a formula a function)
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
            found = []
            for plane, n in itertools.product(range(2), range(points)):
                x, y = place(g[2 * n], width), place(g[2 * n + 1], height)
                corners = itertools.product((math.floor(y), math.floor(y) + 1), (math.floor(x), math.floor(x) + 1))
                found.append(
                    math.fsum(
                        v[(plane * height + r) * width + c] * (1 - abs(y - r)) * (1 - abs(x - c))
                        for r, c in corners
                        if 0 <= r < height and 0 <= c < width
                    )
                )
            return found

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
        found = [0.0] * len(v)
        for value, place in zip(v, places):
            found[place] = value
        return found

    yield Case(
        "pixel_shuffle",
        lambda t, v: t.nn.functional.pixel_shuffle(v, factor),
        shuffled,
        (given(source, images, *small),),
        wide=2,
    )
    yield Case(
        "pixel_unshuffle",
        lambda t, v: t.nn.functional.pixel_unshuffle(v, factor),
        gathered,
        (given(source, images, *large),),
        wide=2,
    )
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
        found = [0.0] * to
        for column, pixel in triples:
            one, other = (pixel, column) if columns_first else (column, pixel)
            found[one] += v[other]
        return found

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


def resizing(source: random.Random, _: int) -> Iterator[Case]:  # noqa: C901 (a formula a function)
    """Yield resizing by cubics, by means, in three dimensions, and by the nearest pixel."""
    height, width = source.randint(2, 5), source.randint(2, 5)
    rows, columns = source.randint(2, 8), source.randint(2, 8)
    x = given(source, 1, 2, height, width)
    aligned = source.random() < 0.5  # noqa: PLR2004 (half)

    def near(r: float) -> float:
        return (CUBIC + 2) * r**3 - (CUBIC + 3) * r**2 + 1

    def far(r: float) -> float:
        return CUBIC * (r**3 - 5 * r**2 + 8 * r - 4)

    def taps(i: int, size: int, target: int) -> list[tuple[int, float]]:
        at = i * (size - 1) / (target - 1) if aligned else (i + 0.5) * size / target - 0.5
        low = math.floor(at)
        r = at - low
        weights = (far(r + 1), near(r), near(1 - r), far(2 - r))
        return [(min(max(low - 1 + k, 0), size - 1), weight) for k, weight in enumerate(weights)]

    def separable(v: Values, each: Callable[[int, int, int], list[tuple[int, float]]]) -> Values:
        return [
            math.fsum(
                v[(plane * height + i) * width + j] * p * q
                for (i, p), (j, q) in itertools.product(each(r, height, rows), each(c, width, columns))
            )
            for plane, r, c in itertools.product(range(2), range(rows), range(columns))
        ]

    def call(mode: str, **options: Any) -> Callable[..., Any]:
        return lambda t, v: t.nn.functional.interpolate(v, size=(rows, columns), mode=mode, **options)

    wide: dict[str, Any] = {"wide": 8, "dtypes": WIDE, "least": 1.0}
    cubic = call("bicubic", align_corners=aligned)
    # A whole coordinate may be rounded below itself: both taps then agree, for a cubic is continuous.
    yield Case(f"interpolate bicubic{' aligned' if aligned else ''}", cubic, lambda v: separable(v, taps), (x,), **wide)

    def span(i: int, size: int, target: int) -> list[tuple[int, float]]:
        places = range(i * size // target, -(-(i + 1) * size // target))
        return [(place, 1 / len(places)) for place in places]

    yield Case("interpolate area", call("area"), lambda v: separable(v, span), (x,), **wide)
    scale = source.randint(2, 3)

    def repeated(v: Values) -> Values:
        grid = itertools.product(range(2), range(height * scale), range(width * scale))
        return [v[(plane * height + r // scale) * width + c // scale] for plane, r, c in grid]

    for mode in ("nearest", "nearest-exact"):

        def nearest(t: Any, v: Any, mode: str = mode) -> Any:
            return t.nn.functional.interpolate(v, scale_factor=scale, mode=mode)

        yield Case(f"interpolate {mode} of images", nearest, repeated, (x,), wide=8, dtypes=WIDE, least=1.0)
    deep = tuple(source.randint(1, 3) for _number in "dhw")

    def ends(i: int, size: int) -> list[tuple[int, float]]:
        at = max((i + 0.5) / scale - 0.5, 0.0)
        low = min(int(at), size - 1)
        return [(low, 1 - at + low), (min(low + 1, size - 1), at - low)]

    def trilinear(v: Values) -> Values:
        found = []
        for at in itertools.product(*(range(n * scale) for n in deep)):
            corners = itertools.product(*(ends(i, n) for i, n in zip(at, deep)))
            terms = [
                v[(a * deep[1] + b) * deep[2] + c] * p * q * r for (a, p), (b, q), (c, r) in corners
            ]  # fmt: skip
            found.append(math.fsum(terms))
        return found

    yield Case(
        "interpolate trilinear",
        lambda t, v: t.nn.functional.interpolate(v, scale_factor=scale, mode="trilinear", align_corners=False),
        trilinear,
        (given(source, 1, 1, *deep),),
        **wide,
    )


def _padded(
    v: Sequence[float], sizes: Sequence[int], around: Sequence[int], place: Callable[[int, int], int]
) -> Values:
    """Return planes with `around` pixels more at each end of each dimension, taken from where `place` says."""
    pairs = list(zip(around[-2::-2], around[-1::-2]))
    spans = [[place(i, n) for i in range(-before, n + after)] for n, (before, after) in zip(sizes, pairs)]
    steps, plane = seeded_numbers.strides(sizes), math.prod(sizes)
    return [
        v[start + sum(i * step for i, step in zip(at, steps))]
        for start in range(0, len(v), plane)
        for at in itertools.product(*spans)
    ]


def padding(source: random.Random, _: int) -> Iterator[Case]:
    """Yield padding of images and volumes by each mode, and crops by negative padding."""
    modes: dict[str, Callable[[int, int], int]] = {
        "reflect": lambda i, n: abs(i) if i < n else 2 * (n - 1) - i,
        "replicate": lambda i, n: min(max(i, 0), n - 1),
        "circular": lambda i, n: i % n,
    }
    for (mode, place), dims in itertools.product(modes.items(), (2, 3)):
        sizes = tuple(source.randint(3, 4) for _number in range(dims))
        around = [source.randint(0, 2) for _number in range(2 * dims)]

        def call(t: Any, v: Any, mode: str = mode, around: Any = around) -> Any:
            return t.nn.functional.pad(v, around, mode=mode)

        def reference(v: Values, sizes: Any = sizes, around: Any = around, place: Any = place) -> Values:
            return _padded(v, sizes, around, place)

        yield Case(
            f"pad {mode} in {dims} dimensions",
            call,
            reference,
            (given(source, 1, 2, *sizes),),
            wide=4,
            dtypes=WIDE,
        )
    height, width = source.randint(3, 5), source.randint(3, 5)

    def cropped(v: Values) -> Values:
        return [v[r * width + c] if r < height else 1.5 for r in range(1, height + 1) for c in range(1, width - 1)]

    yield Case(
        "pad by less than nothing",
        lambda t, v: t.nn.functional.pad(v, (-1, -1, -1, 1), value=1.5),
        cropped,
        (given(source, height, width),),
        wide=2,
    )


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (sampling, moved, resizing, padding)
