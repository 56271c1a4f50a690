"""Fourier transforms in several dimensions and of windows in time, and their inverses."""

from __future__ import annotations

import cmath
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from envcheck.checks.env.support.operators.cases.dense_layers import given
from envcheck.checks.env.support.operators.operator_trial import WIDE, Case, Input

Values = list[float]


def _parts(numbers: Sequence[complex]) -> Values:
    return [part for c in numbers for part in (c.real, c.imag)]


def _numbers(values: Values) -> list[complex]:
    return [complex(*pair) for pair in zip(values[::2], values[1::2])]


def _transform(values: Sequence[complex], sign: int) -> list[complex]:
    """Return the sums over j of values[j] exp(sign 2 pi i j k / n)."""
    n = len(values)
    turns = [cmath.exp(sign * 2j * math.pi * k / n) for k in range(n)]
    return [sum((v * turns[j * k % n] for j, v in enumerate(values)), 0j) for k in range(n)]


def _transform2(values: Sequence[complex], width: int, sign: int) -> list[complex]:
    lines = [_transform(values[i : i + width], sign) for i in range(0, len(values), width)]
    columns = [_transform(column, sign) for column in zip(*lines)]
    return [c for row in zip(*columns) for c in row]


def transforms(source: random.Random, _: int) -> Iterator[Case]:
    """Yield transforms in two dimensions, of complex lines, and shifts of the origin."""
    n, m = source.randint(2, 5), source.randint(2, 6)
    real, pairs = given(source, n, m), given(source, n, m, 2)
    half = m // 2 + 1
    plain: dict[str, Any] = {"wide": 8, "dtypes": WIDE, "least": math.sqrt(n * m)}

    def rfft2(v: Values) -> Values:
        whole = _transform2([complex(a) for a in v], m, -1)
        return _parts([whole[r * m + c] for r in range(n) for c in range(half)])

    yield Case("rfft2", lambda t, v: t.view_as_real(t.fft.rfft2(v)), rfft2, (real,), **plain)
    yield Case(
        "irfft2 of rfft2", lambda t, v: t.fft.irfft2(t.fft.rfft2(v), s=(n, m)), list, (real,), wide=8, dtypes=WIDE,
        least=1.0,
    )  # fmt: skip
    for name, sign, scale in (("fftn", -1, 1.0), ("ifftn", 1, 1 / (n * m)), ("ifft2", 1, 1 / (n * m))):

        def call(t: Any, v: Any, name: str = name) -> Any:
            return t.view_as_real(getattr(t.fft, name)(t.complex(v[..., 0], v[..., 1])))

        def reference(v: Values, sign: int = sign, scale: float = scale) -> Values:
            return _parts([c * scale for c in _transform2(_numbers(v), m, sign)])

        yield Case(f"{name} of complex numbers", call, reference, (pairs,), **{**plain, "least": 1.0})

    def shifted(v: Values) -> Values:
        grid = itertools.product(range(n), range(m))
        return [v[(r - n // 2) % n * m + (c - m // 2) % m] for r, c in grid]

    yield Case("fftshift", lambda t, v: t.fft.fftshift(v), shifted, (real,), wide=4, dtypes=WIDE)
    yield Case(
        "ifftshift of fftshift", lambda t, v: t.fft.ifftshift(t.fft.fftshift(v)), list, (real,), wide=4, dtypes=WIDE
    )
    step = source.uniform(0.2, 2)

    def frequencies(v: Values) -> Values:
        size = len(v)
        return [(k if 2 * k < size else k - size) / (size * step) for k in range(size)]

    yield Case(
        "fftfreq",
        lambda t, v: t.fft.fftfreq(v.numel(), step, dtype=v.dtype, device=v.device),
        frequencies,
        (given(source, m),),
        gradient=False,
        wide=4,
        dtypes=WIDE,
    )


def windows(source: random.Random, _: int) -> Iterator[Case]:
    """Yield the transform of windows in time, its inverse, and the windows themselves."""
    size = source.choice((4, 6, 8))
    hop, frames = size // 2, source.randint(2, 4)
    length = size + hop * (frames - 1)
    centred = source.random() < 0.5  # noqa: PLR2004 (half)
    x = given(source, 1, length)
    # Its squares add up to at least 0.25 wherever windows lie: the inverse divides by that.
    window = Input([source.uniform(0.5, 1.5) for _number in range(size)], (size,))

    def stft(v: Values, w: Values) -> Values:
        half = size // 2
        padded = [*v[half:0:-1], *v, *v[-2 : -half - 2 : -1]] if centred else v
        starts = range(0, len(padded) - size + 1, hop)
        lines = [_transform([complex(a * b) for a, b in zip(padded[s : s + size], w)], -1) for s in starts]
        return _parts([line[k] for k in range(half + 1) for line in lines])

    def call(t: Any, v: Any, w: Any) -> Any:
        made = t.stft(v, size, hop_length=hop, window=w, center=centred, return_complex=True)
        return t.view_as_real(made)

    yield Case("stft", call, stft, (x, window), wide=8, dtypes=WIDE, least=math.sqrt(size))

    def back(t: Any, v: Any, w: Any) -> Any:
        w = w.detach()
        made = t.stft(v, size, hop_length=hop, window=w, center=True, return_complex=True)
        return t.istft(made, size, hop_length=hop, window=w, center=True, length=length)

    fixed = window._replace(values=[round(8 * v) / 8 for v in window.values], dtype="float64")
    yield Case(
        "istft of stft",
        lambda t, v, w: back(t, v, w.to(v.dtype)),
        lambda v, _: list(v),
        (x, fixed),
        wide=16,
        dtypes=WIDE,
        least=1.0,
    )
    count = source.randint(3, 12)

    def cosine(first: float) -> Values:
        return [first - (1 - first) * math.cos(2 * math.pi * k / count) for k in range(count)]

    def made(t: Any, v: Any) -> Any:
        return tuple(
            getattr(t, f"{name}_window")(count, dtype=v.dtype, device=v.device)
            for name in ("hann", "hamming", "bartlett")
        )

    yield Case(
        "hann, hamming, bartlett windows",
        made,
        lambda _: (cosine(0.5), cosine(0.54), [1 - abs(2 * k / count - 1) for k in range(count)]),
        (x,),
        gradient=False,
        wide=4,
        dtypes=WIDE,
        least=1.0,
    )


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (transforms, windows)
