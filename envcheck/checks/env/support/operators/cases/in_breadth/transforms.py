"""Fourier transforms with the options that are rarely set: norms, chosen dimensions, cut and padded lines, windows."""

from __future__ import annotations

import cmath
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.cases.dense_layers import given
from envcheck.checks.env.support.operators.operator_trial import SINGLE, WIDE, Case, Input

Values = list[float]
Line = Sequence[complex]
# The names of norms, and what a forward transform of n numbers is divided by.
NORMS: dict[str, Callable[[int], float]] = {"backward": lambda _: 1.0, "ortho": math.sqrt, "forward": float}


def _line(values: Line, sign: int) -> list[complex]:
    """Return the sums over j of values[j] exp(sign 2 pi i j k / n)."""
    n = len(values)
    turns = [cmath.exp(sign * 2j * math.pi * k / n) for k in range(n)]
    return [sum((v * turns[j * k % n] for j, v in enumerate(values)), 0j) for k in range(n)]


def _several(values: Line, shape: Sequence[int], dims: Sequence[int], sign: int) -> list[complex]:
    made = list(values)
    for dim in dims:
        made = seeded_numbers.along(made, shape, dim, lambda line: _line(line, sign))
    return made


def _parts(numbers: Line) -> Values:
    return [part for c in numbers for part in (c.real, c.imag)]


def _numbers(values: Values) -> list[complex]:
    return [complex(*pair) for pair in zip(values[::2], values[1::2])]


def _complex(t: Any, v: Any) -> Any:
    return t.complex(v[..., 0], v[..., 1])


