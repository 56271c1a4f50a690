"""Linear algebra: solutions and functions of matrices, by elimination and series.

Every matrix is far from singular by construction: its diagonal dominates.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from envcheck.checks.env.support.operators import products_reference, seeded_numbers
from envcheck.checks.env.support.operators.cases.dense_layers import given
from envcheck.checks.env.support.operators.operator_trial import WIDE, Case, Input

Values = list[float]
# By name: how torch is called, the reference, the inputs, and how wide the tolerance is.
_Rows = dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Input, ...], float]]


def dominant(source: random.Random, n: int) -> Input:
    """Return a square matrix whose diagonal is at least twice the rest of its row and of its column."""
    share = 1 / max(1, n - 1)
    values = [
        source.choice((-1, 1)) * source.uniform(2, 3) if i == j else source.uniform(-share, share)
        for i in range(n)
        for j in range(n)
    ]
    return Input(values, (n, n))


def identity(n: int) -> Values:
    """Return the identity of n rows."""
    return [float(i == j) for i in range(n) for j in range(n)]


def product(a: Values, b: Values, inner: int, columns: int) -> Values:
    """Return the product of two matrices."""
    return products_reference.matmul(a, b, inner, columns)


def transposed(a: Values, columns: int) -> Values:
    """Return the transpose of a matrix."""
    return products_reference.transposed(a, columns)


def eliminated(a: Values, b: Values, n: int, columns: int) -> tuple[Values, float]:
    """Return the solution of a x = b by Gauss's elimination with pivots, and the determinant of a."""
    rows = [[*a[i * n : (i + 1) * n], *b[i * columns : (i + 1) * columns]] for i in range(n)]
    determinant = 1.0
    for k in range(n):
        pivot = max(range(k, n), key=lambda i: abs(rows[i][k]))
        if pivot != k:
            rows[k], rows[pivot], determinant = rows[pivot], rows[k], -determinant
        determinant *= rows[k][k]
        for i in range(n):
            if i != k:
                factor = rows[i][k] / rows[k][k]
                rows[i] = [p - factor * q for p, q in zip(rows[i], rows[k])]
    return [rows[i][n + j] / rows[i][i] for i in range(n) for j in range(columns)], determinant


def solutions(source: random.Random, size: int) -> Iterator[Case]:
    """Yield solutions, determinants and inverses, forward and backward."""
    n, columns = source.randint(1, 3 + size), source.randint(1, 3)
    a, b = dominant(source, n), given(source, n, columns)
    upper = source.random() < 0.5  # noqa: PLR2004 (half)

    def solved(v: Values, w: Values) -> Values:
        return eliminated(v, w, n, columns)[0]

    def triangle(v: Values) -> Values:
        return [x if (i % n >= i // n if upper else i % n <= i // n) else 0.0 for i, x in enumerate(v)]

    def determinant(v: Values) -> Values:
        return [eliminated(v, identity(n), n, n)[1]]

    rows: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Input, ...]]] = {
        "linalg.solve": (lambda t, v, w: t.linalg.solve(v, w), solved, (a, b)),
        "linalg.lstsq of a square": (lambda t, v, w: t.linalg.lstsq(v, w).solution, solved, (a, b)),
        "linalg.solve_triangular": (
            lambda t, v, w: t.linalg.solve_triangular(v.triu() if upper else v.tril(), w, upper=upper),
            lambda v, w: solved(triangle(v), w),
            (a, b),
        ),
        "cholesky_solve": (
            lambda t, v, w: t.cholesky_solve(w, v.tril()),
            lambda v, w: solved(_squared(v, n), w),
            (a, b),
        ),
        "linalg.inv": (lambda t, v: t.linalg.inv(v), lambda v: eliminated(v, identity(n), n, n)[0], (a,)),
        "linalg.pinv": (lambda t, v: t.linalg.pinv(v), lambda v: eliminated(v, identity(n), n, n)[0], (a,)),
        "linalg.det": (lambda t, v: t.linalg.det(v), determinant, (a,)),
        "logdet": (lambda t, v: t.logdet(v @ v.t()), lambda v: [2 * math.log(abs(determinant(v)[0]))], (a,)),
        "linalg.slogdet": (
            lambda t, v: t.linalg.slogdet(v)[1],
            lambda v: [math.log(abs(determinant(v)[0]))],
            (a,),
        ),
    }
    for name, (call, reference, inputs) in rows.items():
        yield Case(name, call, reference, inputs, wide=8, dtypes=WIDE, least=0.5)
    high = n + 2
    tall = Input([*a.values, *seeded_numbers.uniform(source, 2 * n, -1, 1)], (high, n))

    def nearest(v: Values, w: Values) -> Values:
        turned = transposed(v, n)
        return eliminated(product(turned, v, high, n), product(turned, w, high, columns), n, columns)[0]

    yield Case(
        "linalg.lstsq",
        lambda t, v, w: t.linalg.lstsq(v, w).solution,
        nearest,
        (tall, given(source, high, columns)),
        wide=8,
        dtypes=WIDE,
        least=0.5,
        gradient=False,
    )


