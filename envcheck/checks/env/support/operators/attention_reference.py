"""Attention in plain Python: softmax(scale Q K^T + mask) V and its three gradients, for the options that users set."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from operator import mul
from typing import Any, NamedTuple

from envcheck.checks.env.support.operators import seeded_numbers

Matrix = list[list[float]]
PARTS = ("output", "gradient of Q", "gradient of K", "gradient of V")


class AttentionSetting(NamedTuple):
    """Shapes and options of one call; `since` is the first torch that has the option."""

    name: str
    heads: int
    tokens: int
    keys: int
    width: int
    batch: int = 1
    causal: bool = False
    mask: str = ""
    scale: float = 0.0
    key_heads: int = 0
    layout: str = "contiguous"
    since: tuple[int, int] = (2, 0)


def settings(source: random.Random) -> list[AttentionSetting]:
    """Return one setting an option, with odd lengths from the seed, and one longer than the tiles of fused kernels."""

    def odd(low: int, high: int) -> int:
        return 2 * source.randint(low, high) + 1

    wide = 16
    return [
        AttentionSetting("plain", 2, odd(4, 12), odd(4, 12), wide, batch=2),
        AttentionSetting("one query", 2, 1, odd(4, 12), wide),
        AttentionSetting("causal", 2, (n := odd(6, 16)), n, wide, causal=True),
        AttentionSetting("boolean mask", 2, odd(4, 10), odd(6, 14), wide, mask="bool"),
        AttentionSetting("additive mask", 2, odd(4, 10), odd(6, 14), wide, mask="add"),
        AttentionSetting("scale", 2, odd(4, 10), odd(4, 10), wide, scale=source.uniform(0.1, 0.4), since=(2, 1)),
        AttentionSetting("grouped queries", 4, odd(4, 8), odd(4, 8), wide, key_heads=2, since=(2, 5)),
        AttentionSetting("not contiguous", 2, odd(4, 10), odd(4, 10), wide, layout="transposed"),
        AttentionSetting("long", 1, 131, 131, 64, causal=True),
    ]


class AttentionExample(NamedTuple):
    """The inputs of one setting as flat lists, and what must come out: output and gradients."""

    setting: AttentionSetting
    query: list[float]
    key: list[float]
    value: list[float]
    upstream: list[float]
    mask: list[Any]
    expected: tuple[list[float], ...]


def example(setting: AttentionSetting, source: random.Random) -> AttentionExample:
    """Return random inputs, exact in every 16-bit dtype, and their reference."""
    s = setting
    shared = s.key_heads or s.heads
    sizes = [s.batch * s.heads * s.tokens, *[s.batch * shared * s.keys] * 2, s.batch * s.heads * s.tokens]
    query, key, value, upstream = ([source.randint(-127, 127) / 64 for _ in range(n * s.width)] for n in sizes)
    mask: list[Any] = []
    if s.mask == "bool":
        mask = [j == i % s.keys or source.random() < 0.6 for i in range(s.tokens) for j in range(s.keys)]  # noqa: PLR2004
    elif s.mask:
        mask = [source.randint(-64, 64) / 32 for _ in range(s.tokens * s.keys)]
    parts: list[list[float]] = [[], [0.0] * len(key), [0.0] * len(value)]
    output: list[float] = []
    for number in range(s.batch * s.heads):
        other = number // s.heads * shared + number % s.heads * shared // s.heads
        rows = [_rows(x, at, n, s.width) for x, at, n in ((query, number, s.tokens), (key, other, s.keys))]
        tail = [_rows(x, at, n, s.width) for x, at, n in ((value, other, s.keys), (upstream, number, s.tokens))]
        made, dq, dk, dv = _head(s, rows[0], rows[1], tail[0], tail[1], mask)
        output += [x for row in made for x in row]
        parts[0] += [x for row in dq for x in row]
        start = other * s.keys * s.width
        for total, more in ((parts[1], dk), (parts[2], dv)):
            for place, x in enumerate(x for row in more for x in row):
                total[start + place] += x
    return AttentionExample(s, query, key, value, upstream, mask, (output, *parts))


def _rows(values: Sequence[float], number: int, count: int, width: int) -> Matrix:
    start = number * count * width
    return [list(values[start + i * width : start + (i + 1) * width]) for i in range(count)]


def _times(left: Matrix, right: Matrix) -> Matrix:
    columns = list(zip(*right))
    return [[sum(map(mul, row, column)) for column in columns] for row in left]


def _turned(matrix: Matrix) -> Matrix:
    return [list(column) for column in zip(*matrix)]


def _head(  # what one head is made of
    s: AttentionSetting, q: Matrix, k: Matrix, v: Matrix, up: Matrix, mask: list[Any]
) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """Return output, dQ, dK and dV of one head (Dao et al. 2022, arXiv 2205.14135, appendix B.2)."""
    scale = s.scale or 1 / math.sqrt(s.width)
    scores = [[scale * x for x in row] for row in _times(q, _turned(k))]
    for i, row in enumerate(scores):
        for j in range(s.keys):
            if (s.causal and j > i) or (s.mask == "bool" and not mask[i * s.keys + j]):
                row[j] = -math.inf
            elif s.mask == "add":
                row[j] += mask[i * s.keys + j]
    weights = [_softmax(row) for row in scores]
    back = _times(up, _turned(v))
    slopes = []
    for p, d in zip(weights, back):
        mean = sum(map(mul, p, d))
        slopes.append([scale * a * (b - mean) for a, b in zip(p, d)])
    return _times(weights, v), _times(slopes, k), _times(_turned(slopes), q), _times(_turned(weights), up)


def _softmax(row: Sequence[float]) -> list[float]:
    top = max(row)
    powers = [math.exp(x - top) for x in row]
    total = math.fsum(powers)
    return [p / total for p in powers]


def run(torch: Any, one: AttentionExample, dtype: str, device: Any) -> dict[str, float]:
    """Return how far output and gradients are from the reference, as relative Frobenius distances."""
    s = one.setting
    shared = s.key_heads or s.heads
    shapes = ((s.batch, s.heads, s.tokens, s.width), (s.batch, shared, s.keys, s.width))
    given = ((one.query, shapes[0]), (one.key, shapes[1]), (one.value, shapes[1]))
    leaves = [torch.nn.Parameter(seeded_numbers.tensor(torch, x, shape, dtype, device, s.layout)) for x, shape in given]
    options: dict[str, Any] = {"is_causal": s.causal}
    if s.mask:
        kind = "bool" if s.mask == "bool" else dtype
        options["attn_mask"] = seeded_numbers.tensor(torch, one.mask, (s.tokens, s.keys), kind, device)
    if s.scale:
        options["scale"] = s.scale
    if s.key_heads:
        options["enable_gqa"] = True
    output = torch.nn.functional.scaled_dot_product_attention(*leaves, **options)
    output.backward(seeded_numbers.tensor(torch, one.upstream, shapes[0], dtype, device))
    made = (output, *(leaf.grad for leaf in leaves))
    return {
        part: min(seeded_numbers.apart(seeded_numbers.read(x), right), 1e300)
        for part, x, right in zip(PARTS, made, one.expected)
    }