def dimensions(source: random.Random, _: int) -> Iterator[Case]:
    """Yield transforms along chosen dimensions with a norm, and what brings the numbers back."""
    shape = tuple(source.randint(2, 4) for _number in range(3))
    dims = source.choice(((0, 1), (0, 2), (1, 2), (0, 1, 2), (2, 0)))
    norm = source.choice(list(NORMS))
    whole = math.prod(shape[dim] for dim in dims)
    by, back = NORMS[norm](whole), whole / NORMS[norm](whole)
    real, pairs = given(source, *shape), given(source, *shape, 2)
    wide: dict[str, Any] = {"wide": 8, "dtypes": WIDE}

    def call(t: Any, v: Any, name: str) -> Any:
        return t.view_as_real(getattr(t.fft, name)(_complex(t, v), dim=dims, norm=norm))

    for name, sign, divisor in (("fftn", -1, by), ("ifftn", 1, back)):

        def reference(v: Values, sign: int = sign, divisor: float = divisor) -> Values:
            return _parts([c / divisor for c in _several(_numbers(v), shape, dims, sign)])

        yield Case(
            f"{name} of chosen dimensions, {norm}", lambda t, v, name=name: call(t, v, name), reference, (pairs,),
            **wide, least=math.sqrt(whole) / divisor,
        )  # fmt: skip

    def half(v: Values, sign: int, divisor: float) -> Values:
        made, last = _several([complex(x) for x in v], shape, dims, sign), dims[-1]
        made = seeded_numbers.along(made, shape, last, lambda line: line[: len(line) // 2 + 1])
        return _parts([c / divisor for c in made])

    sizes = tuple(shape[dim] for dim in dims)
    for name, inverse, sign, divisor, since in (
        ("rfftn", "irfftn", -1, by, (1, 8)),
        ("ihfftn", "hfftn", 1, back, (1, 11)),
    ):

        def there(t: Any, v: Any, name: str = name) -> Any:
            return t.view_as_real(getattr(t.fft, name)(v, dim=dims, norm=norm).resolve_conj())

        def there_and_back(t: Any, v: Any, name: str = name, inverse: str = inverse) -> Any:
            return getattr(t.fft, inverse)(getattr(t.fft, name)(v, dim=dims, norm=norm), s=sizes, dim=dims, norm=norm)

        yield Case(
            f"{name} of chosen dimensions, {norm}", there,
            lambda v, sign=sign, divisor=divisor: half(v, sign, divisor), (real,), **wide, since=since,
            least=math.sqrt(whole) / divisor,
        )  # fmt: skip
        yield Case(
            f"{inverse} of {name}, {norm}", there_and_back, list, (real,), wide=8, dtypes=WIDE, since=since, least=1.0
        )


def lines(source: random.Random, _: int) -> Iterator[Case]:
    """Yield Hermitian lines with a norm, lines that are cut or padded, along the first dimension, long, of integers."""
    n, rows, norm = source.randint(3, 9), source.randint(1, 3), source.choice(list(NORMS))
    back = n / NORMS[norm](n)
    wide: dict[str, Any] = {"wide": 8, "dtypes": WIDE, "least": 1.0}
    real, count = given(source, rows, n), n // 2 + 1

    def halves(v: Values) -> list[Line]:
        return [_line([complex(x) for x in v[i : i + n]], 1)[:count] for i in range(0, len(v), n)]

    yield Case(
        f"ihfft {norm}", lambda t, v: t.view_as_real(t.fft.ihfft(v, norm=norm).resolve_conj()),
        lambda v: _parts([c / back for line in halves(v) for c in line]), (real,), **wide,
    )  # fmt: skip
    pairs = given(source, rows, count, 2)
    for name, sign, divisor in (("irfft", 1, back), ("hfft", -1, NORMS[norm](n))):
        # The ends of such a line are real; their imaginary parts are nobody's.
        inner = [0.0 if k in {0, n - k} else 1.0 for k in range(count)]

        def hermitian(t: Any, v: Any, name: str = name, inner: Any = inner) -> Any:
            flat = v[..., 1] * t.tensor(inner, dtype=v.dtype, device=v.device)
            return getattr(t.fft, name)(t.complex(v[..., 0], flat), n=n, norm=norm)

        def summed(v: Values, sign: int = sign, divisor: float = divisor, inner: Any = inner) -> Values:
            values = []
            for i in range(0, len(v), 2 * count):
                line = [complex(c.real, c.imag * x) for c, x in zip(_numbers(v[i : i + 2 * count]), inner)]
                whole = [line[k] if k < count else line[n - k].conjugate() for k in range(n)]
                values += [c.real / divisor for c in _line(whole, sign)]
            return values

        yield Case(f"{name} {norm}", hermitian, summed, (pairs,), **wide)
    target = source.choice([size for size in range(2, 12) if size != n])
    turned = given(source, n, rows)

    def other(v: Values) -> Values:
        def each(line: Line) -> list[complex]:
            return _line([*line, *[0j] * target][:target], -1)

        return _parts(seeded_numbers.along([complex(x) for x in v], (n, rows), 0, each))

    yield Case(
        "fft of cut or padded columns", lambda t, v: t.view_as_real(t.fft.fft(v, n=target, dim=0)), other, (turned,),
        wide=8, dtypes=WIDE, least=math.sqrt(n),
    )  # fmt: skip
    prime = source.choice((101, 127, 128, 149))
    yield Case(
        "fft of a long line", lambda t, v: t.view_as_real(t.fft.fft(v)),
        lambda v: _parts(_line([complex(x) for x in v], -1)), (given(source, prime),),
        wide=8, dtypes=WIDE, gradient=False, least=math.sqrt(prime),
    )  # fmt: skip
    whole = Input([source.randint(-9, 9) for _number in range(n)], (n,), "int64")
    yield Case(
        "rfft of whole numbers", lambda t, v: t.view_as_real(t.fft.rfft(v)),
        lambda v: _parts(_line([complex(x) for x in v], -1)[:count]), (whole,),
        wide=8, dtypes=SINGLE, gradient=False, least=9 * math.sqrt(n),
    )  # fmt: skip


def shifts(source: random.Random, _: int) -> Iterator[Case]:
    """Yield shifts of the origin along one dimension, frequencies of real lines, and windows."""
    n, m = source.randint(2, 6), source.randint(2, 6)
    x, step = given(source, n, m), source.uniform(0.2, 2)
    for name, by in (("fftshift", lambda size: size // 2), ("ifftshift", lambda size: -(size // 2))):

        def shifted(v: Values, by: Any = by) -> Values:
            return [v[(r - by(n)) % n * m + c] for r, c in itertools.product(range(n), range(m))]

        yield Case(
            f"{name} of columns", lambda t, v, name=name: getattr(t.fft, name)(v, dim=0), shifted, (x,), wide=4,
            dtypes=WIDE,
        )  # fmt: skip
    plain: dict[str, Any] = {"gradient": False, "wide": 8, "dtypes": WIDE, "least": 1.0}
    yield Case(
        "rfftfreq", lambda t, v: t.fft.rfftfreq(v.shape[1], step, dtype=v.dtype, device=v.device),
        lambda _: [k / (m * step) for k in range(m // 2 + 1)], (x,), **plain,
    )  # fmt: skip
    count = source.randint(3, 12)
    angles = [2 * math.pi * k / (count - 1) for k in range(count)]

    def windows(t: Any, v: Any) -> Any:
        names = ("hann", "hamming", "blackman")
        options = {"periodic": False, "dtype": v.dtype, "device": v.device}
        return tuple(getattr(t, f"{name}_window")(count, **options) for name in names)

    yield Case(
        "symmetric windows",
        windows,
        lambda _: (
            [0.5 - 0.5 * math.cos(a) for a in angles],
            [0.54 - 0.46 * math.cos(a) for a in angles],
            [0.42 - 0.5 * math.cos(a) + 0.08 * math.cos(2 * a) for a in angles],
        ),
        (x,),
        **plain,
    )


def in_time(source: random.Random, _: int) -> Iterator[Case]:
    """Yield transforms of windows in time with their options, and their inverses."""
    size, mode = source.choice((4, 6, 8)), source.choice(("constant", "reflect", "replicate"))
    whole, scaled, plain = (source.random() < 0.5 for _number in range(3))  # noqa: PLR2004 (half)
    hop, length = source.randint(1, size // 2), size + source.randint(1, 8)
    short = size - source.randint(0, 2)
    x = given(source, 1, length)
    weights = [1.0] * short if plain else [source.randint(4, 12) / 8 for _number in range(short)]
    window = Input(weights, (short,), "float64")
    left, half = (size - short) // 2, size // 2
    full = [*[0.0] * left, *weights, *[0.0] * (size - short - left)]
    places: dict[str, Callable[[int], int]] = {
        "reflect": lambda i: abs(i) if i < length else 2 * (length - 1) - i,
        "replicate": lambda i: min(max(i, 0), length - 1),
        "constant": lambda i: i if 0 <= i < length else -1,
    }

    def options(w: Any, dtype: Any) -> dict[str, Any]:
        given_window = None if plain and short == size else w.to(dtype)
        return {
            "hop_length": hop, "win_length": short, "window": given_window, "normalized": scaled, "onesided": not whole,
        }  # fmt: skip

    def call(t: Any, v: Any, w: Any) -> Any:
        made = t.stft(v, size, **options(w, v.dtype), center=True, pad_mode=mode, return_complex=True)
        return t.view_as_real(made)

    def stft(v: Values, _: Values) -> Values:
        at = [places[mode](i) for i in range(-half, length + half)]
        padded = [v[i] if i >= 0 else 0.0 for i in at]
        spectra = [
            _line([complex(a * b) for a, b in zip(padded[start : start + size], full)], -1)
            for start in range(0, len(padded) - size + 1, hop)
        ]
        share = 1 / math.sqrt(size) if scaled else 1.0
        return _parts([line[k] * share for k in range(size if whole else half + 1) for line in spectra])

    yield Case("stft with options", call, stft, (x, window), wide=8, dtypes=WIDE, least=1.0)
    # Only whole numbers of hops are brought back.
    steps = length // hop * hop

    def back(t: Any, v: Any, w: Any) -> Any:
        v = v[:, :steps]
        made = t.stft(v, size, **options(w, v.dtype), center=True, return_complex=True)
        return t.istft(made, size, **options(w, v.dtype), center=True)

    if steps > half:
        yield Case(
            "istft of stft, with options", back, lambda v, _: v[:steps], (x, window), wide=32, dtypes=WIDE, least=2.0
        )


EVERY: tuple[Callable[[random.Random, int], Iterator[Case]], ...] = (dimensions, lines, shifts, in_time)
