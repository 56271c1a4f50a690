"""Normalisations, softmax and embeddings: what stands between a model's products."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.cases.dense_layers import given, put
from envcheck.checks.env.support.operators.operator_trial import SINGLE, WIDE, Case, Input

Values = list[float]
# Never the default, so that an option that is ignored shows.
EPSILONS = (1e-3, 0.03, 0.1)
# Since these versions torch has the function.
RMS_NORM = (2, 4)


def normalized(line: Sequence[float], eps: float) -> Values:
    """Return (x - mean) / sqrt(variance + eps), the variance divided by the count."""
    mean = math.fsum(line) / len(line)
    scale = math.sqrt(math.fsum((x - mean) ** 2 for x in line) / len(line) + eps)
    return [(x - mean) / scale for x in line]


def softmax(line: Sequence[float]) -> Values:
    """Return e^x / sum of e^x."""
    top = max(line)
    powers = [math.exp(x - top) for x in line]
    total = math.fsum(powers)
    return [p / total for p in powers]


def log_softmax(line: Sequence[float]) -> Values:
    """Return x - log(sum of e^x)."""
    top = max(line)
    total = top + math.log(math.fsum(math.exp(x - top) for x in line))
    return [x - total for x in line]


def lines_of(values: Values, width: int) -> Iterator[Values]:
    """Return the values in lines of `width`."""
    return (values[start : start + width] for start in range(0, len(values), width))


def norms(source: random.Random, size: int) -> Iterator[Case]:
    """Yield layer, root-mean-square, group and instance normalisation, as functions and modules."""
    rows, width, eps = source.randint(1, 4), source.randint(3, 6 + 7 * size), source.choice(EPSILONS)
    x, w, b = given(source, 2, rows, width), given(source, width), given(source, width)

    def layer(v: Values, p: Values, q: Values) -> Values:
        lines = (zip(normalized(line, eps), p, q) for line in lines_of(v, width))
        return [n * scale + shift for line in lines for n, scale, shift in line]

    def root(v: Values, p: Values) -> Values:
        lines = ((line, math.sqrt(math.fsum(a * a for a in line) / width + eps)) for line in lines_of(v, width))
        return [a / size_ * scale for line, size_ in lines for a, scale in zip(line, p)]

    functional = "layer_norm"
    yield Case(
        functional, lambda t, v, p, q: t.nn.functional.layer_norm(v, (width,), p, q, eps), layer, (x, w, b), wide=4
    )
    yield Case(
        "LayerNorm module",
        lambda t, v, p, q: put(t.nn.LayerNorm(width, eps=eps), weight=p, bias=q)(v),
        layer,
        (x, w, b),
        wide=4,
    )
    yield Case(
        "rms_norm",
        lambda t, v, p: t.nn.functional.rms_norm(v, (width,), p, eps),
        root,
        (x, w),
        wide=4,
        since=RMS_NORM,
    )
    yield from _grouped(source, eps)
    power, dim = source.choice((1.0, 2.0, 3.0)), source.randint(0, 1)
    shape = (source.randint(2, 4), source.randint(2, 5))

    def unit(line: Sequence[float]) -> Values:
        total = math.fsum(abs(a) ** power for a in line) ** (1 / power)
        return [a / total for a in line]

    yield Case(
        "normalize",
        lambda t, v: t.nn.functional.normalize(v, power, dim),
        lambda v: seeded_numbers.along(v, shape, dim, unit),
        (Input(seeded_numbers.away_from_zero(source, math.prod(shape), 0.3), shape),),
        wide=6,
    )


def _grouped(source: random.Random, eps: float) -> Iterator[Case]:
    groups, each, side = source.randint(1, 3), source.randint(1, 3), source.randint(3, 5)
    channels = groups * each
    x = given(source, 2, channels, side)
    w, b = given(source, channels), given(source, channels)

    def by(width: int) -> Callable[[Values, Values, Values], Values]:
        def reference(v: Values, p: Values, q: Values) -> Values:
            flat = [a for line in lines_of(v, width) for a in normalized(line, eps)]
            return [a * p[i // side % channels] + q[i // side % channels] for i, a in enumerate(flat)]

        return reference

    def group(t: Any, v: Any, p: Any, q: Any) -> Any:
        return t.nn.functional.group_norm(v, groups, p, q, eps)

    def instance(t: Any, v: Any, p: Any, q: Any) -> Any:
        return t.nn.functional.instance_norm(v, weight=p, bias=q, eps=eps)

    yield Case("group_norm", group, by(each * side), (x, w, b), wide=4)
    yield Case("instance_norm", instance, by(side), (x, w, b), wide=4, dtypes=WIDE)


def batch_norms(source: random.Random, size: int) -> Iterator[Case]:
    """Yield batch normalisation in training, with its running statistics, and in evaluation."""
    images, channels, side = source.randint(2, 3 + size), source.randint(1, 4), source.randint(2, 4)
    eps, momentum = source.choice(EPSILONS), source.choice((0.03, 0.3, None))
    x, w, b = given(source, images, channels, side), given(source, channels), given(source, channels)
    mean = Input(seeded_numbers.rounded(seeded_numbers.uniform(source, channels), "float32"), (channels,), "float32")
    spread = Input(
        seeded_numbers.rounded(seeded_numbers.uniform(source, channels, 0.5, 2), "float32"), (channels,), "float32"
    )

    def lines(v: Values) -> list[Values]:
        return [[v[(n * channels + c) * side + i] for n in range(images) for i in range(side)] for c in range(channels)]

    def back(flat: list[Values]) -> Values:
        grid = itertools.product(range(images), range(channels), range(side))
        return [flat[c][n * side + i] for n, c, i in grid]

    def trained(v: Values, p: Values, q: Values, *_: Values) -> Values:
        return back([[a * p[c] + q[c] for a in normalized(line, eps)] for c, line in enumerate(lines(v))])

    def evaluated(v: Values, p: Values, q: Values, m: Values, s: Values) -> Values:
        scaled = [[(a - m[c]) / math.sqrt(s[c] + eps) * p[c] + q[c] for a in li] for c, li in enumerate(lines(v))]
        return back(scaled)

    def module(t: Any, p: Any, q: Any, m: Any, s: Any, *, training: bool) -> Any:
        made = t.nn.BatchNorm1d(channels, eps=eps, momentum=momentum).to(m.device)  # its statistics are no parameters
        layer = put(made, weight=p, bias=q)
        layer.running_mean.copy_(m)
        layer.running_var.copy_(s)
        return layer.train(training)

    yield Case(
        "batch_norm train",
        lambda t, v, p, q, m, s: module(t, p, q, m, s, training=True)(v),
        trained,
        (x, w, b, mean, spread),
        wide=6,
        dtypes=SINGLE,
    )
    yield Case(
        "batch_norm eval",
        lambda t, v, p, q, m, s: module(t, p, q, m, s, training=False)(v),
        evaluated,
        (x, w, b, mean, spread),
        wide=6,
        dtypes=SINGLE,
    )
    yield _running_statistics(lines, module, momentum, (x, mean, spread))


def _running_statistics(
    lines: Callable[[Values], list[Values]],
    module: Callable[..., Any],
    momentum: float | None,
    inputs: tuple[Input, ...],
) -> Case:
    def running(v: Values, m: Values, s: Values) -> tuple[Values, Values]:
        rate, count = 1.0 if momentum is None else momentum, len(lines(v)[0])
        means = [math.fsum(line) / count for line in lines(v)]
        spreads = [math.fsum((a - u) ** 2 for a in line) / (count - 1) for u, line in zip(means, lines(v))]
        old_new = ((m, means), (s, spreads))
        first, second = ([(1 - rate) * o + rate * n for o, n in zip(*pair)] for pair in old_new)
        return first, second

    def statistics(t: Any, v: Any, m: Any, s: Any) -> Any:
        one, zero = (t.nn.Parameter(make(len(m), device=v.device)) for make in (t.ones, t.zeros))
        layer = module(t, one, zero, m, s, training=True)
        layer(v)
        return layer.running_mean, layer.running_var

    return Case(
        "batch_norm running statistics",
        statistics,
        running,
        inputs,
        wide=4,
        gradient=False,
        dtypes=SINGLE,
    )


def softmaxes(source: random.Random, size: int) -> Iterator[Case]:
    """Yield softmax and its logarithm along each dimension."""
    table = {
        "softmax": softmax,
        "log_softmax": log_softmax,
        "softmin": lambda line: softmax([-x for x in line]),
    }
    for name, each in table.items():
        shape = tuple(source.randint(2, 4 + 3 * size) for _ in range(3))
        dim = source.randint(0, 2)

        def call(t: Any, v: Any, name: str = name, dim: int = dim) -> Any:
            return getattr(t.nn.functional, name)(v, dim=dim)

        def reference(v: Values, shape: Any = shape, dim: int = dim, each: Any = each) -> Values:
            return seeded_numbers.along(v, shape, dim, each)

        yield Case(name, call, reference, (given(source, *shape),), wide=4)


def embeddings(source: random.Random, size: int) -> Iterator[Case]:
    """Yield tables looked up by number: padding has no gradient; bags are added up or averaged."""
    rows, width, count = source.randint(3, 5 + 4 * size), source.randint(1, 6), source.randint(4, 8)
    padding = source.randrange(rows)
    index = [source.randrange(rows) for _ in range(count)]
    table = given(source, rows, width)
    indices = Input([*index, 0, rows - 1], (2, (count + 2) // 2), "int64") if count % 2 == 0 else None
    indices = indices or Input([*index, 0, rows - 1, 0][: count + 1], (count + 1,), "int64")

    def rows_of(places: list[int], w: Values) -> Values:
        return [w[place * width + i] for place in places for i in range(width)]

    yield Case("embedding", lambda t, i, w: t.nn.functional.embedding(i, w), rows_of, (indices, table))
    yield Case(
        "Embedding module",
        lambda t, i, w: put(t.nn.Embedding(rows, width), weight=w)(i),
        rows_of,
        (indices, table),
    )
    # A row that is padding counts as a constant: the reference's does not move with the table.
    still = list(seeded_numbers.rounded(table.values, "bfloat16"))
    fixed = Input(still, table.shape)

    def padded(places: list[int], w: Values) -> Values:
        return [still[p * width + i] if p == padding else w[p * width + i] for p in places for i in range(width)]

    yield Case(
        "embedding padding_idx",
        lambda t, i, w: t.nn.functional.embedding(i, w, padding_idx=padding),
        padded,
        (Input([*indices.values, padding], (len(indices.values) + 1,), "int64"), fixed),
    )
    starts = [0, source.randint(1, count - 1)]
    bags = [index[starts[0] : starts[1]], index[starts[1] :]]
    for mode in ("sum", "mean"):

        def bag(_: Any, __: Any, w: Values, mode: str = mode) -> Values:
            sums = [[math.fsum(w[p * width + i] for p in b) for i in range(width)] for b in bags]
            return [s / (len(b) if mode == "mean" else 1) for line, b in zip(sums, bags) for s in line]

        def call(t: Any, i: Any, o: Any, w: Any, mode: str = mode) -> Any:
            return put(t.nn.EmbeddingBag(rows, width, mode=mode), weight=w)(i, o)

        inputs = (Input(index, (count,), "int64"), Input(starts, (2,), "int64"), table)
        yield Case(f"EmbeddingBag {mode}", call, bag, inputs, wide=3, dtypes=SINGLE)
    yield Case(
        "one_hot",
        lambda t, i: t.nn.functional.one_hot(i, rows),
        lambda i: [int(p == r) for p in i for r in range(rows)],
        (indices,),
        gradient=False,
        dtypes=SINGLE,
    )


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (norms, batch_norms, softmaxes, embeddings)
