"""Selections and arrangements that are used less often: counting, quantiles, running sums, places, parts, diagonals."""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.cases.dense_layers import given
from envcheck.checks.env.support.operators.cases.norms import lines_of
from envcheck.checks.env.support.operators.cases.reductions import distinct
from envcheck.checks.env.support.operators.operator_trial import SINGLE, WIDE, Case, Input

Values = list[float]
# A name, the call, its formula, its inputs and the factor of its tolerance.
Row = tuple[str, Callable[..., Any], Callable[..., Any], tuple[Input, ...], float]


def _flat(lines: Any) -> list[Any]:
    return [a for line in lines for a in line]


def _quantile(line: Values, share: float) -> float:
    ordered, at = sorted(line), share * (len(line) - 1)
    low = min(int(at), len(line) - 2)
    return ordered[low] + (at - low) * (ordered[low + 1] - ordered[low])


def _running(line: Values) -> Values:
    """Return the logarithms of the running sums of exponentials."""
    top = max(line)
    return [top + math.log(s) for s in itertools.accumulate(math.exp(v - top) for v in line)]


def statistics(source: random.Random, size: int) -> Iterator[Case]:
    """Yield quantiles, running sums and extremes, means beside NaN, covariances and areas."""
    n, m = source.randint(2, 4), source.randint(3, 5 + 3 * size)
    x, y = given(source, n, m), distinct(source, n, m)
    # Between two places of the order, where the slope is one.
    share = (source.randrange(m - 1) + source.uniform(0.2, 0.8)) / (m - 1)
    holes = [source.random() < 0.3 and i % m > 0 for i in range(n * m)]  # noqa: PLR2004 (a share)
    mask = Input(holes, (n, m), "bool")

    def rows(v: Values) -> list[Values]:
        return list(lines_of(v, m))

    def kept(v: Values, k: list[bool]) -> list[Values]:
        return [[a for a, hole in zip(p, q) if not hole] for p, q in zip(rows(v), lines_of(k, m))]  # type: ignore[arg-type]

    def centred(v: Values) -> list[Values]:
        return [[a - math.fsum(p) / m for a in p] for p in rows(v)]

    def covariance(v: Values) -> Values:
        lines = centred(v)
        return [math.fsum(a * b for a, b in zip(p, q)) / (m - 1) for p in lines for q in lines]

    def moments(v: Values) -> tuple[Values, Values]:
        means = [math.fsum(p) / m for p in rows(v)]
        return [math.fsum(a * a for a in p) / (m - 1) for p in centred(v)], means

    def areas(p: Values) -> Values:
        return [(a + b) / 2 for a, b in zip(p, p[1:])]

    nan = math.nan
    table: list[Row] = [
        (
            "quantile",
            lambda t, v: t.quantile(v, share, dim=1),
            lambda v: [_quantile(p, share) for p in rows(v)],
            (y,),
            8,
        ),
        (
            "nanquantile",
            lambda t, v: t.nanquantile(v, share, dim=1),
            lambda v: [_quantile(p, share) for p in rows(v)],
            (y,),
            8,
        ),
        ("logcumsumexp", lambda t, v: t.logcumsumexp(v, 1), lambda v: _flat(map(_running, rows(v))), (x,), 8),
        (
            "cummin",
            lambda t, v: t.cummin(v, 1)[0],
            lambda v: _flat(itertools.accumulate(p, min) for p in rows(v)),
            (y,),
            8,
        ),
        ("aminmax", lambda t, v: t.aminmax(v, dim=1), lambda v: ([*map(min, rows(v))], [*map(max, rows(v))]), (y,), 4),
        ("msort", lambda t, v: t.msort(v.t()), lambda v: _flat(zip(*map(sorted, rows(v)))), (y,), 2),
        (
            "nansum",
            lambda t, v, k: t.nansum(v.masked_fill(k, nan), dim=1),
            lambda v, k: [*map(math.fsum, kept(v, k))],
            (x, mask),
            8,
        ),
        (
            "nanmean",
            lambda t, v, k: t.nanmean(v.masked_fill(k, nan), dim=1),
            lambda v, k: [math.fsum(p) / len(p) for p in kept(v, k)],
            (x, mask),
            8,
        ),
        (
            "nanmedian",
            lambda t, v, k: t.nanmedian(v.masked_fill(k, nan), dim=1)[0],
            lambda v, k: [sorted(p)[(len(p) - 1) // 2] for p in kept(v, k)],
            (y, mask),
            4,
        ),
        ("var_mean", lambda t, v: t.var_mean(v, dim=1), moments, (x,), 8),
        ("cov", lambda t, v: t.cov(v), covariance, (x,), 8),
        ("trapezoid", lambda t, v: t.trapezoid(v, dim=1), lambda v: [math.fsum(areas(p)) for p in rows(v)], (x,), 8),
        (
            "cumulative_trapezoid",
            lambda t, v: t.cumulative_trapezoid(v, dim=1),
            lambda v: _flat(itertools.accumulate(areas(p)) for p in rows(v)),
            (x,),
            16,
        ),
    ]
    for name, call, reference, inputs, wide in table:
        # torch 1.13 has no gradient of aminmax.
        yield Case(name, call, reference, inputs, name != "aminmax", wide=wide, dtypes=WIDE, least=1.0)


def places(source: random.Random, _: int) -> Iterator[Case]:
    """Yield what writes to, and reads from, places that are listed or masked."""
    n, m = source.randint(2, 5), source.randint(2, 5)
    x, whole = given(source, n, m), n * m
    once = source.sample(range(n), source.randint(1, n))
    index = Input(once, (len(once),), "int64")
    more, value = given(source, len(once), m), source.uniform(0.5, 2)
    mask = Input([True, *(source.random() < 0.5 for _number in range(whole - 1))], (n, m), "bool")  # noqa: PLR2004 (half)
    spots = Input(source.sample(range(whole), source.randint(1, whole)), (-1,), "int64")
    spots = spots._replace(shape=(len(spots.values),))
    few = given(source, len(spots.values))

    def copied(v: Values, i: list[int], o: Values) -> Values:
        found = list(v)
        for place, row in enumerate(i):
            found[row * m : row * m + m] = o[place * m : place * m + m]
        return found

    def taken_in(v: Values, k: list[bool], o: Values) -> Values:
        following = iter(o)
        return [next(following) if hole else a for a, hole in zip(v, k)]

    def put(v: Values, i: list[int], o: Values) -> Values:
        found = dict(zip(i, o))
        return [found.get(place, a) for place, a in enumerate(v)]

    low, line = source.randrange(n), given(source, m)
    corner = min(n, m)
    diagonal = given(source, corner)
    table: list[Row] = [
        ("index_copy", lambda t, v, i, o: t.index_copy(v, 0, i, o), copied, (x, index, more), 2),
        (
            "index_fill",
            lambda t, v, i: t.index_fill(v, 0, i, value),
            lambda v, i: [value if place // m in i else a for place, a in enumerate(v)],
            (x, index),
            2,
        ),
        ("masked_scatter", lambda t, v, k, o: t.masked_scatter(v, k, o), taken_in, (x, mask, given(source, n, m)), 2),
        ("take", lambda t, v, i: t.take(v, i), lambda v, i: [v[place] for place in i], (x, spots), 2),
        ("put", lambda t, v, i, o: t.put(v, i, o), put, (x, spots, few), 2),
        (
            "index_put",
            lambda t, v, i, o: t.index_put(v.reshape(-1), (i,), o),
            put,
            (x, spots, few),
            2,
        ),
        (
            "select_scatter",
            lambda t, v, o: t.select_scatter(v, o, 0, low),
            lambda v, o: [*v[: low * m], *o, *v[low * m + m :]],
            (x, line),
            2,
        ),
        (
            "diagonal_scatter",
            lambda t, v, o: t.diagonal_scatter(v, o),
            lambda v, o: [o[i % m] if i // m == i % m else a for i, a in enumerate(v)],
            (x, diagonal),
            2,
        ),
    ]
    for name, call, reference, inputs, wide in table:
        yield Case(name, call, reference, inputs, wide=wide, dtypes=WIDE)


def arranging(source: random.Random, _: int) -> Iterator[Case]:
    """Yield triangles, turns, parts, products of lists, and diagonals."""
    n, m, turn, offset = source.randint(2, 4), source.randint(2, 6), source.randint(-3, 3), source.randint(-2, 2)
    x, line, other = given(source, n, m), given(source, n), given(source, m)
    square = abs(offset) + n

    def rows(v: Values) -> list[Values]:
        return list(lines_of(v, m))

    def turned(v: Values) -> Values:
        lines: list[Any] = rows(v)
        for _number in range(turn % 4):
            lines = list(zip(*lines))[::-1]
        return _flat(lines)

    def on_diagonal(v: Values) -> Values:
        grid = itertools.product(range(square), repeat=2)
        return [v[min(r, c)] if c - r == offset else 0.0 for r, c in grid]

    def blocks(v: Values, w: Values) -> Values:
        return [*_flat([*p, *([0.0] * m)] for p in rows(v)), *([0.0] * m), *w]

    cut, width = source.randint(1, m - 1), source.randint(1, m)
    step = source.randint(1, 3)
    parts = [range(i * m // 2, (i + 1) * m // 2) for i in range(2)] if m % 2 == 0 else []
    parts = parts or [range(m // 2 + 1), range(m // 2 + 1, m)]
    table: list[Row] = [
        (
            "triu",
            lambda t, v: t.triu(v, diagonal=offset),
            lambda v: [a if i % m >= i // m + offset else 0.0 for i, a in enumerate(v)],
            (x,),
            2,
        ),
        ("rot90", lambda t, v: t.rot90(v, turn, (0, 1)), turned, (x,), 2),
        ("diag", lambda t, v: t.diag(v, offset), on_diagonal, (line,), 2),
        ("diag_embed", lambda t, v: t.diag_embed(v, offset), on_diagonal, (line,), 2),
        ("block_diag", lambda t, v, w: t.block_diag(v, w[None]), blocks, (x, other), 2),
        (
            "meshgrid",
            lambda t, v, w: t.meshgrid(v, w, indexing="ij"),
            lambda v, w: ([a for a in v for _number in w], [b for _number in v for b in w]),
            (line, other),
            4,
        ),
        (
            "cartesian_prod",
            lambda t, v, w: t.cartesian_prod(v, w),
            lambda v, w: _flat(itertools.product(v, w)),
            (line, other),
            4,
        ),
        (
            "combinations",
            lambda t, v: t.combinations(v),
            lambda v: _flat(itertools.combinations(v, 2)),
            (other,),
            4,
        ),
        (
            "split",
            lambda t, v: t.split(v, [cut, m - cut], 1),
            lambda v: (_flat(p[:cut] for p in rows(v)), _flat(p[cut:] for p in rows(v))),
            (x,),
            2,
        ),
        (
            "tensor_split",
            lambda t, v: t.tensor_split(v, 2, 1),
            lambda v: tuple(_flat([p[i] for i in part] for p in rows(v)) for part in parts),
            (x,),
            2,
        ),
        ("unbind", lambda t, v: t.unbind(v), lambda v: tuple(rows(v)), (x,), 2),
        (
            "Tensor.unfold",
            lambda t, v: v.unfold(1, width, step),  # noqa: ARG005 (every call takes torch)
            lambda v: _flat(p[i : i + width] for p in rows(v) for i in range(0, m - width + 1, step)),
            (x,),
            4,
        ),
        (
            "expand",
            lambda t, v: v[:, None].expand(n, 3, m),  # noqa: ARG005
            lambda v: _flat(p * 3 for p in rows(v)),
            (x,),
            4,
        ),
        (
            "movedim",
            lambda t, v: t.movedim(v[None], 2, 0),
            lambda v: _flat(zip(*rows(v))),
            (x,),
            2,
        ),
    ]
    for name, call, reference, inputs, wide in table:
        yield Case(name, call, reference, inputs, wide=wide, dtypes=WIDE)


def counting(source: random.Random, size: int) -> Iterator[Case]:
    """Yield histograms, bins, modes, unique numbers and counts, which are exact."""
    count = 10 + source.randint(0, 20 * size)
    numbers = [source.randint(0, 9) for _ in range(count)]
    whole = Input(numbers, (count,), "int64")
    edges = sorted(seeded_numbers.rounded(seeded_numbers.uniform(source, 4 + 3 * size), "float32"))
    asked = [*seeded_numbers.rounded(seeded_numbers.uniform(source, 9, -2.5, 2.5), "float32"), edges[1]]
    right, bins = source.random() < 0.5, source.randint(2, 6)  # noqa: PLR2004 (half)
    find = bisect.bisect_right if right else bisect.bisect_left
    # Each number is in the middle half of its bin of width 1.
    inside = [source.randrange(bins) + source.uniform(0.25, 0.75) for _ in range(count)]
    favourite = source.randint(0, 9)
    often = [favourite] * (count + 1) + numbers
    source.shuffle(often)

    def groups(v: list[int]) -> tuple[list[int], list[int]]:
        runs = [(key, len(list(same))) for key, same in itertools.groupby(v)]
        return [key for key, _ in runs], [length for _, length in runs]

    pairs = [source.randint(0, 2) for _ in range(2 * count)]
    boundaries = Input(edges, (len(edges),), "float32")
    table: list[Row] = [
        (
            "bucketize",
            lambda t, v, e: t.bucketize(v, e, right=right),
            lambda v, e: [find(e, a) for a in v],
            (Input(asked, (len(asked),), "float32"), boundaries),
            1,
        ),
        (
            "histc",
            lambda t, v: t.histc(v, bins=bins, min=0, max=bins),
            lambda v: [float(sum(int(a) == b for a in v)) for b in range(bins)],
            (Input(inside, (count,)),),
            1,
        ),
        ("mode", lambda t, v: t.mode(v)[0], lambda _: [favourite], (Input(often, (len(often),), "int64"),), 1),
        ("unique_consecutive", lambda t, v: t.unique_consecutive(v, return_counts=True), groups, (whole,), 1),
        (
            "unique of rows",
            lambda t, v: t.unique(v, dim=0),
            lambda v: _flat(sorted(set(zip(v[::2], v[1::2])))),
            (Input(pairs, (count, 2), "int64"),),
            1,
        ),
        (
            "unique places",
            lambda t, v: t.unique(v, return_inverse=True)[1],
            lambda v: [sorted(set(v)).index(a) for a in v],
            (whole,),
            1,
        ),
        ("count_nonzero", lambda t, v: t.count_nonzero(v), lambda v: [sum(a != 0 for a in v)], (whole,), 1),
        ("argwhere", lambda t, v: t.argwhere(v), lambda v: [i for i, a in enumerate(v) if a], (whole,), 1),
        (
            "bincount with weights",
            lambda t, v: t.bincount(v, weights=v.double(), minlength=12),
            lambda v: [float(v.count(a) * a) for a in range(12)],
            (whole,),
            1,
        ),
        (
            "tril_indices, triu_indices",
            lambda t, v: (t.tril_indices(4, bins, device=v.device), t.triu_indices(4, bins, device=v.device)),
            lambda _: tuple(
                _flat(zip(*[(r, c) for r in range(4) for c in range(bins) if (c <= r if low else c >= r)]))
                for low in (True, False)
            ),
            (whole,),
            1,
        ),
    ]
    for name, call, reference, inputs, wide in table:
        yield Case(name, call, reference, inputs, wide=wide, gradient=False, dtypes=SINGLE)


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (statistics, places, arranging, counting)
