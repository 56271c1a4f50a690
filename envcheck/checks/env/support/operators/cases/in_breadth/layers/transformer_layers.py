"""Encoder and decoder layers with the options that models set: norms first, masks, padding, and as they infer."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.cases.dense_layers import put
from envcheck.checks.env.support.operators.cases.in_breadth.layers import attention_layers
from envcheck.checks.env.support.operators.cases.in_breadth.layers.attention_layers import (
    Rows,
    Values,
    affine,
    flat,
    made_of,
    packed_heads,
    rows_of,
)
from envcheck.checks.env.support.operators.cases.norms import normalized
from envcheck.checks.env.support.operators.operator_trial import SINGLE, WIDE, Case, Input

HEADS, BATCH, EPS = 2, 2, 1e-5
Added = Callable[[int, int, int], float]
Bend = Callable[[float], float]


def _none(_h: int, _i: int, _j: int) -> float:
    return 0.0


def _causal(_h: int, i: int, j: int) -> float:
    return attention_layers.hidden(i, j)


def _norm(rows: Rows, weight: Values, bias: Values) -> Rows:
    return [[a * w + b for a, w, b in zip(normalized(row, EPS), weight, bias)] for row in rows]


def _sum(one: Rows, other: Rows) -> Rows:
    return [[a + b for a, b in zip(row, more)] for row, more in zip(one, other)]


def _attended(p: Sequence[Values], q: Rows, k: Rows, added: Added) -> Rows:
    return packed_heads(HEADS, len(q[0]), p).attend(q, k, k, added)[0]


def _relu(x: float) -> float:
    return max(x, 0.0)


def _gelu(x: float) -> float:
    # Difference quotients follow it everywhere; ReLU has a corner.
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def _forward(p: Sequence[Values], rows: Rows, bend: Bend) -> Rows:
    hidden = ([bend(a) for a in affine(row, p[0], p[1])] for row in rows)
    return [affine(row, p[2], p[3]) for row in hidden]


def _encoded(p: Sequence[Values], rows: Rows, added: Added, bend: Bend = _gelu, *, first: bool) -> Rows:
    """Return an encoder layer: attention, then two linear layers; norms first, or after each sum."""
    if first:
        inner = _norm(rows, p[8], p[9])
        rows = _sum(rows, _attended(p[:4], inner, inner, added))
        return _sum(rows, _forward(p[4:8], _norm(rows, p[10], p[11]), bend))
    rows = _norm(_sum(rows, _attended(p[:4], rows, rows, added)), p[8], p[9])
    return _norm(_sum(rows, _forward(p[4:8], rows, bend)), p[10], p[11])


def _decoded(p: Sequence[Values], rows: Rows, memory: Rows, added: Added) -> Rows:
    """Return a decoder layer: attention to itself, never ahead, then to the memory, then two linear layers."""
    rows = _norm(_sum(rows, _attended(p[:4], rows, rows, _causal)), p[12], p[13])
    rows = _norm(_sum(rows, _attended(p[4:8], rows, memory, added)), p[14], p[15])
    return _norm(_sum(rows, _forward(p[8:12], rows, _gelu)), p[16], p[17])


def _weights(source: random.Random, width: int, inner: int, attentions: int) -> tuple[Input, ...]:
    """Return a layer's parameters: projections of attentions, linear layers, norms."""
    each = ((3 * width, width), (3 * width,), (width, width), (width,))
    shapes = (
        *each * attentions,
        (inner, width),
        (inner,),
        (width, inner),
        (width,),
        *((width,),) * 2 * (attentions + 1),
    )
    return tuple(made_of(source, *shape, dtype="float64") for shape in shapes)


def _fill(t: Any, layer: Any, v: Any, p: Sequence[Any]) -> Any:
    layer = layer.to(v.device, v.dtype)
    p = [t.nn.Parameter(one.to(v.dtype)) for one in p]
    for name in ("self_attn", "multihead_attn"):
        if hasattr(layer, name):
            attention_layers.filled(t, getattr(layer, name), v, p[:4])
            p = p[4:]
    names = [name for name in ("linear1", "linear2", "norm1", "norm2", "norm3") if hasattr(layer, name)]
    for name, pair in zip(names, zip(p[::2], p[1::2])):
        put(getattr(layer, name), weight=pair[0], bias=pair[1])
    return layer


