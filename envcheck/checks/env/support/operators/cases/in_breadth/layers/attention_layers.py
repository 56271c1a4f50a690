"""Layers of attention with their options: masks, weights, other widths, biases."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from operator import mul
from typing import Any, NamedTuple

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.cases.dense_layers import put
from envcheck.checks.env.support.operators.operator_trial import WIDE, Case, Input

Values = list[float]
Rows = list[Values]


def made_of(source: random.Random, *shape: int, dtype: str = "") -> Input:
    """Return multiples of 1/64, which every dtype holds, of this shape."""
    return Input([round(64 * source.uniform(-0.8, 0.8)) / 64 for _ in range(math.prod(shape))], shape, dtype)


def affine(row: Sequence[float], weight: Values, bias: Values) -> Values:
    """Return weight x row + bias."""
    width = len(row)
    lines = (weight[start : start + width] for start in range(0, len(weight), width))
    made = [sum(map(mul, row, line)) for line in lines]
    return [a + b for a, b in zip(made, bias)] if bias else made


def rows_of(values: Values, width: int) -> Rows:
    """Return a flat list as rows of this width."""
    return [values[start : start + width] for start in range(0, len(values), width)]


class Heads(NamedTuple):
    """Projections of Q, K, V and the result (weight and bias each), how many heads, and what is added to K and V."""

    heads: int
    weights: Sequence[Values]
    biases: Sequence[Values]
    extra: tuple[Rows, Rows] = ([], [])

    def attend(self, q: Rows, k: Rows, v: Rows, added: Callable[[int, int, int], float]) -> tuple[Rows, list[Rows]]:
        """Return the result and each head's weights (torch.nn.MultiheadAttention's documentation).

        `added` says for head, query and key what the score is raised by.
        """
        packed = [
            [affine(row, weight, bias) for row in rows]
            for rows, weight, bias in zip((q, k, v), self.weights, self.biases)
        ]
        packed[1], packed[2] = packed[1] + self.extra[0], packed[2] + self.extra[1]
        each = len(packed[0][0]) // self.heads
        joined: Rows = [[] for _ in q]
        weights: list[Rows] = []
        for head in range(self.heads):
            part = slice(head * each, (head + 1) * each)
            keys, values = ([row[part] for row in rows] for rows in packed[1:])
            weights.append([])
            for i, (row, out) in enumerate(zip(packed[0], joined)):
                scores = [
                    sum(map(mul, row[part], key)) / math.sqrt(each) + added(head, i, j) for j, key in enumerate(keys)
                ]
                top = max(scores)
                powers = [math.exp(x - top) for x in scores]
                shares = [p / math.fsum(powers) for p in powers]
                weights[-1].append(shares)
                out += [sum(map(mul, shares, column)) for column in zip(*values)]
        return [affine(row, self.weights[3], self.biases[3]) for row in joined], weights


def flat(nested: Any) -> Values:
    """Return the numbers of nested lists in their order."""
    return [x for one in nested for x in (flat(one) if isinstance(one, list) else [one])]


def packed_heads(heads: int, width: int, p: Sequence[Values]) -> Heads:
    """Return heads of which Q, K and V lie in one weight."""
    weights = [p[0][i * width * width : (i + 1) * width * width] for i in range(3)]
    biases = [p[1][i * width : (i + 1) * width] for i in range(3)]
    return Heads(heads, [*weights, p[2]], [*biases, p[3]])


def hidden(i: int, j: int) -> float:
    """Return minus infinity for a key that lies behind its query."""
    return -math.inf if j > i else 0.0


def layers(source: random.Random, size: int) -> Iterator[Case]:
    """Yield multi-head attention with other widths of K and V, masks, weights, and without a bias."""
    heads, batch = 2, 2
    width, queries, keys = heads * source.randint(2, 4), source.randint(1, 2 + size), source.randint(2, 3 + size)
    yield _crossing(source, heads, (queries, keys, batch, width))
    yield from _masked(source, heads, (keys, batch, width))
    x, memory = made_of(source, queries, width), made_of(source, keys, width)
    weights, more = (made_of(source, 3 * width, width), made_of(source, width, width)), made_of(source, 1, 1, width)
    also = made_of(source, 1, 1, width)

    def single(a: Values, b: Values, c: Values, d: Values, e: Values, f: Values) -> Values:
        one = packed_heads(heads, width, (c, [0.0] * 3 * width, d, [0.0] * width))
        zeros = [0.0] * width
        one = one._replace(extra=([e, zeros], [f, zeros]))
        return flat(one.attend(rows_of(a, width), rows_of(b, width), rows_of(b, width), lambda *_: 0.0)[0])

    def call(t: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Any:
        made = t.nn.MultiheadAttention(width, heads, bias=False, add_bias_kv=True, add_zero_attn=True)
        put(made.to(a.device, a.dtype), in_proj_weight=c, bias_k=e, bias_v=f)
        put(made.out_proj, weight=d)
        return made(a, b, b, need_weights=False)[0]

    yield Case(
        "MultiheadAttention of one sequence, keys added", call, single, (x, memory, *weights, more, also), wide=8,
        dtypes=WIDE, since=(1, 11), least=0.5,
    )  # fmt: skip


def _crossing(source: random.Random, heads: int, sizes: tuple[int, int, int, int]) -> Case:
    queries, keys, batch, width = sizes
    # Were both as wide as Q, they would lie in one weight.
    key_width, value_width = width + source.randint(1, 3), source.randint(2, 6)
    x, k, v = (
        made_of(source, count, batch, wide)
        for count, wide in ((queries, width), (keys, key_width), (keys, value_width))
    )
    weights = [made_of(source, width, wide) for wide in (width, key_width, value_width, width)]
    biases = [made_of(source, 3 * width), made_of(source, width)]

    def reference(x: Values, k: Values, v: Values, *p: Values) -> tuple[Values, Values]:
        one = Heads(heads, p[:4], [*rows_of(p[4], width), p[5]])
        outs, shares = [], []
        for n in range(batch):
            lines = [rows_of(a, wide)[n::batch] for a, wide in ((x, width), (k, key_width), (v, value_width))]
            made, each = one.attend(lines[0], lines[1], lines[2], lambda *_: 0.0)
            outs.append(made)
            shares.append([[math.fsum(pair) / heads for pair in zip(*row)] for row in zip(*each)])
        return flat([list(row) for row in zip(*outs)]), flat(shares)

    def call(t: Any, x: Any, k: Any, v: Any, *p: Any) -> Any:
        made = t.nn.MultiheadAttention(width, heads, kdim=key_width, vdim=value_width).to(x.device, x.dtype)
        put(made, q_proj_weight=p[0], k_proj_weight=p[1], v_proj_weight=p[2], in_proj_bias=p[4])
        put(made.out_proj, weight=p[3], bias=p[5])
        return made(x, k, v)

    inputs = (x, k, v, *weights, *biases)
    return Case("MultiheadAttention of other widths, with weights", call, reference, inputs, wide=8, dtypes=WIDE)


def _masked(source: random.Random, heads: int, sizes: tuple[int, int, int]) -> Iterator[Case]:
    tokens, batch, width = sizes
    x, weights = (
        made_of(source, batch, tokens, width),
        (made_of(source, 3 * width, width), made_of(source, width, width)),
    )
    biases = (made_of(source, 3 * width), made_of(source, width))
    inputs = (x, weights[0], biases[0], weights[1], biases[1])
    padded = padding(source, batch, tokens)
    each = made_of(source, batch * heads, tokens, tokens, dtype="float64")

    def reference(*v: Values, added: Callable[[int, int, int, int], float]) -> tuple[Values, Values]:
        return _self(heads, width, tokens, v, added)

    def module(t: Any, x: Any, p: Sequence[Any]) -> Any:
        return filled(t, t.nn.MultiheadAttention(width, heads, batch_first=True), x, p)

    def with_padding(t: Any, x: Any, *p: Any) -> Any:
        mask = seeded_numbers.tensor(t, padded, (batch, tokens), "bool", x.device)
        return module(t, x, p)(x, x, x, key_padding_mask=mask, need_weights=True, average_attn_weights=False)

    def unpadded(n: int, _h: int, _i: int, j: int) -> float:
        return -math.inf if padded[n * tokens + j] else 0.0

    yield Case(
        "MultiheadAttention with padded keys", with_padding,
        lambda *v: reference(*v, added=unpadded), inputs, wide=8, dtypes=WIDE, since=(1, 11),
    )  # fmt: skip

    def with_masks(t: Any, x: Any, *others: Any) -> Any:
        return module(t, x, others[:4])(x, x, x, attn_mask=others[4].to(x.dtype), need_weights=False)[0]

    def masked(x: Values, *others: Values) -> Values:
        mask = others[4]

        def added(n: int, h: int, i: int, j: int) -> float:
            return mask[((n * heads + h) * tokens + i) * tokens + j]

        return reference(x, *others[:4], added=added)[0]

    yield Case(
        "MultiheadAttention, a mask a head", with_masks, masked, (*inputs, each), wide=8, dtypes=WIDE, layouts=False
    )

    def causal(t: Any, x: Any, *p: Any) -> Any:
        mask = t.nn.Transformer.generate_square_subsequent_mask(tokens).to(x.device, x.dtype)
        return module(t, x, p)(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0]

    yield Case(
        "MultiheadAttention, causal", causal,
        lambda *v: reference(*v, added=lambda _n, _h, i, j: hidden(i, j))[0], inputs, wide=8, dtypes=WIDE,
        since=(2, 0),
    )  # fmt: skip


def _self(
    heads: int, width: int, tokens: int, v: Sequence[Values], added: Callable[[int, int, int, int], float]
) -> tuple[Values, Values]:
    """Return the result of self-attention and the weights; `added` is asked for batch, head, query and key."""
    one, outs, shares = packed_heads(heads, width, v[1:]), list[Rows](), list[list[Rows]]()
    for n, rows in enumerate(rows_of(v[0], tokens * width)):
        lines = rows_of(rows, width)
        made, weights = one.attend(lines, lines, lines, lambda h, i, j, n=n: added(n, h, i, j))  # type: ignore[misc]
        outs.append(made)
        shares.append(weights)
    return flat(outs), flat(shares)


def filled(t: Any, made: Any, x: Any, p: Sequence[Any]) -> Any:
    """Return the layer with these weights and biases, as parameters."""
    p = [one if isinstance(one, t.nn.Parameter) else t.nn.Parameter(one) for one in p]
    put(made.to(x.device, x.dtype), in_proj_weight=p[0], in_proj_bias=p[1])
    put(made.out_proj, weight=p[2], bias=p[3])
    return made


def inference(source: random.Random, size: int) -> Iterator[Case]:
    """Yield multi-head attention as it infers: without dropout, padded keys left out, a kernel of its own."""
    heads, batch, tokens = 2, 2, source.randint(2, 3 + size)
    width = heads * source.randint(2, 4)
    padded = padding(source, batch, tokens)
    shapes = ((batch, tokens, width), (3 * width, width), (3 * width,), (width, width), (width,))

    def infer(t: Any, x: Any, *p: Any) -> Any:
        mask = seeded_numbers.tensor(t, padded, (batch, tokens), "bool", x.device)
        made = filled(t, t.nn.MultiheadAttention(width, heads, dropout=0.5, batch_first=True), x, p).eval()
        with t.no_grad():
            return made(x, x, x, key_padding_mask=mask, need_weights=False)[0]

    def reference(*v: Values) -> Values:
        return _self(heads, width, tokens, v, lambda n, _h, _i, j: -math.inf if padded[n * tokens + j] else 0.0)[0]

    yield Case(
        "MultiheadAttention inference, padded keys", infer, reference, tuple(made_of(source, *one) for one in shapes),
        gradient=False, wide=8, dtypes=WIDE, layouts=False, since=(2, 0),
    )  # fmt: skip


def padding(source: random.Random, batch: int, tokens: int) -> list[bool]:
    """Return which tokens are padding: some at the end of each sequence but the first."""
    ends = [tokens, *(source.randint(1, tokens - 1) for _ in range(batch - 1))]
    return [place >= end for end in ends for place in range(tokens)]


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (layers, inference)
