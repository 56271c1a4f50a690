"""Operators that add up products: linear layers, matrix products, convolutions, pooling, resizing."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from envcheck.checks.env.support.operators import products_reference, seeded_numbers
from envcheck.checks.env.support.operators.operator_trial import FLOATS, WIDE, Case, Input

Values = list[float]
# Multiples of 1/16 on both sides of zero: whole numbers to 256 are exact in 8 bits.
DISTINCT_BFLOAT16 = 512
FLOATS_BUT_BFLOAT16 = tuple(dtype for dtype in FLOATS if dtype != "bfloat16")


def given(source: random.Random, *shape: int) -> Input:
    """Return an input of this shape with numbers between -2 and 2."""
    return Input(seeded_numbers.uniform(source, math.prod(shape)), shape)


def put(module: Any, **parameters: Any) -> Any:
    """Return the module with these parameters in place of its own."""
    for name, value in parameters.items():
        setattr(module, name, value)
    return module


def linear(source: random.Random, size: int) -> Iterator[Case]:
    """Yield linear layers with and without bias, of one row and of odd sizes, as function and as module."""
    for rows in ((source.randint(2, 4),), (1,), (2, source.randint(1, 3))):
        inner, outputs = source.randint(1, 9 * size), source.randint(1, 7 * size)
        x, w, b = given(source, *rows, inner), given(source, outputs, inner), given(source, outputs)

        def with_bias(a: Values, c: Values, d: Values, inner: int = inner) -> Values:
            return products_reference.linear(a, c, d, inner)

        def without(a: Values, c: Values, inner: int = inner) -> Values:
            return products_reference.linear(a, c, None, inner)

        yield Case(
            "linear", lambda t, a, c, d: t.nn.functional.linear(a, c, d), with_bias, (x, w, b), wide=2, least=1.0
        )
        yield Case(
            "linear without bias", lambda t, a, c: t.nn.functional.linear(a, c), without, (x, w), wide=2, least=1.0
        )
        yield Case(
            "Linear module",
            lambda t, a, c, d: put(t.nn.Linear(c.shape[1], c.shape[0]), weight=c, bias=d)(a),
            with_bias,
            (x, w, b),
            wide=2,
            least=1.0,
        )


def matrices(source: random.Random, size: int) -> Iterator[Case]:
    """Yield the products of matrices and vectors."""
    n, k = (source.randint(2, 3 + 4 * size) for _ in range(2))
    m, batch = (source.randint(1, 3 + 4 * size) for _ in range(2))
    a, b, v = given(source, n, k), given(source, k, m), given(source, k)
    alpha, beta = source.uniform(0.5, 2), source.uniform(0.5, 2)

    def product(x: Values, y: Values) -> Values:
        return products_reference.matmul(x, y, k, m)

    def batched(x: Values, y: Values) -> Values:
        pairs = zip(range(0, len(x), n * k or 1), range(0, len(y), k * m or 1))
        return [z for i, j in pairs for z in product(x[i : i + n * k], y[j : j + k * m])]

    def added(c: Values, x: Values, y: Values) -> Values:
        return [beta * one + alpha * other for one, other in zip(c, product(x, y))]

    big, other = given(source, batch, n, k), given(source, batch, k, m)
    yield Case("matmul", lambda t, x, y: t.matmul(x, y), product, (a, b), wide=2)
    yield Case("at", lambda t, x, y: x @ y, product, (a, b), wide=2)  # noqa: ARG005 (every call takes torch)
    yield Case("matmul of a turned one", lambda t, x, y: t.matmul(x.t().contiguous().t(), y), product, (a, b), wide=2)
    yield Case("mm", lambda t, x, y: t.mm(x, y), product, (a, b), wide=2)
    yield Case("bmm", lambda t, x, y: t.bmm(x, y), batched, (big, other), wide=2)
    yield Case("einsum", lambda t, x, y: t.einsum("bij,bjk->bik", x, y), batched, (big, other), wide=2)
    yield Case(
        "addmm", lambda t, c, x, y: t.addmm(c, x, y, beta=beta, alpha=alpha), added, (given(source, n, m), a, b), wide=3
    )
    yield Case(
        "baddbmm",
        lambda t, c, x, y: t.baddbmm(c, x, y, beta=beta, alpha=alpha),
        lambda c, x, y: [beta * p + alpha * q for p, q in zip(c, batched(x, y))],
        (given(source, batch, n, m), big, other),
        wide=3,
    )
    yield Case("mv", lambda t, x, y: t.mv(x, y), lambda x, y: products_reference.matmul(x, y, k, 1), (a, v), wide=6)
    yield Case(
        "dot",
        lambda t, x, y: t.dot(x, y),
        lambda x, y: products_reference.matmul(x, y, k, 1),
        (v, given(source, k)),
        wide=8,
        least=math.sqrt(k),
    )
    yield Case(
        "outer",
        lambda t, x, y: t.outer(x, y),
        lambda x, y: [p * q for p in x for q in y],
        (v, given(source, m)),
        wide=4,
    )
    yield Case(
        "transpose",
        lambda t, x: x.t().contiguous(),  # noqa: ARG005
        lambda x: products_reference.transposed(x, k),
        (a,),
    )
    yield _bilinear(source)


def _bilinear(source: random.Random) -> Case:
    n, p, q, m = (source.randint(1, 4) for _ in range(4))

    def reference(x: Values, y: Values, w: Values) -> Values:
        grid = itertools.product(range(n), range(m))
        return [
            math.fsum(x[r * p + i] * w[(o * p + i) * q + j] * y[r * q + j] for i in range(p) for j in range(q))
            for r, o in grid
        ]

    inputs = (given(source, n, p), given(source, n, q), given(source, m, p, q))

    def call(t: Any, x: Any, y: Any, w: Any) -> Any:
        return t.nn.functional.bilinear(x, y, w)

    return Case("bilinear", call, reference, inputs, wide=4, least=math.sqrt(p * q))


def _options(source: random.Random, dims: int, size: int, *, grouped: bool) -> products_reference.Convolution:
    groups = source.choice((1, 2, 3)) if grouped else 1
    kernel = tuple(source.randint(1, 3) for _ in range(dims))
    dilation = tuple(source.randint(1, 2) for _ in range(dims))
    least = max((k - 1) * d + 1 for k, d in zip(kernel, dilation))
    return products_reference.Convolution(
        images=source.randint(1, 2),
        channels=groups * source.randint(1, 2),
        filters=groups * source.randint(1, 2),
        sizes=tuple(least + source.randint(0, 2 + size) for _ in range(dims)),
        kernel=kernel,
        stride=tuple(source.randint(1, 2) for _ in range(dims)),
        padding=tuple(source.randint(0, k // 2) for k in kernel),
        dilation=dilation,
        groups=groups,
    )


def _biased(values: Values, bias: Values, shape: Sequence[int]) -> Values:
    inner = math.prod(shape[2:])
    return [value + bias[place // inner % shape[1]] for place, value in enumerate(values)]


def convolutions(source: random.Random, size: int) -> Iterator[Case]:
    """Yield convolutions and transposed ones of one to three dimensions, with every option, and as modules."""
    for dims in (1, 2, 2, 3):
        c = _options(source, dims, size, grouped=True)
        images, weights, out = c.shapes
        triples = c.triples()
        options = {"stride": c.stride, "padding": c.padding, "dilation": c.dilation, "groups": c.groups}
        inputs = (given(source, *images), given(source, *weights), given(source, c.filters))

        def reference(x: Values, w: Values, b: Values, triples: Any = triples, out: Any = out) -> Values:
            return _biased(products_reference.meet(math.prod(out), triples, x, w), b, out)

        def call(t: Any, x: Any, w: Any, b: Any, dims: int = dims, options: Any = options) -> Any:
            return getattr(t.nn.functional, f"conv{dims}d")(x, w, b, **options)

        def module(t: Any, x: Any, w: Any, b: Any, c: Any = c, dims: int = dims, options: Any = options) -> Any:
            layer = getattr(t.nn, f"Conv{dims}d")(c.channels, c.filters, c.kernel, **options)
            return put(layer, weight=w, bias=b)(x)

        yield Case(f"conv{dims}d", call, reference, inputs, wide=3, flaw=c.flaw)
        yield Case(f"Conv{dims}d module", module, reference, inputs, wide=3, dtypes=WIDE)
        yield _transposed(source, c, triples, dims)


def _transposed(source: random.Random, c: products_reference.Convolution, triples: Any, dims: int) -> Case:
    """Return the transposed convolution: every product goes the other way."""
    images, weights, out = c.shapes
    back = [(x, y, w) for y, x, w in triples]

    def reference(y: Values, w: Values, b: Values) -> Values:
        return _biased(products_reference.meet(math.prod(images), back, y, w), b, images)

    def call(t: Any, y: Any, w: Any, b: Any) -> Any:
        function = getattr(t.nn.functional, f"conv_transpose{dims}d")
        return function(y, w, b, c.stride, c.padding, c.left_over, c.groups, c.dilation)

    inputs = (given(source, *out), given(source, *weights), given(source, c.channels))
    return Case(f"conv_transpose{dims}d", call, reference, inputs, wide=9, dtypes=WIDE)


def _windows(c: products_reference.Convolution) -> list[list[int]]:
    """Return the input places under each output place, one channel a filter."""
    one = c._replace(channels=1, filters=1, groups=1, images=1)
    windows: list[list[int]] = [[] for _ in range(math.prod(c.out))]
    for place, where, _ in one.triples():
        windows[place].append(where)
    size = math.prod(c.sizes)
    planes = range(0, c.images * c.channels * size, size)
    return [[plane + where for where in window] for plane in planes for window in windows]


def _distinct(source: random.Random, *shape: int) -> Input:
    """Return numbers that lie apart, so that no maximum changes sides within a difference quotient."""
    numbers = [0.0625 * n for n in range(-(math.prod(shape) // 2), math.prod(shape) - math.prod(shape) // 2)]
    source.shuffle(numbers)
    return Input(numbers, shape)


def pooling(source: random.Random, size: int) -> Iterator[Case]:
    """Yield maxima and means over windows, and adaptive means."""
    for dims in (1, 2, 3):
        c = _options(source, dims, size, grouped=False)._replace(channels=2, images=1)
        images, _, _ = c.shapes
        windows = _windows(c)

        def largest(x: Values, windows: Any = windows) -> Values:
            return [max(x[place] for place in window) for window in windows]

        def pool(t: Any, x: Any, c: Any = c, dims: int = dims) -> Any:
            return getattr(t.nn.functional, f"max_pool{dims}d")(x, c.kernel, c.stride, c.padding, c.dilation)

        # Beyond these some would round to one bfloat16, and either could be the largest of a window.
        dtypes = FLOATS if math.prod(images) <= DISTINCT_BFLOAT16 else FLOATS_BUT_BFLOAT16
        yield Case(f"max_pool{dims}d", pool, largest, (_distinct(source, *images),), wide=6, dtypes=dtypes)
        plain = c._replace(dilation=(1,) * dims)
        counted = source.random() < 0.5  # noqa: PLR2004 (half)
        taps, around = math.prod(plain.kernel), _windows(plain)

        def mean(x: Values, around: Any = around, taps: int = taps, counted: bool = counted) -> Values:  # noqa: FBT001
            return [math.fsum(x[p] for p in window) / (taps if counted else len(window)) for window in around]

        def average(t: Any, x: Any, c: Any = plain, dims: int = dims, counted: bool = counted) -> Any:  # noqa: FBT001
            function = getattr(t.nn.functional, f"avg_pool{dims}d")
            return function(x, c.kernel, c.stride, c.padding, count_include_pad=counted)

        if _windows_fit(plain):
            yield Case(f"avg_pool{dims}d", average, mean, (given(source, *images),), wide=2)
    yield _adaptive(source, size)


def _windows_fit(c: products_reference.Convolution) -> bool:
    """Return whether no window reaches beyond the padding, where torch divides by less."""
    return all(len(window) > 0 for window in _windows(c))


def _adaptive(source: random.Random, size: int) -> Case:
    height, width = (source.randint(2, 5 + size) for _ in range(2))
    rows, columns = source.randint(1, height), source.randint(1, width)

    def span(place: int, pieces: int, whole: int) -> range:
        return range(place * whole // pieces, -(-(place + 1) * whole // pieces))

    def reference(x: Values) -> Values:
        means = []
        for plane in range(2):
            for r, q in itertools.product(range(rows), range(columns)):
                grid = list(itertools.product(span(r, rows, height), span(q, columns, width)))
                means.append(math.fsum(x[(plane * height + i) * width + j] for i, j in grid) / len(grid))
        return means

    def call(t: Any, x: Any) -> Any:
        return t.nn.functional.adaptive_avg_pool2d(x, (rows, columns))

    return Case("adaptive_avg_pool2d", call, reference, (given(source, 1, 2, height, width),), wide=2)


def resizing(source: random.Random, size: int) -> Iterator[Case]:
    """Yield nearest and linear resizing, with and without aligned corners."""
    width, target = source.randint(2, 3 + size), source.randint(2, 6 + 2 * size)
    x = given(source, 1, 2, width)

    def linear_(v: Values, aligned: bool) -> Values:  # noqa: FBT001 (torch's option)
        values = []
        for plane, i in itertools.product(range(2), range(target)):
            at = i * (width - 1) / (target - 1) if aligned else max((i + 0.5) * width / target - 0.5, 0.0)
            low = min(int(at), width - 1)
            high = min(low + 1, width - 1)
            values.append(v[plane * width + low] * (1 - at + low) + v[plane * width + high] * (at - low))
        return values

    def resize(mode: str, **options: Any) -> Callable[..., Any]:
        return lambda t, v: t.nn.functional.interpolate(v, size=target, mode=mode, **options)

    yield Case("interpolate aligned", resize("linear", align_corners=True), lambda v: linear_(v, True), (x,), wide=8)  # noqa: FBT003
    yield Case("interpolate linear", resize("linear", align_corners=False), lambda v: linear_(v, False), (x,), wide=8)  # noqa: FBT003
    yield Case(
        "interpolate nearest twice",
        lambda t, v: t.nn.functional.interpolate(v, scale_factor=2, mode="nearest"),
        lambda v: [value for value in v for _ in range(2)],
        (x,),
    )


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (linear, matrices, convolutions, pooling, resizing)
