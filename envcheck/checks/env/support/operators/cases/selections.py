"""Operators that sort, search, select and rearrange."""

from __future__ import annotations

import bisect
import random
from collections.abc import Callable, Iterator
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.cases.dense_layers import given
from envcheck.checks.env.support.operators.cases.reductions import distinct, line_shape
from envcheck.checks.env.support.operators.operator_trial import SINGLE, WIDE, Case, Input

Values = list[float]


def sorting(source: random.Random, size: int) -> Iterator[Case]:
    """Yield sorting, the largest few, searching and counting; a long line too."""
    for shape in (line_shape(source, size), (1, source.randint(150, 250 + 500 * size), 1)):
        dim, down = (1, source.random() < 0.5)  # noqa: PLR2004 (half)
        x = distinct(source, *shape)
        few = source.randint(1, shape[dim])

        def ordered(v: Values, shape: Any = shape, dim: int = dim, down: bool = down) -> Values:  # noqa: FBT001
            return seeded_numbers.along(v, shape, dim, lambda line: sorted(line, reverse=down))

        def places(v: Values, shape: Any = shape, dim: int = dim, down: bool = down) -> list[int]:  # noqa: FBT001
            return seeded_numbers.along(
                v, shape, dim, lambda line: sorted(range(len(line)), key=lambda i: line[i], reverse=down)
            )

        def top(v: Values, shape: Any = shape, dim: int = dim, few: int = few) -> Values:
            return seeded_numbers.along(v, shape, dim, lambda line: sorted(line, reverse=True)[:few])

        short: dict[str, Any] = {"dtypes": WIDE}  # more than 256 of them are not all different in 16 bits
        yield Case(
            "sort", lambda t, v, dim=dim, down=down: t.sort(v, dim=dim, descending=down)[0], ordered, (x,), **short
        )
        yield Case(
            "argsort",
            lambda t, v, dim=dim, down=down: t.argsort(v, dim=dim, descending=down),
            places,
            (x,),
            gradient=False,
            **short,
        )
        yield Case("topk", lambda t, v, dim=dim, few=few: t.topk(v, few, dim=dim)[0], top, (x,), **short)
    yield from _counting(source, size)


def _counting(source: random.Random, size: int) -> Iterator[Case]:
    edges = sorted(seeded_numbers.rounded(seeded_numbers.uniform(source, 4 + 3 * size), "float32"))
    values = [*seeded_numbers.rounded(seeded_numbers.uniform(source, 9, -2.5, 2.5), "float32"), edges[1]]
    right = source.random() < 0.5  # noqa: PLR2004 (half)
    find = bisect.bisect_right if right else bisect.bisect_left
    fixed = (Input(edges, (len(edges),), "float32"), Input(values, (len(values),), "float32"))
    numbers = Input([source.randint(0, 9) for _ in range(20 * size)], (20 * size,), "int64")
    plain: dict[str, Any] = {"gradient": False, "dtypes": SINGLE}
    yield Case(
        "searchsorted",
        lambda t, e, v: t.searchsorted(e, v, right=right),
        lambda e, v: [find(e, a) for a in v],
        fixed,
        **plain,
    )
    yield Case(
        "unique",
        lambda t, v: t.unique(v, return_counts=True),
        lambda v: (sorted(set(v)), [v.count(a) for a in sorted(set(v))]),
        (numbers,),
        **plain,
    )
    yield Case(
        "bincount",
        lambda t, v: t.bincount(v, minlength=12),
        lambda v: [v.count(a) for a in range(12)],
        (numbers,),
        **plain,
    )
    yield Case(
        "nonzero",
        lambda t, v: t.nonzero(v),
        lambda v: [i for i, a in enumerate(v) if a],
        (numbers,),
        **plain,
    )
    yield Case(
        "isin",
        lambda t, v: t.isin(v, t.tensor([1, 4, 7], device=v.device)),
        lambda v: [a in (1, 4, 7) for a in v],
        (numbers,),
        **plain,
    )


