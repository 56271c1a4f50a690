"""Factors of matrices, judged by what they promise, and their eigenvalues, by Jacobi's rotations."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.cases.in_breadth import matrices
from envcheck.checks.env.support.operators.operator_trial import WIDE, Case, Input

Values = list[float]


def eigenvalues(a: Values, n: int) -> Values:
    """Return the eigenvalues of a symmetric matrix in rising order, by Jacobi's rotations."""
    m = [list(a[i * n : (i + 1) * n]) for i in range(n)]
    for _ in range(12):
        for p, q in itertools.combinations(range(n), 2):
            if abs(m[p][q]) < 1e-300:  # noqa: PLR2004 (nothing to turn)
                continue
            angle = 0.5 * math.atan2(2 * m[p][q], m[q][q] - m[p][p])
            c, s = math.cos(angle), math.sin(angle)
            for row in m:
                row[p], row[q] = c * row[p] - s * row[q], s * row[p] + c * row[q]
            m[p], m[q] = (
                [c * x - s * y for x, y in zip(m[p], m[q])],
                [s * x + c * y for x, y in zip(m[p], m[q])],
            )
    return sorted(m[i][i] for i in range(n))


def _symmetric(source: random.Random, n: int) -> Input:
    """Return a symmetric matrix with eigenvalues that lie at least 0.9 apart (Gershgorin), none of them near 0."""
    values = [0.0] * (n * n)
    for i in range(n):
        values[i * n + i] = 1.5 * (i + 1) + source.uniform(-0.1, 0.1)
        for j in range(i):
            values[i * n + j] = values[j * n + i] = source.uniform(-0.2, 0.2) / n
    return Input(values, (n, n))


def _held(t: Any, like: Any, *parts: Values) -> tuple[Any, ...]:
    """Return what was computed in plain Python as tensors, which are then compared as any result."""
    return tuple(t.tensor(part, dtype=t.float64, device=like.device) for part in parts)


def factors(source: random.Random, size: int) -> Iterator[Case]:
    """Yield factors of matrices: their product is the matrix, and what is orthogonal or a triangle is so."""
    n, rows = source.randint(2, 3 + size), source.randint(0, 2)
    tall = [*matrices.dominant(source, n).values, *seeded_numbers.uniform(source, rows * n, -1, 1)]
    high = n + rows
    read = seeded_numbers.read

    def qr(t: Any, a: Any) -> Any:
        q, r = map(read, t.linalg.qr(a))
        below = [r[i * n + j] for i in range(n) for j in range(i)]
        return _held(t, a, matrices.product(q, r, n, n), matrices.product(matrices.transposed(q, n), q, high, n), below)

    below = [0.0] * (n * (n - 1) // 2)
    plain: dict[str, Any] = {"gradient": False, "wide": 4, "dtypes": WIDE, "least": 1.0}
    long = Input(tall, (high, n))
    yield Case("qr", qr, lambda a: (a, matrices.identity(n), below), (long,), **plain)

    def svd(t: Any, a: Any) -> Any:
        u, s, v = map(read, t.linalg.svd(a, full_matrices=False))
        falling = float(all(p >= q >= 0 for p, q in zip(s, s[1:])))
        scaled = [value * s[i % n] for i, value in enumerate(u)]
        orthogonal = (
            matrices.product(matrices.transposed(u, n), u, high, n),
            matrices.product(v, matrices.transposed(v, n), n, n),
        )
        return _held(t, a, matrices.product(scaled, v, n, n), *orthogonal, [falling])

    yield Case("svd", svd, lambda a: (a, matrices.identity(n), matrices.identity(n), [1.0]), (long,), **plain)
    square, even = matrices.dominant(source, n), _symmetric(source, n)

    def eigh(t: Any, a: Any) -> Any:
        values, v = map(read, t.linalg.eigh(a))
        scaled = [value * values[i % n] for i, value in enumerate(v)]
        rising = float(all(p <= q for p, q in zip(values, values[1:])))
        return _held(
            t,
            a,
            matrices.product(scaled, matrices.transposed(v, n), n, n),
            matrices.product(matrices.transposed(v, n), v, n, n),
            [rising],
        )

    yield Case("eigh", eigh, lambda a: (a, matrices.identity(n), [1.0]), (even,), **plain)

    def lu(t: Any, a: Any) -> Any:
        return t.linalg.multi_dot(t.linalg.lu(a))

    yield Case("lu", lu, list, (square,), **plain, since=(1, 13))
    yield from _values(source, n, even)


def _values(source: random.Random, n: int, even: Input) -> Iterator[Case]:
    """Yield eigenvalues and singular values, and the one triangle of a positive matrix."""
    yield Case(
        "eigvalsh",
        lambda t, a: t.linalg.eigvalsh((a + a.t()) / 2),
        lambda a: eigenvalues([(p + q) / 2 for p, q in zip(a, matrices.transposed(a, n))], n),
        (even,),
        wide=8,
        dtypes=WIDE,
        least=1.5 * n,
    )
    yield Case(
        "svdvals",
        lambda t, a: t.linalg.svdvals(a),
        lambda a: [
            math.sqrt(v) for v in reversed(eigenvalues(matrices.product(matrices.transposed(a, n), a, n, n), n))
        ],
        (_symmetric(source, n),),
        wide=8,
        dtypes=WIDE,
        least=1.5 * n,
    )

    def positive(v: Values) -> Values:
        made = [[0.0] * n for _ in range(n)]
        for i in range(n):
            for j in range(i + 1):
                remainder = (v[i * n + j] + v[j * n + i]) / 2 - math.fsum(
                    p * q for p, q in zip(made[i][:j], made[j][:j])
                )
                made[i][j] = math.sqrt(remainder) if i == j else remainder / made[j][j]
        return [x for row in made for x in row]

    yield Case(
        "cholesky of a mean",
        lambda t, a: t.linalg.cholesky((a + a.t()) / 2),
        positive,
        (_symmetric(source, n),),
        wide=8,
        dtypes=WIDE,
    )


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (factors,)
