"""Likelihoods as losses: Gaussian, Poisson, of images, and of sequences that nobody has aligned."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.cases.dense_layers import given
from envcheck.checks.env.support.operators.cases.in_breadth import losses
from envcheck.checks.env.support.operators.cases.losses import reduced
from envcheck.checks.env.support.operators.cases.norms import log_softmax
from envcheck.checks.env.support.operators.operator_trial import WIDE, Case, Input

Values = list[float]


def likelihoods(source: random.Random, size: int) -> Iterator[Case]:
    """Yield likelihoods with options: Gaussian with a variance, Poisson of rates, of images."""
    rows, width, reduction = source.randint(1, 4), source.randint(1, 3 + 3 * size), source.choice(losses.REDUCTIONS)
    shape, full = (rows, width), source.random() < 0.5  # noqa: PLR2004 (half)
    constant = 0.5 * math.log(2 * math.pi) if full else 0.0

    def gaussian(x: Values, y: Values, v: Values) -> Values:
        return reduced(
            [0.5 * (math.log(s) + (a - b) ** 2 / s) + constant for a, b, s in zip(x, y, v)],
            reduction,
        )

    variance = Input(seeded_numbers.uniform(source, rows * width, 0.3, 2), shape)
    yield Case(
        f"gaussian_nll_loss {reduction}",
        lambda t, x, y, v: t.nn.functional.gaussian_nll_loss(x, y, v, full=full, reduction=reduction),
        gaussian,
        (given(source, *shape), given(source, *shape), variance),
        wide=6,
        dtypes=WIDE,
        least=1.0,
    )
    # Stirling's formula stands for log(y!) where y is above 1 (full=True).
    counts = Input([source.randint(2, 9) for _ in range(rows * width)], shape, "int64")

    def poisson(x: Values, y: list[int]) -> Values:
        terms = [
            a - b * math.log(a + 1e-8) + (b * math.log(b) - b + 0.5 * math.log(2 * math.pi * b) if full else 0.0)
            for a, b in zip(x, y)
        ]
        return reduced(terms, reduction)

    def poisson_call(t: Any, x: Any, y: Any) -> Any:
        options = {"log_input": False, "full": full, "reduction": reduction}
        return t.nn.functional.poisson_nll_loss(x, y.to(x.dtype), **options)

    rates = Input(seeded_numbers.uniform(source, rows * width, 0.5, 4), shape)
    yield Case(
        f"poisson_nll_loss of rates {reduction}", poisson_call, poisson, (rates, counts), wide=6, dtypes=WIDE,
        least=9.0,
    )  # fmt: skip
    classes, places = source.randint(2, 5), source.randint(1, 4)
    targets = Input([source.randrange(classes) for _ in range(rows * places)], (rows, places, 1), "int64")

    def images(x: Values, y: list[int]) -> Values:
        picked = [-x[(i // places * classes + k) * places + i % places] for i, k in enumerate(y)]
        return reduced(picked, reduction)

    yield Case(
        f"nll_loss of images {reduction}",
        lambda t, x, y: t.nn.functional.nll_loss(x, y, reduction=reduction),
        images,
        (Input(seeded_numbers.uniform(source, rows * classes * places, -3, -0.1), (rows, classes, places, 1)), targets),
        wide=4,
        dtypes=WIDE,
    )
    yield _ctc(source, reduction)


def _ctc(source: random.Random, reduction: str) -> Case:
    """Return the likelihood of a sequence over all alignments (Graves et al. 2006), by its forward sums."""
    batch, classes, longest = source.randint(1, 3), source.randint(3, 5), source.randint(1, 3)
    lengths = [source.randint(1, longest) for _ in range(batch)]
    steps = 2 * longest + 1 + source.randint(0, 2)
    durations = [source.randint(2 * longest + 1, steps) for _ in range(batch)]
    blank = source.choice((0, classes - 1))
    labels = [k for k in range(classes) if k != blank]
    targets = [source.choice(labels) for _ in range(batch * longest)]

    def likelihood(x: Values, image: int) -> float:
        word = targets[image * longest : image * longest + lengths[image]]
        path = [blank, *(k for label in word for k in (label, blank))]
        begins = range(image * classes, len(x), batch * classes)
        shares = [[math.exp(v) for v in log_softmax(x[begin : begin + classes])] for begin in begins]
        sums = [shares[0][k] if i <= 1 else 0.0 for i, k in enumerate(path)]
        for share in shares[1 : durations[image]]:
            sums = [
                share[k]
                * math.fsum(
                    sums[max(0, i - 2 if i > 1 and k not in (blank, path[i - 2]) else i - 1) : i + 1]
                )
                for i, k in enumerate(path)
            ]  # fmt: skip
        return -math.log(sums[-1] + sums[-2])

    def reference(x: Values, _: list[int]) -> Values:
        terms = [likelihood(x, image) for image in range(batch)]
        if reduction == "mean":
            terms = [term / length for term, length in zip(terms, lengths)]
        return reduced(terms, reduction)

    def call(t: Any, x: Any, y: Any) -> Any:
        logs = t.nn.functional.log_softmax(x, 2)
        return t.nn.functional.ctc_loss(logs, y, tuple(durations), tuple(lengths), blank=blank, reduction=reduction)

    inputs = (given(source, steps, batch, classes), Input(targets, (batch, longest), "int64"))
    return Case(f"ctc_loss {reduction}", call, reference, inputs, wide=8, dtypes=WIDE)


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (likelihoods,)
