"""Layers with many products: recurrent layers, multi-head attention, a transformer layer; and Fourier transforms."""

from __future__ import annotations

import cmath
import math
import random
from collections.abc import Callable, Iterator, Sequence
from operator import mul
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.cases.dense_layers import put
from envcheck.checks.env.support.operators.cases.norms import normalized, softmax
from envcheck.checks.env.support.operators.cases.pointwise import sigmoid
from envcheck.checks.env.support.operators.operator_trial import WIDE, Case, Input

Values = list[float]


def _small(source: random.Random, *shape: int) -> Input:
    return Input(seeded_numbers.uniform(source, math.prod(shape), -0.8, 0.8), shape)


def _dots(weights: Values, x: Sequence[float], bias: Values) -> Values:
    width = len(x)
    return [sum(map(mul, weights[i * width : (i + 1) * width], x)) + b for i, b in enumerate(bias)]


def _rnn(x: Values, h: Values, c: Values, p: list[Values]) -> tuple[Values, Values]:
    """Return tanh(W x + b + U h + d): torch.nn.RNN's documentation."""
    pre = map(sum, zip(_dots(p[0], x, p[2]), _dots(p[1], h, p[3])))
    return [math.tanh(v) for v in pre], c


def _lstm(x: Values, h: Values, c: Values, p: list[Values]) -> tuple[Values, Values]:
    """Return the next hidden and cell state: torch.nn.LSTM's documentation; gates in the order i, f, g, o."""
    pre = [a + b for a, b in zip(_dots(p[0], x, p[2]), _dots(p[1], h, p[3]))]
    n = len(h)
    i, f, g, o = (pre[k * n : (k + 1) * n] for k in range(4))
    cell = [sigmoid(b) * old + sigmoid(a) * math.tanh(new) for a, b, new, old in zip(i, f, g, c)]
    return [sigmoid(gate) * math.tanh(v) for gate, v in zip(o, cell)], cell


def _gru(x: Values, h: Values, c: Values, p: list[Values]) -> tuple[Values, Values]:
    """Return the next hidden state: torch.nn.GRU's documentation; gates in the order r, z, n."""
    a, b, n = _dots(p[0], x, p[2]), _dots(p[1], h, p[3]), len(h)
    r = [sigmoid(a[i] + b[i]) for i in range(n)]
    z = [sigmoid(a[n + i] + b[n + i]) for i in range(n)]
    new = [math.tanh(a[2 * n + i] + r[i] * b[2 * n + i]) for i in range(n)]
    return [(1 - z[i]) * new[i] + z[i] * h[i] for i in range(n)], c


def recurrent(source: random.Random, size: int) -> Iterator[Case]:
    """Yield RNN, LSTM and GRU over a few steps."""
    for name, gates, step in (("RNN", 1, _rnn), ("LSTM", 4, _lstm), ("GRU", 3, _gru)):
        length, batch, width, hidden = (source.randint(1, 2 + size) for _ in range(4))
        width += 1
        shapes = ((gates * hidden, width), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,))
        inputs = (_small(source, length, batch, width), *(_small(source, *shape) for shape in shapes))

        def reference(x: Values, *p: Values, step: Any = step, dims: Any = (length, batch, width, hidden)) -> Values:
            length, batch, width, hidden = dims
            states = [([0.0] * hidden, [0.0] * hidden) for _ in range(batch)]
            out: Values = []
            for t in range(length):
                for n in range(batch):
                    start = (t * batch + n) * width
                    states[n] = step(x[start : start + width], *states[n], list(p))
                    out += states[n][0]
            return out

        def call(t: Any, x: Any, *p: Any, name: str = name, dims: Any = (width, hidden)) -> Any:
            names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
            layer = getattr(t.nn, name)(*dims).to(x.device, x.dtype)
            return put(layer, **dict(zip(names, p)))(x)[0]

        # cuDNN packs the weights: parameters in gaps are no part of its contract.
        yield Case(name, call, reference, inputs, wide=6, dtypes=WIDE, layouts=False)


def attend(q: list[Values], k: list[Values], v: list[Values], hidden: Callable[[int, int], bool]) -> list[Values]:
    """Return softmax(q k^T / sqrt(width)) v of one head, with pairs for which `hidden` holds left out."""
    scale = 1 / math.sqrt(len(q[0]))
    out = []
    for i, row in enumerate(q):
        seen = [j for j in range(len(k)) if not hidden(i, j)]
        weights = softmax([scale * sum(map(mul, row, k[j])) for j in seen])
        out.append([math.fsum(w * v[j][c] for w, j in zip(weights, seen)) for c in range(len(v[0]))])
    return out