def _squared(v: Values, n: int) -> Values:
    lower = [x if i % n <= i // n else 0.0 for i, x in enumerate(v)]
    return product(lower, transposed(lower, n), n, n)


def _powers(v: Values, n: int) -> Iterator[Values]:
    power = identity(n)
    while True:
        yield power
        power = product(power, v, n, n)


def _exponential(v: Values, n: int) -> Values:
    # Terms with 1 / k! to k = 40: norms are at most 3.
    terms = [[x / math.factorial(j) for x in p] for j, p in zip(range(40), _powers(v, n))]
    return [math.fsum(one) for one in zip(*terms)]


def _crossed(v: Values, w: Values) -> Values:
    """Return the cross products of rows of three."""
    products = []
    for i in range(0, len(v), 3):
        (p, q, r), (x, y, z) = v[i : i + 3], w[i : i + 3]
        products += [q * z - r * y, r * x - p * z, p * y - q * x]
    return products


def _norms(t: Any, v: Any) -> Any:
    return tuple(t.linalg.matrix_norm(v, ord=kind) for kind in (1, math.inf, "fro"))


def functions(source: random.Random, size: int) -> Iterator[Case]:
    """Yield powers, exponentials, norms, traces and products of matrices."""
    n, m, k = (source.randint(2, 3 + size) for _ in range(3))
    a, power = dominant(source, n), source.randint(2, 4)
    small = Input(seeded_numbers.uniform(source, n * n, -0.5, 0.5), (n, n))

    def multiplied(v: Values) -> Values:
        return next(itertools.islice(_powers(v, n), power, None))

    left, right, third = given(source, n, k), given(source, k, m), given(source, m, n)

    def sides(v: Values) -> tuple[Values, ...]:
        lines = [[abs(x) for x in v[i * k : (i + 1) * k]] for i in range(n)]
        return [max(map(math.fsum, zip(*lines)))], [max(map(math.fsum, lines))], [math.hypot(*v)]

    three, other = given(source, m, 3), given(source, m, 3)

    powers = source.randint(2, 5)
    rows: _Rows = {
        "linalg.matrix_power": (lambda t, v: t.linalg.matrix_power(v, power), multiplied, (a,), 16),
        "linalg.matrix_exp": (lambda t, v: t.linalg.matrix_exp(v), lambda v: _exponential(v, n), (small,), 32),
        "linalg.cross": (lambda t, v, w: t.linalg.cross(v, w), _crossed, (three, other), 4),
        "trace": (lambda t, v: t.trace(v), lambda v: [math.fsum(v[:: n + 1])], (a,), 8),
        "linalg.vander": (
            lambda t, v: t.linalg.vander(v, N=powers),
            lambda v: [x**j for x in v for j in range(powers)],
            (given(source, m),),
            8,
        ),
        "einsum ii->i": (lambda t, v: t.einsum("ii->i", v), lambda v: v[:: n + 1], (a,), 2),
        **_contractions(source, left, right, third),
    }
    for name, (call, reference, inputs, wide) in rows.items():
        # The gradient of kron asks for views that tensors with gaps do not have (torch 2.13).
        yield Case(name, call, reference, inputs, wide=wide, dtypes=WIDE, least=1.0, layouts=name != "kron")
    yield Case("linalg.matrix_norm", _norms, sides, (left,), wide=4, dtypes=WIDE, gradient=False)


def _contractions(source: random.Random, left: Input, right: Input, third: Input) -> _Rows:
    """Return products of several matrices, of shapes (n, k), (k, m) and (m, n)."""
    (n, k), m = left.shape, right.shape[1]

    def kron(v: Values, w: Values) -> Values:
        grid = itertools.product(range(n), range(k), range(k), range(m))
        return [v[i * k + q] * w[p * m + j] for i, p, q, j in grid]

    def chained(v: Values, w: Values, z: Values) -> Values:
        return product(product(v, w, k, m), z, m, n)

    return {
        "kron": (lambda t, v, w: t.kron(v, w), kron, (left, right), 4),
        "linalg.multi_dot": (lambda t, *v: t.linalg.multi_dot(v), chained, (left, right, third), 8),
        "tensordot": (
            lambda t, v, w: t.tensordot(v, w, dims=([1], [0])),
            lambda v, w: product(v, w, k, m),
            (left, right),
            4,
        ),
        "einsum ij,ij->i": (
            lambda t, v, w: t.einsum("ij,ij->i", v, w),
            lambda v, w: [math.fsum(p * q for p, q in list(zip(v, w))[i : i + k]) for i in range(0, n * k, k)],
            (left, given(source, n, k)),
            8,
        ),
        "einsum i,j->ij": (
            lambda t, v, w: t.einsum("i,j->ij", v, w),
            lambda v, w: [p * q for p in v for q in w],
            (given(source, n), given(source, m)),
            4,
        ),
        "einsum ...ij,jk": (
            lambda t, v, w, z: t.einsum("...ij,jk,kl->...il", v, w, z),
            chained,
            (left, right, third),
            8,
        ),
    }


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (solutions, functions)