def layers(source: random.Random, size: int) -> Iterator[Case]:
    """Yield an encoder layer with norms first and a causal mask, and a decoder layer beside a padded memory."""
    width, inner = HEADS * source.randint(3, 4), source.randint(2, 6)
    tokens, keys = source.randint(2, 2 + size), source.randint(2, 2 + size)
    x, memory = made_of(source, BATCH, tokens, width), made_of(source, BATCH, keys, width)
    padded = attention_layers.padding(source, BATCH, keys)

    def encoder(t: Any, v: Any, *p: Any) -> Any:
        made = t.nn.TransformerEncoderLayer(
            width, HEADS, inner, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        mask = t.ones(tokens, tokens, dtype=t.bool, device=v.device).triu(1)
        return _fill(t, made, v, p)(v, src_mask=mask)

    def encoded(v: Values, *p: Values) -> Values:
        sequences = rows_of(v, tokens * width)
        return flat([_encoded(p, rows_of(one, width), _causal, first=True) for one in sequences])

    weights = _weights(source, width, inner, 1)
    # A norm of a narrow row bends more than difference quotients of float64 may be off.
    options: dict[str, Any] = {"wide": 16, "dtypes": SINGLE, "since": (2, 0), "least": 0.5}
    yield Case("TransformerEncoderLayer, norms first, causal", encoder, encoded, (x, *weights), **options)

    def infer(t: Any, v: Any, *p: Any) -> Any:
        made = t.nn.TransformerEncoderLayer(width, HEADS, inner, dropout=0.5, batch_first=True)
        made = _fill(t, made, v, p).eval()
        with t.no_grad():
            return made(v)

    def inferred(v: Values, *p: Values) -> Values:
        sequences = rows_of(v, tokens * width)
        return flat([_encoded(p, rows_of(one, width), _none, _relu, first=False) for one in sequences])

    yield Case(
        "TransformerEncoderLayer inference, ReLU", infer, inferred, (x, *weights),
        **{**options, "dtypes": WIDE}, gradient=False,
        layouts=False,
    )  # fmt: skip

    def decoder(t: Any, v: Any, m: Any, *p: Any) -> Any:
        made = t.nn.TransformerDecoderLayer(width, HEADS, inner, dropout=0.0, activation="gelu", batch_first=True)
        mask = t.ones(tokens, tokens, dtype=t.bool, device=v.device).triu(1)
        hidden = seeded_numbers.tensor(t, padded, (BATCH, keys), "bool", v.device)
        return _fill(t, made, v, p)(v, m, tgt_mask=mask, memory_key_padding_mask=hidden)

    def decoded(v: Values, m: Values, *p: Values) -> Values:
        pairs = zip(rows_of(v, tokens * width), rows_of(m, keys * width), rows_of(list(padded), keys))
        rows = []
        for one, other, ends in pairs:

            def seen(_h: int, _i: int, j: int, ends: Any = ends) -> float:
                return -math.inf if ends[j] else 0.0

            rows.append(_decoded(p, rows_of(one, width), rows_of(other, width), seen))
        return flat(rows)

    yield Case(
        "TransformerDecoderLayer, causal, memory padded", decoder, decoded,
        (x, memory, *_weights(source, width, inner, 2)), **options,
    )  # fmt: skip


def stacks(source: random.Random, size: int) -> Iterator[Case]:
    """Yield two encoder layers and a norm over padded sequences, in training and as they infer."""
    width, inner, tokens = HEADS * source.randint(3, 4), source.randint(2, 5), source.randint(2, 2 + size)
    x, padded = made_of(source, BATCH, tokens, width), attention_layers.padding(source, BATCH, tokens)
    weights = _weights(source, width, inner, 1)
    count, keep = len(weights), [0.0 if one else 1.0 for one in padded for _ in range(width)]
    inputs = (x, *weights, *_weights(source, width, inner, 1), *(made_of(source, width, dtype="float64"),) * 2)

    def reference(v: Values, *p: Values) -> Values:
        normed = []
        for one, ends in zip(rows_of(v, tokens * width), rows_of(list(padded), tokens)):

            def seen(_h: int, _i: int, j: int, ends: Any = ends) -> float:
                return -math.inf if ends[j] else 0.0

            rows = rows_of(one, width)
            for layer in (p[:count], p[count : 2 * count]):
                rows = _encoded(layer, rows, seen, first=False)
            normed.append(_norm(rows, p[-2], p[-1]))
        return [value * share for value, share in zip(flat(normed), keep)]

    def stack(t: Any, v: Any, p: Sequence[Any], dropout: float) -> Any:
        layer = t.nn.TransformerEncoderLayer(width, HEADS, inner, dropout=dropout, activation="gelu", batch_first=True)
        made = t.nn.TransformerEncoder(layer, 2, norm=t.nn.LayerNorm(width)).to(v.device, v.dtype)
        _fill(t, made.layers[0], v, p[:count])
        _fill(t, made.layers[1], v, p[count : 2 * count])
        put(made.norm, **{name: t.nn.Parameter(one.to(v.dtype)) for name, one in zip(("weight", "bias"), p[-2:])})
        return made

    def masks(t: Any, v: Any) -> tuple[Any, Any]:
        # What comes of padding is nobody's: some paths leave zeros there.
        ends = seeded_numbers.tensor(t, padded, (BATCH, tokens), "bool", v.device)
        return ends, t.tensor(keep, dtype=v.dtype, device=v.device).reshape(BATCH, tokens, width)

    def train(t: Any, v: Any, *p: Any) -> Any:
        ends, kept = masks(t, v)
        return stack(t, v, p, 0.0)(v, src_key_padding_mask=ends) * kept

    def infer(t: Any, v: Any, *p: Any) -> Any:
        ends, kept = masks(t, v)
        made = stack(t, v, p, 0.5).eval()
        with t.no_grad():
            return made(v, src_key_padding_mask=ends) * kept

    options: dict[str, Any] = {"wide": 32, "dtypes": SINGLE, "since": (2, 0), "least": 0.5}
    yield Case("TransformerEncoder, padded", train, reference, inputs, **options)
    yield Case(
        "TransformerEncoder inference, padded",
        infer,
        reference,
        inputs,
        **{**options, "dtypes": WIDE},
        gradient=False,
        layouts=False,
    )


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (layers, stacks)
