"""Histograms, bins, modes, unique numbers and counts, which are exact."""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Callable, Iterator

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.cases.in_breadth import selections
from envcheck.checks.env.support.operators.operator_trial import SINGLE, Case, Input


def _groups(v: list[int]) -> tuple[list[int], list[int]]:
    """Return the numbers of runs, and their lengths."""
    runs = [(key, len(list(same))) for key, same in itertools.groupby(v)]
    return [key for key, _ in runs], [length for _, length in runs]


def _unique(whole: Input, pairs: Input) -> list[selections.Row]:
    """Return what finds unique numbers and rows."""
    return [
        ("unique_consecutive", lambda t, v: t.unique_consecutive(v, return_counts=True), _groups, (whole,), 1),
        (
            "unique of rows",
            lambda t, v: t.unique(v, dim=0),
            lambda v: selections.flat(sorted(set(zip(v[::2], v[1::2])))),
            (pairs,),
            1,
        ),
        (
            "unique places",
            lambda t, v: t.unique(v, return_inverse=True)[1],
            lambda v: [sorted(set(v)).index(a) for a in v],
            (whole,),
            1,
        ),
    ]


def counting(source: random.Random, size: int) -> Iterator[Case]:
    """Yield histograms, bins, modes, unique numbers and counts, which are exact."""
    count = 10 + source.randint(0, 20 * size)
    numbers = [source.randint(0, 9) for _ in range(count)]
    whole = Input(numbers, (count,), "int64")
    edges = sorted(seeded_numbers.rounded(seeded_numbers.uniform(source, 4 + 3 * size), "float32"))
    values = [*seeded_numbers.rounded(seeded_numbers.uniform(source, 9, -2.5, 2.5), "float32"), edges[1]]
    right, bins = source.random() < 0.5, source.randint(2, 6)  # noqa: PLR2004 (half)
    find = bisect.bisect_right if right else bisect.bisect_left
    # Each number is in the middle half of its bin of width 1.
    inside = [source.randrange(bins) + source.uniform(0.25, 0.75) for _ in range(count)]
    favourite = source.randint(0, 9)
    often = [favourite] * (count + 1) + numbers
    source.shuffle(often)

    pairs = [source.randint(0, 2) for _ in range(2 * count)]
    boundaries = Input(edges, (len(edges),), "float32")
    table: list[selections.Row] = [
        (
            "bucketize",
            lambda t, v, e: t.bucketize(v, e, right=right),
            lambda v, e: [find(e, a) for a in v],
            (Input(values, (len(values),), "float32"), boundaries),
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
        *_unique(whole, Input(pairs, (count, 2), "int64")),
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
                selections.flat(zip(*[(r, c) for r in range(4) for c in range(bins) if (c <= r if low else c >= r)]))
                for low in (True, False)
            ),
            (whole,),
            1,
        ),
    ]
    for name, call, reference, inputs, wide in table:
        yield Case(name, call, reference, inputs, wide=wide, gradient=False, dtypes=SINGLE)


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (counting,)
