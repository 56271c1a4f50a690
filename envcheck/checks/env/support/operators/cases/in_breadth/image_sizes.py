"""Images of another size: resizing by cubics, means and the nearest pixel, and padding by each mode."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.cases.dense_layers import given
from envcheck.checks.env.support.operators.operator_trial import WIDE, Case, Input

Values = list[float]
# A cubic's slope parameter in torch (upsample_bicubic2d, grid_sample); Keys 1981 has -0.5.
CUBIC = -0.75


def resizing(source: random.Random, _: int) -> Iterator[Case]:
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
    yield from _enlarged(source, x, height, width)


def _enlarged(source: random.Random, x: Input, height: int, width: int) -> Iterator[Case]:
    """Yield resizing by a whole factor: by the nearest pixel, and by lines in three dimensions."""
    wide: dict[str, Any] = {"wide": 8, "dtypes": WIDE, "least": 1.0}
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
        values = []
        for at in itertools.product(*(range(n * scale) for n in deep)):
            corners = itertools.product(*(ends(i, n) for i, n in zip(at, deep)))
            terms = [
                v[(a * deep[1] + b) * deep[2] + c] * p * q * r for (a, p), (b, q), (c, r) in corners
            ]  # fmt: skip
            values.append(math.fsum(terms))
        return values

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


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (resizing, padding)