def indexing(source: random.Random, size: int) -> Iterator[Case]:
    """Yield what reads and writes rows and elements by number."""
    rows, width, count = source.randint(3, 5 + 2 * size), source.randint(2, 5), source.randint(2, 6)
    x, more = given(source, rows, width), given(source, count, width)
    chosen = [source.randrange(rows) for _ in range(count)]
    index = Input(chosen, (count,), "int64")
    many = Input([source.randrange(rows) for _ in range(count * width)], (count, width), "int64")

    def gathered(v: Values, i: list[int]) -> Values:
        return [v[row * width + place % width] for place, row in enumerate(i)]

    def selected(v: Values, i: list[int]) -> Values:
        return [v[row * width + column] for row in i for column in range(width)]

    def added(v: Values, i: list[int], other: Values) -> Values:
        sums = list(v)
        for place, value in enumerate(other):
            row = i[place] if len(i) == len(other) else i[place // width]
            sums[row * width + place % width] += value
        return sums

    yield Case("gather", lambda t, v, i: t.gather(v, 0, i), gathered, (x, many), wide=2)
    yield Case("take_along_dim", lambda t, v, i: t.take_along_dim(v, i, 0), gathered, (x, many), wide=2)
    yield Case("index_select", lambda t, v, i: t.index_select(v, 0, i), selected, (x, index), wide=2)
    yield Case("indexing by a tensor", lambda t, v, i: v[i], selected, (x, index), wide=2)  # noqa: ARG005
    yield Case("index_add", lambda t, v, i, o: t.index_add(v, 0, i, o), added, (x, index, more), wide=3)
    yield Case("scatter_add", lambda t, v, i, o: t.scatter_add(v, 0, i, o), added, (x, many, more), wide=3)
    once = source.sample(range(rows), min(rows, count))
    single = Input([row for row in once for _ in range(width)], (len(once), width), "int64")

    def scattered(v: Values, i: list[int], other: Values) -> Values:
        values = list(v)
        for place, value in enumerate(other):
            values[i[place] * width + place % width] = value
        return values

    put = given(source, len(once), width)
    yield Case("scatter", lambda t, v, i, o: t.scatter(v, 0, i, o), scattered, (x, single, put))
    low, high = sorted(source.sample(range(rows + 1), 2))
    yield Case(
        "slicing",
        lambda t, v: v[low:high, ::2],  # noqa: ARG005
        lambda v: [v[r * width + c] for r in range(low, high) for c in range(0, width, 2)],
        (x,),
    )
    mask = Input([source.random() < 0.5 for _ in range(rows * width)], (rows, width), "bool")  # noqa: PLR2004 (half)
    yield Case(
        "masked_select",
        lambda t, v, m: t.masked_select(v, m),
        lambda v, m: [a for a, k in zip(v, m) if k],
        (x, mask._replace(values=[True, *mask.values[1:]])),
        since=(2, 0),  # 1.13 gives wrong gradients for inputs that are not contiguous: the release's own defect
    )


def arranging(source: random.Random, size: int) -> Iterator[Case]:
    """Yield what moves elements: joining, splitting, turning, padding, views."""
    n, m = source.randint(2, 3 + size), source.randint(2, 5 + size)
    x, y = given(source, n, m), given(source, n, m)
    turn = source.randint(-5, 5)

    def rows(v: Values) -> list[Values]:
        return [v[i * m : (i + 1) * m] for i in range(n)]

    def flat(lines: Any) -> Values:
        return [a for line in lines for a in line]

    left, right = source.randint(0, 2), source.randint(1, 3)
    table: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Input, ...]]] = {
        "cat": (lambda t, a, b: t.cat([a, b], 1), lambda a, b: flat(p + q for p, q in zip(rows(a), rows(b))), (x, y)),
        "stack": (
            lambda t, a, b: t.stack([a, b], 1),
            lambda a, b: flat(p + q for p, q in zip(rows(a), rows(b))),
            (x, y),
        ),
        "chunk": (lambda t, a: t.chunk(a, 2, 1)[0], lambda a: flat(p[: -(-m // 2)] for p in rows(a)), (x,)),
        "roll": (
            lambda t, a: t.roll(a, turn, 1),
            lambda a: flat([p[(j - turn) % m] for j in range(m)] for p in rows(a)),
            (x,),
        ),
        "flip": (lambda t, a: t.flip(a, [1]), lambda a: flat(p[::-1] for p in rows(a)), (x,)),
        "permute": (
            lambda t, a: a.permute(1, 0).contiguous(),  # noqa: ARG005
            lambda a: flat(zip(*rows(a))),
            (x,),
        ),
        "reshape": (lambda t, a: a.t().reshape(-1), lambda a: flat(zip(*rows(a))), (x,)),  # noqa: ARG005
        "tril": (
            lambda t, a: t.tril(a, diagonal=turn),
            lambda a: [v if i % m <= i // m + turn else 0.0 for i, v in enumerate(a)],
            (x,),
        ),
        "pad": (
            lambda t, a: t.nn.functional.pad(a, (left, right), value=0.5),
            lambda a: flat([0.5] * left + p + [0.5] * right for p in rows(a)),
            (x,),
        ),
        "repeat": (lambda t, a: a.repeat(2, 3), lambda a: flat(p * 3 for p in rows(a) * 2), (x,)),  # noqa: ARG005
        "repeat_interleave": (
            lambda t, a: t.repeat_interleave(a, 3, dim=0),
            lambda a: flat(p * 3 for p in rows(a)),
            (x,),
        ),
        "diagonal": (lambda t, a: t.diagonal(a), lambda a: [a[i * m + i] for i in range(min(n, m))], (x,)),
        "clone": (lambda t, a: a.clone(), list, (x,)),  # noqa: ARG005
    }
    for name, (call, reference, inputs) in table.items():
        yield Case(name, call, reference, inputs, wide=2)


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (sorting, indexing, arranging)
