"""Statistics of each line: quantiles, running sums and extremes, means beside NaN, covariances and areas."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator

from envcheck.checks.env.support.operators.cases.dense_layers import given
from envcheck.checks.env.support.operators.cases.in_breadth import selections
from envcheck.checks.env.support.operators.cases.norms import lines_of
from envcheck.checks.env.support.operators.cases.reductions import distinct
from envcheck.checks.env.support.operators.operator_trial import WIDE, Case, Input

Values = list[float]


def _quantile(line: Values, share: float) -> float:
    ordered, at = sorted(line), share * (len(line) - 1)
    low = min(int(at), len(line) - 2)
    return ordered[low] + (at - low) * (ordered[low + 1] - ordered[low])


def _running(line: Values) -> Values:
    """Return the logarithms of the running sums of exponentials."""
    top = max(line)
    return [top + math.log(s) for s in itertools.accumulate(math.exp(v - top) for v in line)]


def _beside_nan(x: Input, y: Input, mask: Input) -> list[selections.Row]:
    """Return statistics of what a mask leaves: the rest is NaN."""
    m, nan = mask.shape[1], math.nan

    def kept(v: Values, k: list[bool]) -> list[Values]:
        return [[a for a, hole in zip(p, q) if not hole] for p, q in zip(lines_of(v, m), lines_of(k, m))]  # type: ignore[arg-type]

    return [
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
    ]


def statistics(source: random.Random, size: int) -> Iterator[Case]:
    """Yield quantiles, running sums and extremes, means beside NaN, covariances and areas."""
    n, m = source.randint(2, 4), source.randint(3, 5 + 3 * size)
    x, y = given(source, n, m), distinct(source, n, m)
    # Between two places of the order, where the slope is one.
    share = (source.randrange(m - 1) + source.uniform(0.2, 0.8)) / (m - 1)
    holes = [source.random() < 0.3 and i % m > 0 for i in range(n * m)]  # noqa: PLR2004 (a share)

    def rows(v: Values) -> list[Values]:
        return list(lines_of(v, m))

    table: list[selections.Row] = [
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
        ("logcumsumexp", lambda t, v: t.logcumsumexp(v, 1), lambda v: selections.flat(map(_running, rows(v))), (x,), 8),
        (
            "cummin",
            lambda t, v: t.cummin(v, 1)[0],
            lambda v: selections.flat(itertools.accumulate(p, min) for p in rows(v)),
            (y,),
            8,
        ),
        ("aminmax", lambda t, v: t.aminmax(v, dim=1), lambda v: ([*map(min, rows(v))], [*map(max, rows(v))]), (y,), 4),
        ("msort", lambda t, v: t.msort(v.t()), lambda v: selections.flat(zip(*map(sorted, rows(v)))), (y,), 2),
        *_beside_nan(x, y, Input(holes, (n, m), "bool")),
        *_moments_and_areas(x, m),
    ]
    for name, call, reference, inputs, wide in table:
        # torch 1.13 has no gradient of aminmax.
        yield Case(name, call, reference, inputs, name != "aminmax", wide=wide, dtypes=WIDE, least=1.0)


def _moments_and_areas(x: Input, m: int) -> list[selections.Row]:
    def centred(v: Values) -> list[Values]:
        return [[a - math.fsum(p) / m for a in p] for p in lines_of(v, m)]

    def covariance(v: Values) -> Values:
        lines = centred(v)
        return [math.fsum(a * b for a, b in zip(p, q)) / (m - 1) for p in lines for q in lines]

    def moments(v: Values) -> tuple[Values, Values]:
        means = [math.fsum(p) / m for p in lines_of(v, m)]
        return [math.fsum(a * a for a in p) / (m - 1) for p in centred(v)], means

    def areas(p: Values) -> Values:
        return [(a + b) / 2 for a, b in zip(p, p[1:])]

    return [
        ("var_mean", lambda t, v: t.var_mean(v, dim=1), moments, (x,), 8),
        ("cov", lambda t, v: t.cov(v), covariance, (x,), 8),
        (
            "trapezoid",
            lambda t, v: t.trapezoid(v, dim=1),
            lambda v: [math.fsum(areas(p)) for p in lines_of(v, m)],
            (x,),
            8,
        ),
        (
            "cumulative_trapezoid",
            lambda t, v: t.cumulative_trapezoid(v, dim=1),
            lambda v: selections.flat(itertools.accumulate(areas(p)) for p in lines_of(v, m)),
            (x,),
            16,
        ),
    ]


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (statistics,)
