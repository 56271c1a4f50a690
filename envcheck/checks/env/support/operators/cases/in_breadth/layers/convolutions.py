"""Convolutions as modules and in rarer forms: padding by name and by mode, sizes asked for, gradients of gradients."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from envcheck.checks.env.support.operators import products_reference
from envcheck.checks.env.support.operators.cases.dense_layers import given, put
from envcheck.checks.env.support.operators.operator_trial import WIDE, Case, Input

Values = list[float]
Convolution = products_reference.Convolution
PLACES: dict[str, Callable[[int, int], int]] = {
    "reflect": lambda i, n: abs(i) if i < n else 2 * (n - 1) - i,
    "replicate": lambda i, n: min(max(i, 0), n - 1),
    "circular": lambda i, n: i % n,
    "zeros": lambda i, n: i if 0 <= i < n else -1,
}


def _around(sizes: tuple[int, ...], edges: tuple[tuple[int, int], ...], mode: str) -> list[int]:
    """Return which place each place of the padded image shows; -1 for zero."""
    lines = [[PLACES[mode](i, n) for i in range(-low, n + high)] for n, (low, high) in zip(sizes, edges)]
    sources = []
    for where in itertools.product(*lines):
        place = 0
        for i, n in zip(where, sizes):
            place = -1 if i < 0 or place < 0 else place * n + i
        sources.append(place)
    return sources


def _shape(source: random.Random, dims: int) -> Convolution:
    kernel, dilation = (tuple(source.randint(1, 3) for _ in range(dims)) for _ in range(2))
    most = max((k - 1) * d for k, d in zip(kernel, dilation))
    sizes = tuple(most + source.randint(2, 4 if dims == 1 else 3) for _ in range(dims))
    groups, one = source.randint(1, 2), (1,) * dims
    return Convolution(2, 2 * groups, groups * source.randint(1, 2), sizes, kernel, one, (0,) * dims, dilation, groups)


def _parameters(source: random.Random, c: Convolution) -> tuple[Input, ...]:
    return given(source, *c.shapes[0]), given(source, *c.shapes[1]), given(source, c.filters)


def padded(source: random.Random, _: int) -> Iterator[Case]:
    """Yield convolutions that keep the size, by name, and modules that pad by each mode."""
    for dims, mode in ((1, "zeros"), (2, "zeros"), (3, "zeros"), *((source.randint(1, 3), m) for m in PLACES)):
        c = _shape(source, dims)
        total = [d * (k - 1) for k, d in zip(c.kernel, c.dilation)]
        # Where one side gets more, it is the last.
        edges = tuple((n // 2, n - n // 2) for n in total)
        around = _around(c.sizes, edges, mode)
        larger = c._replace(sizes=tuple(n + more for n, more in zip(c.sizes, total)))
        triples, inner = larger.triples(), math.prod(c.sizes)

        def reference(
            x: Values,
            w: Values,
            b: Values,
            c: Any = larger,
            around: Any = around,
            inner: int = inner,
            triples: Any = triples,
        ) -> Values:
            planes = range(0, len(x), inner)
            image = [x[plane + place] if place >= 0 else 0.0 for plane in planes for place in around]
            out = math.prod(c.out)
            made = products_reference.meet(c.images * c.filters * out, triples, image, w)
            return [value + b[place // out % c.filters] for place, value in enumerate(made)]

        def function(t: Any, x: Any, w: Any, b: Any, c: Any = c, dims: int = dims) -> Any:
            called = getattr(t.nn.functional, f"conv{dims}d")
            return called(x, w, b, padding="same", dilation=c.dilation, groups=c.groups)

        def module(t: Any, x: Any, w: Any, b: Any, c: Any = c, dims: int = dims, mode: str = mode) -> Any:
            options = {"padding": "same", "dilation": c.dilation, "groups": c.groups, "padding_mode": mode}
            return put(getattr(t.nn, f"Conv{dims}d")(c.channels, c.filters, c.kernel, **options), weight=w, bias=b)(x)

        inputs = _parameters(source, c)
        if mode == "zeros":
            yield Case(f"conv{dims}d, padding same", function, reference, inputs, wide=3, dtypes=WIDE, least=1.0)
        # The input has to be longer than what is reflected.
        if mode != "reflect" or all(high < n for n, (_low, high) in zip(c.sizes, edges)):
            yield Case(f"Conv{dims}d module, {mode}", module, reference, inputs, wide=3, dtypes=WIDE, least=1.0)


def forms(source: random.Random, _: int) -> Iterator[Case]:
    """Yield convolutions of one image without a batch, padding "valid", sizes asked for, frozen weights."""
    for dims in (1, 2, 3):
        yield from _forms(source, dims)


def _forms(source: random.Random, dims: int) -> Iterator[Case]:
    c = _shape(source, dims)._replace(images=1)
    triples, (x, w, b) = c.triples(), _parameters(source, c)
    out = math.prod(c.out)

    def reference(x: Values, w: Values, b: Values) -> Values:
        made = products_reference.meet(c.filters * out, triples, x, w)
        return [value + b[place // out] for place, value in enumerate(made)]

    def single(t: Any, x: Any, w: Any, b: Any) -> Any:
        called = getattr(t.nn.functional, f"conv{dims}d")
        return called(x[0], w, b, padding="valid", dilation=c.dilation, groups=c.groups)

    plain: dict[str, Any] = {"wide": 3, "dtypes": WIDE, "least": 1.0}
    yield Case(f"conv{dims}d of one image", single, reference, (x, w, b), **plain, since=(1, 12))

    def frozen(t: Any, x: Any, w: Any, b: Any) -> Any:
        called = getattr(t.nn.functional, f"conv{dims}d")
        return called(x, w.to(x.dtype), b, dilation=c.dilation, groups=c.groups)

    fixed = Input([round(8 * v) / 8 for v in w.values], w.shape, "float64")
    yield Case(f"conv{dims}d of frozen weights", frozen, reference, (x, fixed, b), **plain)
    stride = source.randint(2, 3)
    s = c._replace(stride=(stride,) * dims, sizes=tuple(n + source.randint(0, 2) for n in c.sizes))
    back, sizes = [(x, y, w) for y, x, w in s.triples()], s.shapes[0]
    inner = math.prod(s.sizes)

    def transposed(y: Values, w: Values, b: Values) -> Values:
        made = products_reference.meet(math.prod(sizes), back, y, w)
        return [value + b[place // inner] for place, value in enumerate(made)]

    def module(t: Any, y: Any, w: Any, b: Any) -> Any:
        options = {"stride": s.stride, "dilation": s.dilation, "groups": s.groups}
        layer = getattr(t.nn, f"ConvTranspose{dims}d")(s.filters, s.channels, s.kernel, **options)
        return put(layer, weight=w, bias=b)(y, output_size=s.sizes)

    inputs = (given(source, *s.shapes[2]), given(source, *s.shapes[1]), given(source, s.channels))
    yield Case(f"ConvTranspose{dims}d module of a size", module, transposed, inputs, wide=9, dtypes=WIDE, least=1.0)


def second(source: random.Random, _: int) -> Iterator[Case]:
    """Yield the gradient of a convolution's input as a function that is differentiated again, as penalties are."""
    for dims in (1, 2):
        yield _second(source, dims)


def _second(source: random.Random, dims: int) -> Case:
    c = _shape(source, dims)
    triples, (x, w, _b) = c.triples(), _parameters(source, c)
    count, size = math.prod(c.shapes[2]), math.prod(c.shapes[0])

    def reference(x: Values, w: Values) -> Values:
        made = products_reference.meet(count, triples, x, w)
        slopes = [3 * value * value for value in made]
        return products_reference.meet(size, ((b, a, k) for a, b, k in triples), slopes, w)

    def call(t: Any, x: Any, w: Any) -> Any:
        called = getattr(t.nn.functional, f"conv{dims}d")
        made = called(x, w, dilation=c.dilation, groups=c.groups)
        return t.autograd.grad((made**3).sum(), x, create_graph=True)[0]

    return Case(f"gradient of conv{dims}d as a function", call, reference, (x, w), wide=16, dtypes=WIDE, least=4.0)


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (padded, forms, second)
