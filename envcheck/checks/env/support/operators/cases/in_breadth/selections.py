"""Selections and arrangements that are used less often: places that are listed or masked, parts, diagonals."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

from envcheck.checks.env.support.operators.cases.dense_layers import given
from envcheck.checks.env.support.operators.cases.norms import lines_of
from envcheck.checks.env.support.operators.operator_trial import WIDE, Case, Input

Values = list[float]
# A name, the call, its formula, its inputs and the factor of its tolerance.
Row = tuple[str, Callable[..., Any], Callable[..., Any], tuple[Input, ...], float]


def flat(lines: Any) -> list[Any]:
    """Return the elements of all lines."""
    return [a for line in lines for a in line]


def _taken_in(v: Values, k: list[bool], o: Values) -> Values:
    following = iter(o)
    return [next(following) if hole else a for a, hole in zip(v, k)]


def _put(v: Values, i: list[int], o: Values) -> Values:
    written = dict(zip(i, o))
    return [written.get(place, a) for place, a in enumerate(v)]


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
        values = list(v)
        for place, row in enumerate(i):
            values[row * m : row * m + m] = o[place * m : place * m + m]
        return values

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
        ("masked_scatter", lambda t, v, k, o: t.masked_scatter(v, k, o), _taken_in, (x, mask, given(source, n, m)), 2),
        ("take", lambda t, v, i: t.take(v, i), lambda v, i: [v[place] for place in i], (x, spots), 2),
        ("put", lambda t, v, i, o: t.put(v, i, o), _put, (x, spots, few), 2),
        (
            "index_put",
            lambda t, v, i, o: t.index_put(v.reshape(-1), (i,), o),
            _put,
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


def _parts(source: random.Random, x: Input) -> list[Row]:
    """Return what takes a matrix apart, repeats its rows, or exchanges its dimensions."""
    n, m = x.shape

    def rows(v: Values) -> list[Values]:
        return list(lines_of(v, m))

    cut, width = source.randint(1, m - 1), source.randint(1, m)
    step = source.randint(1, 3)
    parts = [range(i * m // 2, (i + 1) * m // 2) for i in range(2)] if m % 2 == 0 else []
    parts = parts or [range(m // 2 + 1), range(m // 2 + 1, m)]
    return [
        (
            "split",
            lambda t, v: t.split(v, [cut, m - cut], 1),
            lambda v: (flat(p[:cut] for p in rows(v)), flat(p[cut:] for p in rows(v))),
            (x,),
            2,
        ),
        (
            "tensor_split",
            lambda t, v: t.tensor_split(v, 2, 1),
            lambda v: tuple(flat([p[i] for i in part] for p in rows(v)) for part in parts),
            (x,),
            2,
        ),
        ("unbind", lambda t, v: t.unbind(v), lambda v: tuple(rows(v)), (x,), 2),
        (
            "Tensor.unfold",
            lambda t, v: v.unfold(1, width, step),  # noqa: ARG005 (every call takes torch)
            lambda v: flat(p[i : i + width] for p in rows(v) for i in range(0, m - width + 1, step)),
            (x,),
            4,
        ),
        (
            "expand",
            lambda t, v: v[:, None].expand(n, 3, m),  # noqa: ARG005
            lambda v: flat(p * 3 for p in rows(v)),
            (x,),
            4,
        ),
        (
            "movedim",
            lambda t, v: t.movedim(v[None], 2, 0),
            lambda v: flat(zip(*rows(v))),
            (x,),
            2,
        ),
    ]


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
        return flat(lines)

    def on_diagonal(v: Values) -> Values:
        grid = itertools.product(range(square), repeat=2)
        return [v[min(r, c)] if c - r == offset else 0.0 for r, c in grid]

    def blocks(v: Values, w: Values) -> Values:
        return [*flat([*p, *([0.0] * m)] for p in rows(v)), *([0.0] * m), *w]

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
            lambda v, w: flat(itertools.product(v, w)),
            (line, other),
            4,
        ),
        (
            "combinations",
            lambda t, v: t.combinations(v),
            lambda v: flat(itertools.combinations(v, 2)),
            (other,),
            4,
        ),
        *_parts(source, x),
    ]
    for name, call, reference, inputs, wide in table:
        yield Case(name, call, reference, inputs, wide=wide, dtypes=WIDE)


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (places, arranging)
