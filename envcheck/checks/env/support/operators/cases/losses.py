"""Losses: what a training makes smaller, with weights, reductions, smoothing and targets that are ignored."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.cases.dense_layers import given
from envcheck.checks.env.support.operators.cases.norms import lines_of, log_softmax
from envcheck.checks.env.support.operators.cases.pointwise import softplus
from envcheck.checks.env.support.operators.operator_trial import SINGLE, WIDE, Case, Input

Values = list[float]
# The distance of two logits between -2 and 2 is rounded to the dtype before it is raised to a power (vec_log_softmax in
# ATen/native/cpu/SoftMaxKernel.cpp, torch 2.13): a loss near zero is off by a share of that distance, not of itself.
LOGITS = 1.0


def cross_entropy(lines: list[Values], targets: list[int]) -> float:
    """Return the mean of -log softmax(line)[target]."""
    return -math.fsum(log_softmax(line)[k] for line, k in zip(lines, targets)) / len(lines)


def classification(source: random.Random, size: int) -> Iterator[Case]:
    """Yield cross entropy and negative log likelihood with weights, ignored targets, smoothing and reductions."""
    for reduction, smoothing in (("mean", 0.0), ("sum", 0.0), ("none", 0.0), ("mean", source.uniform(0.05, 0.3))):
        rows, classes = source.randint(2, 4 + 2 * size), source.randint(2, 5 + 6 * size)
        targets = [source.randrange(classes) for _ in range(rows)]
        ignored = -100 if source.random() < 0.3 else targets[-1]  # noqa: PLR2004 (a share)
        if all(target == ignored for target in targets):
            ignored = -100
        weights = seeded_numbers.rounded(seeded_numbers.uniform(source, classes, 0.3, 2), "bfloat16")
        inputs = (given(source, rows, classes), Input(targets, (rows,), "int64"), Input(weights, (classes,)))
        options = {"reduction": reduction, "ignore_index": ignored}

        def nll(
            logs: list[Values],
            y: list[int],
            ignored: int = ignored,
            weights: Any = weights,
            reduction: str = reduction,
            smoothing: float = smoothing,
        ) -> Values:
            terms = []
            for line, target in zip(logs, y):
                weight = 0.0 if target == ignored else weights[target]
                smooth = math.fsum(-w * log for w, log in zip(weights, line)) / len(line) if weight else 0.0
                terms.append(-(1 - smoothing) * weight * line[target] + smoothing * smooth)
            total = math.fsum(0.0 if target == ignored else weights[target] for target in y)
            kinds = {"none": terms, "sum": [math.fsum(terms)], "mean": [math.fsum(terms) / total]}
            return kinds[reduction]

        def entropy(x: Values, y: list[int], _: Any, nll: Any = nll, classes: int = classes) -> Values:
            loss: Values = nll([log_softmax(line) for line in lines_of(x, classes)], y)
            return loss

        def call(t: Any, x: Any, y: Any, w: Any, options: Any = options, smoothing: float = smoothing) -> Any:
            return t.nn.functional.cross_entropy(x, y, w.detach(), label_smoothing=smoothing, **options)

        name = f"cross_entropy {reduction}{' label_smoothing' if smoothing else ''}"
        yield Case(name, call, entropy, _constant(inputs), wide=4, dtypes=SINGLE)
        if not smoothing:

            def likelihood(x: Values, y: list[int], _: Any, nll: Any = nll, classes: int = classes) -> Values:
                loss: Values = nll(list(lines_of(x, classes)), y)
                return loss

            def nll_call(t: Any, x: Any, y: Any, w: Any, options: Any = options) -> Any:
                return t.nn.functional.nll_loss(x, y, w, **options)

            yield Case(f"nll_loss {reduction}", nll_call, likelihood, _constant(inputs), wide=4, dtypes=SINGLE)
    yield from _default_entropy(source, size)


def _constant(inputs: tuple[Input, Input, Input]) -> tuple[Input, Input, Input]:
    """Return the inputs with weights that have no gradient."""
    return inputs[0], inputs[1], inputs[2]._replace(dtype="float32")


def _default_entropy(source: random.Random, size: int) -> Iterator[Case]:
    """Yield cross entropy as most training calls it: function and module, no options, in every dtype."""
    rows, classes = source.randint(1, 5), source.randint(2, 4 + 8 * size)
    targets = Input([source.randrange(classes) for _ in range(rows)], (rows,), "int64")

    def reference(x: Values, y: list[int]) -> Values:
        return [cross_entropy(list(lines_of(x, classes)), y)]

    inputs = (given(source, rows, classes), targets)
    for name, call in (
        ("cross_entropy", lambda t, x, y: t.nn.functional.cross_entropy(x, y)),
        ("CrossEntropyLoss module", lambda t, x, y: t.nn.CrossEntropyLoss()(x, y)),
    ):
        yield Case(name, call, reference, inputs, wide=4, least=LOGITS)


def regression(source: random.Random, size: int) -> Iterator[Case]:
    """Yield the losses of pairs of numbers, with each reduction."""
    edge, positive = source.uniform(0.3, 0.9), source.uniform(0.5, 3)
    f: dict[str, tuple[dict[str, Any], Callable[[float, float], float]]] = {
        "mse_loss": ({}, lambda x, y: (x - y) ** 2),
        "l1_loss": ({}, lambda x, y: abs(x - y)),
        "smooth_l1_loss": (
            {"beta": edge},
            lambda x, y: 0.5 * (x - y) ** 2 / edge if abs(x - y) < edge else abs(x - y) - 0.5 * edge,
        ),
        "huber_loss": (
            {"delta": edge},
            lambda x, y: 0.5 * (x - y) ** 2 if abs(x - y) < edge else edge * (abs(x - y) - 0.5 * edge),
        ),
        "soft_margin_loss": ({}, lambda x, y: softplus(-x * y)),
        "poisson_nll_loss": ({}, lambda x, y: math.exp(x) - y * x),
    }
    for name, (options, each) in f.items():
        reduction = source.choice(("mean", "sum", "none"))
        shape = (source.randint(1, 4), source.randint(1, 3 + 3 * size))
        # Distances of 0.1 to 0.25 and of 1.1 to 2: no loss changes its branch within a difference quotient.
        x = seeded_numbers.rounded(seeded_numbers.uniform(source, math.prod(shape), -1, 1), "bfloat16")
        apart = [source.choice((-1, 1)) * source.choice((0.125, 0.25, 1.25, 1.5)) for _ in x]
        y = seeded_numbers.rounded([a + d for a, d in zip(x, apart)], "float32")
        yield _loss(name, each, options, reduction, (Input(x, shape), Input(y, shape)))
    yield from _logits(source, positive)
    yield from _distributions(source)


def reduced(terms: Values, reduction: str) -> Values:
    """Return the terms, or their sum or mean."""
    total = math.fsum(terms)
    return {"none": terms, "sum": [total], "mean": [total / len(terms)]}[reduction]


def _loss(
    name: str,
    each: Callable[[float, float], float],
    options: dict[str, Any],
    reduction: str,
    inputs: tuple[Input, Input],
) -> Case:
    def call(t: Any, x: Any, y: Any) -> Any:
        return getattr(t.nn.functional, name)(x, y, reduction=reduction, **options)

    def reference(x: Values, y: Values) -> Values:
        return reduced([each(a, b) for a, b in zip(x, y)], reduction)

    # The target of these two has no gradient.
    fixed = name in ("soft_margin_loss", "poisson_nll_loss")
    if fixed:
        target = Input([abs(value) for value in inputs[1].values], inputs[1].shape, "float32")
        inputs = (inputs[0], target)
    dtypes = SINGLE if fixed else WIDE
    return Case(f"{name} {reduction}", call, reference, inputs, wide=4, dtypes=dtypes)


def _logits(source: random.Random, positive: float) -> Iterator[Case]:
    shape = (source.randint(1, 4), source.randint(1, 6))
    count = math.prod(shape)
    x, y = given(source, *shape), Input(seeded_numbers.uniform(source, count, 0, 1), shape)
    weight = Input(seeded_numbers.rounded([positive] * shape[1], "float32"), (shape[1],), "float32")

    def logits(a: Values, b: Values, w: Values) -> Values:
        terms = [(1 - q) * p + (1 + (w[i % shape[1]] - 1) * q) * softplus(-p) for i, (p, q) in enumerate(zip(a, b))]
        return [math.fsum(terms) / count]

    def call(t: Any, a: Any, b: Any, w: Any) -> Any:
        return t.nn.functional.binary_cross_entropy_with_logits(a, b, pos_weight=w)

    yield Case("bce_with_logits pos_weight", call, logits, (x, y, weight), wide=4, dtypes=SINGLE)

    def bce(a: Values, b: Values) -> Values:
        return [-math.fsum(q * math.log(p) + (1 - q) * math.log(1 - p) for p, q in zip(a, b)) / count]

    def bce_call(t: Any, a: Any, b: Any) -> Any:
        return t.nn.functional.binary_cross_entropy(a, b.detach())

    shares = Input(seeded_numbers.rounded(seeded_numbers.uniform(source, count, 0.1, 0.9), "float32"), shape)
    yield Case(
        "binary_cross_entropy",
        bce_call,
        bce,
        (shares, y._replace(values=seeded_numbers.rounded(y.values, "float32"), dtype="float32")),
        wide=8,
        dtypes=SINGLE,
    )


def _distributions(source: random.Random) -> Iterator[Case]:
    rows, width = source.randint(2, 5), source.randint(2, 6)
    count = rows * width
    for as_log in (False, True):
        target = (
            seeded_numbers.uniform(source, count, -2, 0) if as_log else seeded_numbers.uniform(source, count, 0.1, 1)
        )

        def kl(x: Values, y: Values, as_log: bool = as_log) -> Values:  # noqa: FBT001 (torch's option)
            logs = y if as_log else [math.log(v) for v in y]
            return [math.fsum(math.exp(log) * (log - a) for a, log in zip(x, logs)) / rows]

        def call(t: Any, x: Any, y: Any, as_log: bool = as_log) -> Any:  # noqa: FBT001
            return t.nn.functional.kl_div(x, y, reduction="batchmean", log_target=as_log)

        inputs = (given(source, rows, width), Input(target, (rows, width)))
        yield Case(f"kl_div{' log_target' if as_log else ''}", call, kl, inputs, wide=6, dtypes=WIDE)

    yield _cosine(source, rows, width)


def _cosine(source: random.Random, rows: int, width: int) -> Case:
    """Return cosine_similarity of lines at an angle that leaves a cosine of at least 0.6 in size.

    torch rounds each x_i / |x|, each y_i / |y|, their products and the sum to the dtype: at most 6 roundings u of
    terms whose sizes add up to at most 1 (Cauchy and Schwarz), so the error is up to 6 u however small the cosine is.
    The tolerance, 12 u of the cosine, covers that from 0.5 on. Sizes between 0.5 and 1.5, with the signs of y those of
    x or all opposite, give at least 2 sqrt(k) / (1 + k) = 0.6, k = 9 (Polya and Szego's inequality).
    """

    def cosine(x: Values, y: Values) -> Values:
        pairs = zip(lines_of(x, width), lines_of(y, width))
        return [math.fsum(a * b for a, b in zip(p, q)) / math.hypot(*p) / math.hypot(*q) for p, q in pairs]

    one = seeded_numbers.away_from_zero(source, rows * width, 0.5, 1.5)
    sides = [source.choice((-1, 1)) for _ in range(rows)]
    other = [math.copysign(source.uniform(0.5, 1.5), sides[n // width] * value) for n, value in enumerate(one)]
    inputs = tuple(Input(values, (rows, width)) for values in (one, other))
    return Case("cosine_similarity", lambda t, x, y: t.nn.functional.cosine_similarity(x, y), cosine, inputs, wide=6)


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (classification, regression)
