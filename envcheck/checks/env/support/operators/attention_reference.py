"""Attention in plain Python: softmax(scale Q K^T + mask) V and its three gradients, for the options that users set."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from operator import mul
from typing import Any, NamedTuple

from envcheck.checks.env.support.operators import seeded_numbers

Matrix = list[list[float]]
PARTS = ("output", "gradient of Q", "gradient of K", "gradient of V", "gradient of the mask")


class AttentionSetting(NamedTuple):
    """Shapes and options of one call; `since` is the first torch that has the option.

    `mask` is "bool", "add", or "learned" (added, with a gradient); `over` says what it has a row for: each pair of a
    query and a key ("pairs"), each key of a batch ("keys"), each head's pairs ("heads"). `values` is the width of V
    where it is another one. `shift` is added to every score, which softmax does not notice. `rare` forms are asked only
    of the kernels that have to run everywhere; with `forward`, there is no gradient. `blind` is a query that sees no
    key: its output is zero since torch 2.5 (pytorch/pytorch#133882); on GPUs this has not been seen, and is not asked.
    An error counts as one `wide`-th of itself.
    """

    name: str
    heads: int
    tokens: int
    keys: int
    width: int
    batch: int = 1
    causal: bool = False
    mask: str = ""
    over: str = "pairs"
    scale: float = 0.0
    key_heads: int = 0
    values: int = 0
    shift: float = 0.0
    layout: str = "contiguous"
    dims: int = 4
    forward: bool = False
    rare: bool = False
    blind: bool = False
    wide: float = 1.0
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")
    since: tuple[int, int] = (2, 0)

    def shape(self, heads: int, tokens: int, width: int) -> tuple[int, ...]:
        """Return the shape of Q, K, V or the output in as many dimensions as the setting has."""
        whole = (1, self.batch, heads, tokens, width)
        return whole[5 - self.dims :] if self.dims != 3 else (self.batch * heads, tokens, width)  # noqa: PLR2004

    @property
    def mask_shape(self) -> tuple[int, ...]:
        """The shape of the mask."""
        shapes = {
            "pairs": (self.tokens, self.keys),
            "keys": (self.batch, 1, 1, self.keys),
            "heads": (self.batch, self.heads, self.tokens, self.keys),
        }
        return shapes[self.over]


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
        *_rare(source, odd),
    ]


def _rare(source: random.Random, odd: Callable[[int, int], int]) -> list[AttentionSetting]:
    """Return forms and combinations that models use, and a kernel may get wrong alone."""

    def rare(name: str, heads: int, tokens: int, keys: int, width: int = 16, **more: Any) -> AttentionSetting:
        return AttentionSetting(name, heads, tokens, keys, width, rare=True, **more)

    scale = source.uniform(0.1, 0.4)
    few = odd(2, 5)
    return [
        rare("mask of padded keys", 2, odd(3, 6), odd(4, 8), batch=2, mask="bool", over="keys"),
        rare("mask of each head", 2, odd(3, 6), odd(4, 8), batch=2, mask="bool", over="heads"),
        rare("additive mask of each head", 2, odd(3, 6), odd(4, 8), batch=2, mask="add", over="heads"),
        rare("learned mask", 2, odd(3, 6), odd(4, 8), mask="learned", over="heads"),
        rare("scaled, with a mask", 2, odd(3, 6), odd(4, 8), mask="add", scale=scale, since=(2, 1)),
        rare("causal, fewer queries than keys", 2, few, few + odd(1, 4), causal=True, since=(2, 1)),
        rare("causal, more queries than keys", 2, few + odd(1, 4), few, causal=True, since=(2, 1)),
        rare("causal, scaled, one key head", 4, few, few, causal=True, scale=scale, key_heads=1, since=(2, 5)),
        rare("grouped queries with a mask", 4, odd(3, 6), odd(4, 8), mask="bool", key_heads=2, since=(2, 5)),
        rare("key heads expanded", 3, odd(3, 6), odd(4, 8), key_heads=1, layout="expanded"),
        rare("three dimensions", 3, odd(3, 6), odd(4, 8), dims=3),
        rare("five dimensions", 2, odd(3, 6), odd(4, 8), batch=2, dims=5),
        rare("eight heads", 8, odd(2, 4), odd(2, 4), 8, batch=3),
        rare("without gradients", 2, odd(3, 6), odd(4, 8), forward=True),
        rare("heads of 64", 1, odd(3, 6), odd(4, 8), 64),
        rare("heads of 128", 1, odd(3, 6), odd(4, 8), 128),
        rare("heads of 192", 1, odd(2, 4), odd(2, 4), 192),
        rare("heads of an odd width", 2, odd(3, 6), odd(4, 8), odd(4, 9)),
        rare("values of another width", 2, odd(3, 6), odd(4, 8), values=24),
        rare("many keys", 1, odd(2, 3), 512 + odd(1, 60), 8, mask="bool"),
        rare("many queries", 1, 192 + odd(1, 30), odd(2, 4), 8),
        rare("high scores", 2, odd(3, 6), odd(4, 8), shift=source.uniform(100, 120), dtypes=("float32",), wide=8),
        rare("a query that sees nothing", 2, odd(3, 6), odd(4, 8), mask="bool", blind=True, since=(2, 5)),
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
    shared, wide = s.key_heads or s.heads, s.values or s.width
    ours, theirs = s.batch * s.heads * s.tokens, s.batch * shared * s.keys
    sizes = (ours * s.width, theirs * s.width, theirs * wide, ours * wide)
    query, key, value, upstream = ([source.randint(-127, 127) / 64 for _ in range(n)] for n in sizes)
    if s.shift:
        # Every query is 16 there, and every key the same: all scores rise by about as much.
        lift = round(4 * s.shift * math.sqrt(s.width) / 16) / 4
        query[:: s.width], key[:: s.width] = [16.0] * ours, [lift] * theirs
    mask = _mask(s, source)
    parts: list[list[float]] = [[], [0.0] * len(key), [0.0] * len(value)]
    slope = [0.0] * len(mask) if s.mask == "learned" else []
    output: list[float] = []
    for number in range(s.batch * s.heads):
        other = number // s.heads * shared + number % s.heads * shared // s.heads
        rows = [_rows(x, at, n, s.width) for x, at, n in ((query, number, s.tokens), (key, other, s.keys))]
        tail = [_rows(x, at, n, wide) for x, at, n in ((value, other, s.keys), (upstream, number, s.tokens))]
        made, dq, dk, dv, slopes = _head(s, rows[0], rows[1], tail[0], tail[1], _added(s, mask, number))
        output += [x for row in made for x in row]
        parts[0] += [x for row in dq for x in row]
        for total, more, width in ((parts[1], dk, s.width), (parts[2], dv, wide)):
            start = other * s.keys * width
            for place, x in enumerate(x for row in more for x in row):
                total[start + place] += x
        if slope:
            start = number * s.tokens * s.keys if s.over == "heads" else 0
            for place, x in enumerate(x for row in slopes for x in row):
                slope[start + place] += x
    return AttentionExample(s, query, key, value, upstream, mask, (output, *parts, *([slope] if slope else [])))


def _mask(s: AttentionSetting, source: random.Random) -> list[Any]:
    """Return the mask's elements; each query but a blind one sees at least one key."""
    if not s.mask:
        return []
    count = math.prod(s.mask_shape)
    if s.mask == "bool":
        blind = source.randrange(s.tokens) if s.blind else -1
        places = [divmod(i, s.keys) for i in range(count)]
        return [row != blind and (row % s.keys == key or source.random() < 0.6) for row, key in places]  # noqa: PLR2004
    added = [source.randint(-64, 64) / 32 for _ in range(count)]
    if s.over == "heads" and s.mask == "add":
        hidden = (i // s.keys % s.keys != i % s.keys and source.random() < 0.3 for i in range(count))  # noqa: PLR2004
        return [-math.inf if one else x for one, x in zip(hidden, added)]
    return added


def _added(s: AttentionSetting, mask: list[Any], number: int) -> Matrix:
    """Return what one head's scores are raised by: minus infinity for a pair that is left out."""
    scores = [[0.0] * s.keys for _ in range(s.tokens)]
    start = {"pairs": 0, "keys": number // s.heads * s.keys, "heads": number * s.tokens * s.keys}[s.over]
    for i, row in enumerate(scores):
        begin = start + (0 if s.over == "keys" else i * s.keys)
        for j in range(s.keys):
            if s.causal and j > i:
                row[j] = -math.inf
            elif mask:
                value = mask[begin + j]
                row[j] = value if s.mask != "bool" else 0.0 if value else -math.inf
    return scores


def _rows(values: Sequence[float], number: int, count: int, width: int) -> Matrix:
    start = number * count * width
    return [list(values[start + i * width : start + (i + 1) * width]) for i in range(count)]


def _times(left: Matrix, right: Matrix) -> Matrix:
    columns = list(zip(*right))
    return [[sum(map(mul, row, column)) for column in columns] for row in left]


def _turned(matrix: Matrix) -> Matrix:
    return [list(column) for column in zip(*matrix)]


def _head(  # what one head is made of
    s: AttentionSetting, q: Matrix, k: Matrix, v: Matrix, up: Matrix, added: Matrix
) -> tuple[Matrix, Matrix, Matrix, Matrix, Matrix]:
    """Return output, dQ, dK, dV and the scores' gradient of one head (Dao et al. 2022, arXiv 2205.14135, B.2)."""
    scale = s.scale or 1 / math.sqrt(s.width)
    scores = [[scale * x + more for x, more in zip(row, line)] for row, line in zip(_times(q, _turned(k)), added)]
    weights = [_softmax(row) for row in scores]
    back = _times(up, _turned(v))
    plain = []
    for p, d in zip(weights, back):
        mean = sum(map(mul, p, d))
        plain.append([a * (b - mean) for a, b in zip(p, d)])
    slopes = [[scale * x for x in row] for row in plain]
    return (
        _times(weights, v),
        _times(slopes, k),
        _times(_turned(slopes), q),
        _times(_turned(weights), up),
        plain,
    )


def _softmax(row: Sequence[float]) -> list[float]:
    top = max(row)
    if top == -math.inf:
        return [0.0] * len(row)
    powers = [math.exp(x - top) for x in row]
    total = math.fsum(powers)
    return [p / total for p in powers]


def run(torch: Any, case: AttentionExample, dtype: str, device: Any) -> dict[str, float]:
    """Return how far output and gradients are from the reference, as relative Frobenius distances."""
    s = case.setting
    shared, wide = s.key_heads or s.heads, s.values or s.width
    shapes = (s.shape(s.heads, s.tokens, s.width), s.shape(shared, s.keys, s.width), s.shape(shared, s.keys, wide))
    layout = "contiguous" if s.layout == "expanded" else s.layout
    leaves = [
        torch.nn.Parameter(seeded_numbers.tensor(torch, x, shape, dtype, device, layout), requires_grad=not s.forward)
        for x, shape in zip((case.query, case.key, case.value), shapes)
    ]
    options: dict[str, Any] = {"is_causal": s.causal}
    if s.mask:
        kind = "bool" if s.mask == "bool" else dtype
        options["attn_mask"] = seeded_numbers.tensor(torch, case.mask, s.mask_shape, kind, device)
    if s.mask == "learned":
        options["attn_mask"] = torch.nn.Parameter(options["attn_mask"])
    if s.scale:
        options["scale"] = s.scale
    if s.key_heads and s.layout != "expanded":
        options["enable_gqa"] = True
    inputs = list(leaves)
    if s.layout == "expanded":
        inputs[1:] = [x.expand(s.shape(s.heads, s.keys, x.shape[-1])) for x in leaves[1:]]
    with torch.no_grad() if s.forward else torch.enable_grad():
        output = torch.nn.functional.scaled_dot_product_attention(*inputs, **options)
    if s.forward:
        made = [output]
    else:
        output.backward(seeded_numbers.tensor(torch, case.upstream, s.shape(s.heads, s.tokens, wide), dtype, device))
        made = [output, *(leaf.grad for leaf in leaves)]
        made += [options["attn_mask"].grad] if s.mask == "learned" else []
    if tuple(output.shape) != s.shape(s.heads, s.tokens, wide):
        return {"shape of the output": 1e300}
    return {
        part: 1e300 if x is None else min(seeded_numbers.apart(seeded_numbers.read(x), right) / s.wide, 1e300)
        for part, x, right in zip(PARTS, made, case.expected)
    }