def self_attention(x: list[Values], p: Sequence[Values], heads: int, *, causal: bool) -> list[Values]:
    """Return multi-head self-attention of one sequence: in_proj weight and bias, out_proj weight and bias."""
    width, each = len(x[0]), len(x[0]) // heads
    packed = [_dots(p[0], row, p[1]) for row in x]
    joined: list[Values] = [[] for _ in x]
    for head in range(heads):
        q, k, v = (
            [row[part * width + head * each : part * width + (head + 1) * each] for row in packed] for part in range(3)
        )
        for row, more in zip(joined, attend(q, k, v, lambda i, j: causal and j > i)):
            row.extend(more)
    return [_dots(p[2], row, p[3]) for row in joined]


def transformers(source: random.Random, size: int) -> Iterator[Case]:
    """Yield multi-head attention, causal or not, and a transformer layer, in training and as it infers."""
    heads, each, batch, tokens = 2, source.randint(3, 4), source.randint(1, 2), source.randint(2, 3 + size)
    width, causal = heads * each, source.random() < 0.5  # noqa: PLR2004 (half)
    x = _small(source, batch, tokens, width)
    shapes = ((3 * width, width), (3 * width,), (width, width), (width,))
    attention = tuple(_small(source, *shape) for shape in shapes)

    def rows(v: Values) -> list[list[Values]]:
        lines = [v[i : i + width] for i in range(0, len(v), width)]
        return [lines[i : i + tokens] for i in range(0, len(lines), tokens)]

    def reference(v: Values, *p: Values) -> Values:
        return [a for seq in rows(v) for row in self_attention(seq, p, heads, causal=causal) for a in row]

    def multi(t: Any, v: Any, *p: Any) -> Any:
        layer = t.nn.MultiheadAttention(width, heads, batch_first=True).to(v.device, v.dtype)
        _fill(layer, p)
        mask = t.ones(tokens, tokens, dtype=t.bool, device=v.device).triu(1) if causal else None
        return layer(v, v, v, attn_mask=mask, need_weights=False)[0]

    yield Case("MultiheadAttention", multi, reference, (x, *attention), wide=8, dtypes=WIDE)
    yield from _layers(source, x, attention, heads, rows)


def _fill(layer: Any, p: Sequence[Any]) -> None:
    put(layer, in_proj_weight=p[0], in_proj_bias=p[1])
    put(layer.out_proj, weight=p[2], bias=p[3])


def _layers(
    source: random.Random, x: Input, attention: tuple[Input, ...], heads: int, rows: Callable[[Values], Any]
) -> Iterator[Case]:
    width, inner = x.shape[2], source.randint(2, 6)
    shapes = ((inner, width), (inner,), (width, inner), (width,), (width,), (width,), (width,), (width,))
    more = tuple(_small(source, *shape) for shape in shapes)

    def reference(v: Values, *p: Values) -> Values:
        out: Values = []
        for seq in rows(v):
            for row, seen in zip(seq, self_attention(seq, p[:4], heads, causal=False)):
                first = _scaled([a + b for a, b in zip(row, seen)], p[8], p[9])
                bent = [_gelu(a) for a in _dots(p[4], first, p[5])]
                out += _scaled([a + b for a, b in zip(first, _dots(p[6], bent, p[7]))], p[10], p[11])
        return out

    def layer(t: Any, v: Any, *p: Any) -> Any:
        made = t.nn.TransformerEncoderLayer(width, heads, inner, dropout=0.0, activation="gelu", batch_first=True)
        made = made.to(v.device, v.dtype)
        _fill(made.self_attn, p[:4])
        for name, pair in zip(("linear1", "linear2", "norm1", "norm2"), zip(p[4::2], p[5::2])):
            put(getattr(made, name), weight=pair[0], bias=pair[1])
        return made

    inputs = (x, *attention, *more)
    yield Case("TransformerEncoderLayer", lambda t, v, *p: layer(t, v, *p)(v), reference, inputs, wide=16, dtypes=WIDE)

    def infer(t: Any, v: Any, *p: Any) -> Any:
        made = layer(t, v, *(t.nn.Parameter(one) for one in p)).eval()
        with t.no_grad():
            return made(v)

    yield Case(
        "TransformerEncoderLayer inference",
        infer,
        reference,
        inputs,
        gradient=False,
        wide=16,
        dtypes=WIDE,
        layouts=False,
    )


