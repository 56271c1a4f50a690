"""Operators at their edges: numbers that overflow, four dimensions, ties, duplicates, one element, long lines."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.cases.dense_layers import given, put
from envcheck.checks.env.support.operators.cases.losses import cross_entropy
from envcheck.checks.env.support.operators.cases.norms import log_softmax, normalized, softmax
from envcheck.checks.env.support.operators.operator_trial import SINGLE, WIDE, Case, Input

Values = list[float]


def softmaxes(source: random.Random, _: int) -> Iterator[Case]:
    """Yield softmax of numbers whose powers overflow, along each dimension of one to four, as function and method."""
    table: dict[str, Callable[[Sequence[float]], Values]] = {"softmax": softmax, "log_softmax": log_softmax}
    for dims, (name, each) in itertools.product((1, 2, 3, 4), table.items()):
        shape = tuple(source.randint(2, 4) for _ in range(dims))
        dim, away = source.randrange(dims), source.choice((-200.0, 200.0))
        x = Input([away + v for v in seeded_numbers.uniform(source, math.prod(shape))], shape)

        def call(t: Any, v: Any, name: str = name, dim: int = dim) -> Any:
            return getattr(t.nn.functional, name)(v, dim=dim)

        def reference(v: Values, shape: Any = shape, dim: int = dim, each: Any = each) -> Values:
            return seeded_numbers.along(v, shape, dim, each)

        yield Case(f"{name} of {dims} dimensions, large numbers", call, reference, (x,), wide=4)
    rows, width = 3, source.randint(3, 9)
    x = Input([200 + v for v in seeded_numbers.uniform(source, rows * width)], (rows, width))
    yield Case(
        "logsumexp of large numbers",
        lambda t, v: t.logsumexp(v, dim=1),
        lambda v: seeded_numbers.along(v, (rows, width), 1, lambda line: [max(line) - max(log_softmax(line))]),
        (x,),
        wide=3,
        dtypes=WIDE,
    )


def losses(source: random.Random, _: int) -> Iterator[Case]:
    """Yield cross entropy of large numbers, of images, and of targets that are shares."""
    rows, classes, side = source.randint(2, 4), source.randint(2, 6), source.randint(2, 4)
    place = Input([source.randrange(classes) for _ in range(rows * side)], (rows, side), "int64")

    def images(x: Values, y: list[int]) -> Values:
        lines = [[x[(n * classes + c) * side + i] for c in range(classes)] for n in range(rows) for i in range(side)]
        return [cross_entropy(lines, y)]

    yield Case(
        "cross_entropy of images",
        lambda t, x, y: t.nn.functional.cross_entropy(x, y),
        images,
        (Input([v + 150 for v in seeded_numbers.uniform(source, rows * classes * side)], (rows, classes, side)), place),
        wide=4,
        dtypes=SINGLE,
    )
    shares = [v for _ in range(rows) for v in softmax(seeded_numbers.uniform(source, classes))]
    soft = Input(seeded_numbers.rounded(shares, "float32"), (rows, classes), "float32")

    def mixed(x: Values, y: Values) -> Values:
        pairs = zip(*(list(zip(*[iter(v)] * classes)) for v in (x, y)))
        return [-math.fsum(q * p for line, target in pairs for p, q in zip(log_softmax(line), target)) / rows]

    yield Case(
        "cross_entropy of shares",
        lambda t, x, y: t.nn.functional.cross_entropy(x, y),
        mixed,
        (given(source, rows, classes), soft),
        wide=4,
        dtypes=SINGLE,
    )


def defaults(source: random.Random, _: int) -> Iterator[Case]:
    """Yield modules without options, of numbers so small that their default eps counts."""
    rows, width = source.randint(2, 4), source.randint(4, 9)
    x = Input([v * 2.0**-8 for v in seeded_numbers.away_from_zero(source, rows * width, 0.5)], (rows, width))
    w, b = given(source, width), given(source, width)

    def scaled(line: Sequence[float], p: Values, q: Values) -> Values:
        return [n * scale + shift for n, scale, shift in zip(normalized(line, 1e-5), p, q)]

    def layer(v: Values, p: Values, q: Values) -> Values:
        return [a for i in range(0, len(v), width) for a in scaled(v[i : i + width], p, q)]

    def group(v: Values, p: Values, q: Values) -> Values:
        return layer(v, p, q)

    # The fourth derivative of 1 / sqrt(variance + eps) is large here: the quotient of differences says nothing.
    options: dict[str, Any] = {"wide": 8, "dtypes": WIDE, "gradient": False}
    yield Case(
        "LayerNorm module by default",
        lambda t, v, p, q: put(t.nn.LayerNorm(width), weight=t.nn.Parameter(p), bias=t.nn.Parameter(q))(v),
        layer,
        (x, w, b),
        **options,
    )
    yield Case(
        "layer_norm by default",
        lambda t, v, p, q: t.nn.functional.layer_norm(v, (width,), p, q),
        layer,
        (x, w, b),
        **options,
    )
    yield Case(
        "group_norm by default", lambda t, v, p, q: t.nn.functional.group_norm(v, 1, p, q), group, (x, w, b), **options
    )


def selections(source: random.Random, _: int) -> Iterator[Case]:
    """Yield stable sorting of ties, the places of the largest, one alone, and rows that are added to twice."""
    rows, width = source.randint(2, 3), source.randint(20, 40)
    tied = Input([float(source.randint(0, 4)) for _ in range(rows * width)], (rows, width))
    numbers = list(range(rows * width))
    source.shuffle(numbers)
    apart = Input([n / 8 for n in numbers], (rows, width))
    few = source.randint(2, 5)

    def lines(v: Values) -> list[Values]:
        return [v[i : i + width] for i in range(0, len(v), width)]

    def order(v: Values, count: int, down: bool) -> list[int]:  # noqa: FBT001 (torch's option)
        return [i for x in lines(v) for i in sorted(range(width), key=lambda i: x[i], reverse=down)[:count]]

    plain: dict[str, Any] = {"gradient": False, "dtypes": SINGLE}
    table: dict[str, tuple[Callable[..., Any], Callable[[Values], Any], Input]] = {
        "sort stable": (lambda t, v: t.sort(v, dim=1, stable=True)[1], lambda v: order(v, width, False), tied),  # noqa: FBT003
        "sort places": (lambda t, v: t.sort(v, dim=1)[1], lambda v: order(v, width, False), apart),  # noqa: FBT003
        "topk places": (lambda t, v: t.topk(v, few, dim=1)[1], lambda v: order(v, few, True), apart),  # noqa: FBT003
        "topk of one": (lambda t, v: t.topk(v, 1, dim=1)[0], lambda v: [max(x) for x in lines(v)], apart),
        "topk smallest": (
            lambda t, v: t.topk(v, few, dim=1, largest=False)[0],
            lambda v: [a for x in lines(v) for a in sorted(x)[:few]],
            apart,
        ),
        "max places": (lambda t, v: t.max(v, dim=1)[1], lambda v: order(v, 1, True), apart),  # noqa: FBT003
        "min places": (lambda t, v: t.min(v, dim=1)[1], lambda v: order(v, 1, False), apart),  # noqa: FBT003
        "kthvalue": (
            lambda t, v: t.kthvalue(v, few, dim=1)[0],
            lambda v: [sorted(x)[few - 1] for x in lines(v)],
            apart,
        ),
    }
    for name, (call, reference, x) in table.items():
        yield Case(name, call, reference, (x,), **plain)
    yield from _added(source)


def _added(source: random.Random) -> Iterator[Case]:
    rows, count, width = source.randint(2, 4), source.randint(6, 9), source.randint(2, 4)
    x, more = given(source, rows, width), given(source, count, width)
    chosen = [source.randrange(rows) for _ in range(count)]  # more than there are rows: some come twice
    index = Input(chosen, (count,), "int64")
    many = Input([r for r in chosen for _ in range(width)], (count, width), "int64")

    def met(v: Values, o: Values) -> list[Values]:
        met_values = [[a] for a in v]
        for place, value in enumerate(o):
            met_values[chosen[place // width] * width + place % width].append(value)
        return met_values

    def added(v: Values, _: Any, o: Values) -> Values:
        return [math.fsum(values) for values in met(v, o)]

    def put_(t: Any, v: Any, i: Any, o: Any) -> Any:  # noqa: ARG001 (every call takes torch)
        return v.clone().index_put_((i,), o, accumulate=True)

    def add(t: Any, v: Any, i: Any, o: Any) -> Any:
        return t.index_add(v, 0, i, o)

    for name, call in (("index_add of duplicates", add), ("index_put_ of duplicates", put_)):
        yield Case(name, call, added, (x, index, more), wide=4, least=math.sqrt(count))
    kinds: dict[str, Callable[[Values], float]] = {
        "sum": math.fsum,
        "amax": max,
        "amin": min,
        "mean": lambda v: math.fsum(v) / len(v),
    }
    for name, each in kinds.items():

        def reduced(v: Values, _: Any, o: Values, each: Any = each) -> Values:
            return [each(values) for values in met(v, o)]

        def call(t: Any, v: Any, i: Any, o: Any, name: str = name) -> Any:
            return t.scatter_reduce(v, 0, i, o, name)

        inputs = (x, many, more)
        yield Case(f"scatter_reduce {name}", call, reduced, inputs, wide=4, dtypes=WIDE, gradient=False, since=(1, 12))


def sums(source: random.Random, _: int) -> Iterator[Case]:
    """Yield long running sums, also in 16 bits, where adding in 16 bits loses what is small; and products."""
    count = source.randint(300, 400)
    ones = Input(seeded_numbers.rounded(seeded_numbers.uniform(source, count, 0.5, 1.5), "bfloat16"), (count,))

    def running(v: Values) -> Values:
        return list(itertools.accumulate(v))

    yield Case("cumsum of a long line", lambda t, v: t.cumsum(v, dim=0), running, (ones,), wide=8, gradient=False)
    yield Case("sum of a long line", lambda t, v: t.sum(v, dim=0), lambda v: [math.fsum(v)], (ones,), wide=4)
    yield Case("mean of a long line", lambda t, v: t.mean(v), lambda v: [math.fsum(v) / count], (ones,), wide=4)
    x = Input(seeded_numbers.away_from_zero(source, 12, 0.6, 1.4), (3, 4))
    yield Case(
        "prod", lambda t, v: t.prod(v, dim=1), lambda v: [math.prod(v[i : i + 4]) for i in (0, 4, 8)], (x,), wide=8
    )


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (softmaxes, losses, defaults, selections, sums)
