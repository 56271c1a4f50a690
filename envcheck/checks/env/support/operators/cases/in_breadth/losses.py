"""Losses with margins, of several labels, and of distances."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from operator import mul

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.cases.dense_layers import given
from envcheck.checks.env.support.operators.cases.losses import reduced
from envcheck.checks.env.support.operators.cases.norms import lines_of
from envcheck.checks.env.support.operators.cases.pointwise import softplus
from envcheck.checks.env.support.operators.operator_trial import WIDE, Case, Input

Values = list[float]
REDUCTIONS = ("mean", "sum", "none")
# torch adds this to each number of a difference (pairwise_distance, triplet_margin_loss), for which there is no norm 0.
DISTANCE_EPS = 1e-6
# And this to the squares under the root of a cosine (EPSILON in ATen/native/Loss.cpp).
COSINE_EPS = 1e-12


def _signs(source: random.Random, count: int) -> Input:
    return Input([source.choice((-1, 1)) for _ in range(count)], (count,), "int64")


def margins(source: random.Random, size: int) -> Iterator[Case]:
    """Yield losses that are 0 beyond a margin; no term is near its edge, where it bends."""
    count, reduction = source.randint(2, 4 + 3 * size), source.choice(REDUCTIONS)
    margin = source.uniform(0.4, 0.6)
    near = seeded_numbers.away_from_zero(source, count, 0.1, 0.2)
    apart = [value if source.random() < 0.5 else math.copysign(source.uniform(1, 1.5), value) for value in near]  # noqa: PLR2004 (half)
    y = _signs(source, count)
    left = given(source, count)
    right = Input([a - d for a, d in zip(left.values, apart)], (count,))
    options = {"margin": margin, "reduction": reduction}

    def ranking(a: Values, b: Values, signs: list[int]) -> Values:
        return reduced([max(0.0, margin - s * (p - q)) for p, q, s in zip(a, b, signs)], reduction)

    yield Case(
        f"margin_ranking_loss {reduction}",
        lambda t, a, b, s: t.nn.functional.margin_ranking_loss(a, b, s.to(a.dtype), **options),
        ranking,
        (left, right, y),
        wide=4,
        dtypes=WIDE,
    )

    def hinge(a: Values, signs: list[int]) -> Values:
        return reduced([v if s > 0 else max(0.0, margin - v) for v, s in zip(a, signs)], reduction)

    yield Case(
        f"hinge_embedding_loss {reduction}",
        lambda t, a, s: t.nn.functional.hinge_embedding_loss(a, s.to(a.dtype), **options),
        hinge,
        (Input(apart, (count,)), y),
        wide=4,
        dtypes=WIDE,
    )
    yield from _classes(source, size, reduction)


def _spaced_scores(source: random.Random, classes: int) -> Values:
    """Return scores whose differences are multiples of 0.3 give or take 0.1: the margin 1 lies between two of them."""
    steps = [0.3 * n for n in range(classes)]
    source.shuffle(steps)
    return [step + source.uniform(-0.02, 0.02) for step in steps]


def _classes(source: random.Random, size: int, reduction: str) -> Iterator[Case]:
    """Yield losses that ask for one class, or several, ahead of the others: scores are far from what bends."""
    rows, classes = source.randint(1, 4), source.randint(3, 4 + 3 * size)
    x = Input([score for _ in range(rows) for score in _spaced_scores(source, classes)], (rows, classes))
    targets = Input([source.randrange(classes) for _ in range(rows)], (rows,), "int64")
    power = source.choice((1, 2))

    def multi(v: Values, y: list[int]) -> Values:
        lines = zip(lines_of(v, classes), y)
        return reduced(
            [
                math.fsum(max(0.0, 1 - line[k] + s) ** power for i, s in enumerate(line) if i != k) / classes
                for line, k in lines
            ],
            reduction,
        )

    yield Case(
        f"multi_margin_loss {reduction}",
        lambda t, v, y: t.nn.functional.multi_margin_loss(v, y, p=power, reduction=reduction),
        multi,
        (x, targets),
        wide=4,
        dtypes=WIDE,
    )
    chosen = [source.sample(range(classes), source.randint(1, classes - 1)) for _ in range(rows)]
    listed = [k for some in chosen for k in [*some, *([-1] * (classes - len(some)))]]

    def several(v: Values, _: list[int]) -> Values:
        terms = []
        for line, some in zip(lines_of(v, classes), chosen):
            pairs = itertools.product(some, (i for i in range(classes) if i not in some))
            terms.append(math.fsum(max(0.0, 1 - line[k] + line[i]) for k, i in pairs) / classes)
        return reduced(terms, reduction)

    yield Case(
        f"multilabel_margin_loss {reduction}",
        lambda t, v, y: t.nn.functional.multilabel_margin_loss(v, y, reduction=reduction),
        several,
        (x, Input(listed, (rows, classes), "int64")),
        wide=4,
        dtypes=WIDE,
    )
    flags = Input([source.randrange(2) for _ in range(rows * classes)], (rows, classes), "int64")

    def soft(v: Values, y: list[int]) -> Values:
        terms = [softplus(-a) if k else softplus(a) for a, k in zip(v, y)]
        return reduced([math.fsum(line) / classes for line in lines_of(terms, classes)], reduction)

    yield Case(
        f"multilabel_soft_margin_loss {reduction}",
        lambda t, v, y: t.nn.functional.multilabel_soft_margin_loss(v, y.to(v.dtype), reduction=reduction),
        soft,
        (given(source, rows, classes), flags),
        wide=6,
        dtypes=WIDE,
    )


def _square(line: Values) -> float:
    return COSINE_EPS + math.fsum(v * v for v in line)


def _apart(a: Values, b: Values, power: float) -> float:
    total: float = math.fsum(abs(p - q + DISTANCE_EPS) ** power for p, q in zip(a, b)) ** (1 / power)
    return total


def distances(source: random.Random, size: int) -> Iterator[Case]:
    """Yield distances between rows, and losses of them."""
    rows, width = source.randint(1, 4), source.randint(2, 4 + 3 * size)
    reduction, shape = source.choice(REDUCTIONS), (rows, width)
    power = source.choice((1.0, 2.0, 3.0))
    anchor = given(source, *shape)
    # No number of a difference is near 0, where its size bends; the negative one lies far out, or the margin is large.
    near = [a + d for a, d in zip(anchor.values, seeded_numbers.away_from_zero(source, rows * width, 0.2, 0.4))]
    far = [a + d for a, d in zip(anchor.values, seeded_numbers.away_from_zero(source, rows * width, 0.8, 1.2))]
    inside = source.random() < 0.5  # noqa: PLR2004 (half)
    # At p = 1 the far one is 1.2 width further out, and at least 0.4 with any p.
    margin = 1.5 * width if inside else 0.1

    def pairwise(a: Values, b: Values) -> Values:
        return [_apart(p, q, power) for p, q in zip(lines_of(a, width), lines_of(b, width))]

    yield Case(
        f"pairwise_distance {power:g}",
        lambda t, a, b: t.nn.functional.pairwise_distance(a, b, p=power),
        pairwise,
        (anchor, Input(near, shape)),
        wide=4,
        dtypes=WIDE,
    )

    def triplet(a: Values, b: Values, c: Values) -> Values:
        return reduced([max(0.0, p - q + margin) for p, q in zip(pairwise(a, b), pairwise(a, c))], reduction)

    yield Case(
        f"triplet_margin_loss {reduction}",
        lambda t, a, b, c: t.nn.functional.triplet_margin_loss(a, b, c, margin=margin, p=power, reduction=reduction),
        triplet,
        (anchor, Input(near, shape), Input(far, shape)),
        wide=6,
        dtypes=WIDE,
    )
    sides = [source.choice((-1, 1)) for _ in range(rows)]
    one = seeded_numbers.away_from_zero(source, rows * width, 0.5, 1.5)
    other = [math.copysign(source.uniform(0.5, 1.5), sides[n // width] * value) for n, value in enumerate(one)]

    # Such rows have a cosine of at least 0.6 in size (losses._cosine), and the margin is 0.2.
    def embedding(a: Values, b: Values, y: list[int]) -> Values:
        pairs = zip(lines_of(a, width), lines_of(b, width))
        cosines = [math.fsum(map(mul, u, v)) / math.sqrt(_square(u) * _square(v)) for u, v in pairs]
        return reduced([1 - c if s > 0 else max(0.0, c - 0.2) for c, s in zip(cosines, y)], reduction)

    yield Case(
        f"cosine_embedding_loss {reduction}",
        lambda t, a, b, s: t.nn.functional.cosine_embedding_loss(a, b, s, margin=0.2, reduction=reduction),
        embedding,
        (Input(one, shape), Input(other, shape), _signs(source, rows)),
        wide=6,
        dtypes=WIDE,
        least=1.0,
    )
    yield from _between_all(source, size, power)


def _between_all(source: random.Random, size: int, power: float) -> Iterator[Case]:
    n, m, width = source.randint(2, 5), source.randint(1, 5), source.randint(1, 3 + size)
    # Each number of the first rows is above 0.3, and of the second below -0.3.
    a = Input(seeded_numbers.uniform(source, n * width, 0.3, 2), (n, width))
    b = Input(seeded_numbers.uniform(source, m * width, -2, -0.3), (m, width))

    def size_of(p: Values, q: Values) -> float:
        total: float = math.fsum(abs(x - y) ** power for x, y in zip(p, q)) ** (1 / power)
        return total

    yield Case(
        f"cdist {power:g}",
        lambda t, x, y: t.cdist(x, y, p=power),
        lambda x, y: [size_of(p, q) for p in lines_of(x, width) for q in lines_of(y, width)],
        (a, b),
        wide=4,
        dtypes=WIDE,
    )
    # Column by column the rows are shuffled steps of 0.5: no two of them agree.
    columns = [source.sample([0.5 * k for k in range(n)], n) for _ in range(width)]
    rows = [column[i] + source.uniform(-0.1, 0.1) for i in range(n) for column in columns]
    yield Case(
        f"pdist {power:g}",
        lambda t, x: t.nn.functional.pdist(x, p=power),
        lambda x: [size_of(p, q) for p, q in itertools.combinations(list(lines_of(x, width)), 2)],
        (Input(rows, (n, width)),),
        wide=4,
        dtypes=WIDE,
    )


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (margins, distances)