def _gelu(x: float) -> float:
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def _scaled(line: Values, weight: Values, bias: Values) -> Values:
    return [a * w + b for a, w, b in zip(normalized(line, 1e-5), weight, bias)]


def fourier(source: random.Random, size: int) -> Iterator[Case]:
    """Yield Fourier transforms of odd, even and prime lengths, there and back."""
    n, rows = source.randint(2, 8 + 8 * size), source.randint(1, 3)
    m = n // 2 + 1
    real = Input(seeded_numbers.uniform(source, rows * n), (rows, n))
    pair = Input(seeded_numbers.uniform(source, rows * n * 2), (rows, n, 2))
    turns = [cmath.exp(-2j * math.pi * k / n) for k in range(n)]

    def transform(line: Sequence[complex], count: int, sign: int = 1) -> list[complex]:
        return [sum(a * turns[sign * j * k % n] for j, a in enumerate(line)) for k in range(count)]

    def parts(lines: Any) -> Values:
        return [part for line in lines for c in line for part in (c.real, c.imag)]

    def lines(v: Values) -> list[list[complex]]:
        numbers = [complex(*pair) for pair in zip(v[::2], v[1::2])]
        return [numbers[i * n : (i + 1) * n] for i in range(rows)]

    def reals(v: Values) -> list[Values]:
        return [v[i * n : (i + 1) * n] for i in range(rows)]

    options: dict[str, Any] = {"wide": 4, "dtypes": WIDE}
    yield Case(
        "rfft",
        lambda t, v: t.view_as_real(t.fft.rfft(v)),
        lambda v: parts(transform(line, m) for line in reals(v)),
        (real,),
        **options,
    )
    yield Case(
        "fft",
        lambda t, v: t.view_as_real(t.fft.fft(t.view_as_complex(v.contiguous()))),
        lambda v: parts(transform(line, n) for line in lines(v)),
        (pair,),
        **options,
    )
    yield Case(
        "ifft",
        lambda t, v: t.view_as_real(t.fft.ifft(t.view_as_complex(v.contiguous()))),
        lambda v: parts([c / n for c in transform(line, n, -1)] for line in lines(v)),
        (pair,),
        **options,
    )
    yield Case(
        "irfft of rfft",
        lambda t, v: t.fft.irfft(t.fft.rfft(v), n=n),
        list,
        (real,),
        **options,
    )
    yield Case(
        "fft2",
        lambda t, v: t.view_as_real(t.fft.fft2(v)),
        lambda v: parts(_fft2(v, rows, n)),
        (real,),
        **options,
    )


def _fft2(v: Values, rows: int, columns: int) -> list[list[complex]]:
    def turned(k: int, j: int, count: int) -> complex:
        return cmath.exp(-2j * math.pi * (j * k % count) / count)

    across = [
        [sum(v[r * columns + j] * turned(k, j, columns) for j in range(columns)) for k in range(columns)]
        for r in range(rows)
    ]
    return [[sum(across[i][k] * turned(r, i, rows) for i in range(rows)) for k in range(columns)] for r in range(rows)]


def solving(source: random.Random, size: int) -> Iterator[Case]:
    """Yield the solution of linear equations and determinants of well-conditioned matrices."""
    n = source.randint(1, 2 + 2 * size)
    # A dominant diagonal: condition numbers below 10.
    values = [
        source.uniform(-0.5, 0.5) / n + (source.choice((-1, 1)) * 2 if i % (n + 1) == 0 else 0) for i in range(n * n)
    ]
    a, b = Input(values, (n, n)), _small(source, n, 2)
    options: dict[str, Any] = {"wide": 8, "dtypes": WIDE}
    yield Case("solve", lambda t, x, y: t.linalg.solve(x, y), lambda x, y: _solved(x, y, n), (a, b), **options)
    identity = [float(i == j) for i in range(n) for j in range(n)]
    yield Case("inverse", lambda t, x: t.linalg.inv(x), lambda x: _solved(x, identity, n), (a,), **options)


def _solved(a: Values, b: Values, n: int) -> Values:
    """Return a^-1 b by elimination; the diagonal is dominant, so that no pivoting is needed."""
    width = len(b) // n
    rows = [a[i * n : (i + 1) * n] + b[i * width : (i + 1) * width] for i in range(n)]
    for i in range(n):
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for j in range(n):
            if j != i:
                rows[j] = [x - rows[j][i] * y for x, y in zip(rows[j], rows[i])]
    return [x for row in rows for x in row[n:]]


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (recurrent, transformers, fourier, solving)
