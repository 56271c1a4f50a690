"""Plain Python beside torch: values to compute with, results taken out, and differences, none of them made by torch.

A reference that is computed by the operation under test is wrong where the operation is. So references are elementary
float64 formulas on lists of floats, and results are compared as lists of floats.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from envcheck.checks import Rank
from envcheck.checks.support import seeded_numbers

# Multiples of 2^-10 below 4 are exact in float32, float16 with few bits lost, and float64.
_GRAIN = 1024
# The compute capability from which on GPUs have bfloat16 units.
BFLOAT16_SINCE = (8, 0)
Matrix = list[list[float]]


def seed_of(rank: Rank) -> int:
    """Return the seed of this run, the same on all ranks of the group: ENVCHECK_SEED, or one from its directory."""
    requested = seeded_numbers.requested_seed()
    return zlib.crc32(rank.scratch.encode()) % 1_000_000 if requested is None else requested


def values(seed: int | str, count: int, spread: float = 1.0) -> list[float]:
    """Return `count` floats between -spread and spread that float32 holds exactly."""
    chance = random.Random(str(seed))  # noqa: S311 (test data, no secret)
    return [round(chance.uniform(-spread, spread) * _GRAIN) / _GRAIN for _ in range(count)]


def rows(flat: Sequence[float], width: int) -> Matrix:
    """Return a flat list as rows of `width`."""
    return [list(flat[start : start + width]) for start in range(0, len(flat), width)]


def numbers(tensor: Any) -> list[float]:
    """Return a tensor's elements as one flat list of floats."""
    values = tensor.detach().cpu().tolist()
    return flat(values) if isinstance(values, list) else [float(values)]


def flat(nested: Iterable[Any]) -> list[float]:
    """Return the floats of nested lists, in order."""
    values: list[float] = []
    for part in nested:
        values += flat(part) if isinstance(part, list) else [float(part)]
    return values


def off(actual: Sequence[float], right: Sequence[float], scale: float | None = None) -> float:
    """Return the largest difference relative to `scale` (by default the largest of `right`).

    Infinite where the lengths differ or anything is no finite number: these never compare as small.
    """
    if len(actual) != len(right) or not actual:
        return math.inf
    gaps = [abs(one - other) for one, other in zip(actual, right)]
    if not all(map(math.isfinite, gaps)):
        return math.inf
    size = max(map(abs, right)) if scale is None else scale
    return max(gaps) / (size or 1.0)


def dot(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the scalar product of two lists of one length."""
    return sum(map(float.__mul__, one, other))


def transposed(matrix: Matrix) -> Matrix:
    """Return rows as columns."""
    return [list(column) for column in zip(*matrix)]


def affine(inputs: Matrix, weight: Matrix, bias: Sequence[float]) -> Matrix:
    """Return inputs x weight^T + bias, as torch.nn.Linear defines it."""
    return [[dot(row, unit) + shift for unit, shift in zip(weight, bias)] for row in inputs]


def outer(gradients: Matrix, inputs: Matrix) -> Matrix:
    """Return gradients^T x inputs: the gradient of a linear layer's weight."""
    columns = transposed(inputs)
    return [[dot(gradient, column) for column in columns] for gradient in transposed(gradients)]


def two_layers(parameters: Sequence[Any], inputs: Matrix, targets: Matrix) -> tuple[float, list[list[float]]]:
    """Return the mean squared error of linear, tanh, linear, and its gradient by each of the four parameters.

    `parameters` are weight, bias, weight, bias, as nested lists; the gradients are flat. Chain rule, written out.
    """
    first, first_bias, second, second_bias = parameters
    hidden = [[math.tanh(x) for x in row] for row in affine(inputs, first, first_bias)]
    outputs = affine(hidden, second, second_bias)
    gaps = [[out - wish for out, wish in zip(row, wishes)] for row, wishes in zip(outputs, targets)]
    count = sum(map(len, gaps))
    back = [[2 * gap / count for gap in row] for row in gaps]
    columns = transposed(second)
    inner = [[dot(g, column) * (1 - h * h) for column, h in zip(columns, row)] for g, row in zip(back, hidden)]
    loss = sum(dot(row, row) for row in gaps) / count
    gradients = [outer(inner, inputs), [sum(column) for column in zip(*inner)]]
    gradients += [outer(back, hidden), [sum(column) for column in zip(*back)]]
    return loss, [flat(gradient) for gradient in gradients]
