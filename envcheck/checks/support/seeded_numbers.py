"""Numbers in plain Python: made from a seed, handed to torch, and read back from memory without torch's help.

A reference that torch computes, and a comparison that torch makes, are as wrong as the torch under test. Here values
come from `random.Random`, are rounded to a dtype by the rules of IEEE 754, and results are read from their memory.
"""

from __future__ import annotations

import array
import ctypes
import itertools
import math
import os
import random
import struct
from collections.abc import Iterable, Sequence
from typing import Any

# IEEE 754-2019, table 3.5; bfloat16 keeps 8 bits of significand (Intel, BFLOAT16 Numerics Definition, 2018).
UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SEED = "ENVCHECK_SEED"
_CODES = {
    "float64": "d",
    "float32": "f",
    "float16": "e",
    "bfloat16": "H",
    "int64": "q",
    "int32": "i",
    "int16": "h",
    "int8": "b",
    "uint8": "B",
    "bool": "?",
    "complex64": "f",
    "complex128": "d",
}
# A gap between elements holds this; no kernel may use it.
_POISON = {"bool": True, "uint8": 77, "int8": 77, "int16": 77, "int32": 77, "int64": 77}
LAYOUTS = ("contiguous", "strided", "transposed")


class CorruptTransferError(Exception):
    """A tensor does not hold the values that it was made of."""


def requested_seed() -> int | None:
    """Return the seed that the variable ENVCHECK_SEED asks for; None where it holds no number."""
    text = os.environ.get(SEED, "")
    return int(text) if text.isdecimal() else None


def seed(rank: int = 0) -> int:
    """Return the seed of this run: the variable ENVCHECK_SEED, or a new one; the check reports it."""
    requested = requested_seed()
    return (int.from_bytes(os.urandom(4), "little") if requested is None else requested) + rank


def source(start: int) -> random.Random:
    """Return Python's generator, started from a seed."""
    return random.Random(start)  # noqa: S311 (test data, no secret)


def rounded(values: Iterable[float], dtype: str) -> list[float]:
    """Return each value rounded to the nearest of the dtype, ties to even."""
    if dtype == "float64":
        return [float(value) for value in values]
    if dtype != "bfloat16":
        packed = list(values)
        return list(
            struct.unpack(f"{len(packed)}{_CODES[dtype]}", struct.pack(f"{len(packed)}{_CODES[dtype]}", *packed))
        )
    bits = array.array("I", array.array("f", values).tobytes())
    short = [((word + 0x7FFF + (word >> 16 & 1)) & 0xFFFF0000) for word in bits]
    return array.array("f", array.array("I", short).tobytes()).tolist()


def uniform(source: random.Random, count: int, low: float = -2.0, high: float = 2.0) -> list[float]:
    """Return `count` numbers between `low` and `high`."""
    width = high - low
    return [low + width * source.random() for _ in range(count)]


def away_from_zero(source: random.Random, count: int, least: float = 0.1, most: float = 2.0) -> list[float]:
    """Return `count` numbers of either sign whose size is between `least` and `most`."""
    return [source.choice((-1, 1)) * source.uniform(least, most) for _ in range(count)]


def strides(shape: Sequence[int]) -> list[int]:
    """Return the strides of a contiguous tensor."""
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return steps[::-1]


def places(shape: Sequence[int], steps: Sequence[int], offset: int = 0) -> list[int]:
    """Return where each element lies, in the order of its index."""
    indices = [offset]
    for size, step in zip(shape, steps):
        indices = [start + number * step for start in indices for number in range(size)]
    return indices


def tensor(
    torch: Any, values: Sequence[Any], shape: Sequence[int], dtype: str, device: Any = "cpu", layout: str = "contiguous"
) -> Any:
    """Return a tensor of these values with that layout in memory, having read them back.

    "strided" leaves gaps and starts at an offset; "transposed" swaps the last two dimensions in memory.
    """
    steps, offset = strides(shape), 0
    if layout == "strided":
        steps, offset = [2 * step for step in steps], 3
    elif layout == "transposed" and len(shape) > 1:
        steps = strides([*shape[:-2], shape[-1], shape[-2]])
        steps[-2:] = steps[-1], steps[-2]
    where = places(shape, steps, offset)
    storage = [_POISON.get(dtype, math.nan)] * (max(where, default=offset) + 1)
    for place, value in zip(where, values):
        storage[place] = value
    made = torch.tensor(storage, dtype=getattr(torch, dtype)).to(device).as_strided(tuple(shape), tuple(steps), offset)
    back = read(made)
    if len(back) != len(values) or not all(map(same, back, values)):
        message = f"a {dtype} tensor ({layout}) on {device} does not hold the values that it was made of"
        raise CorruptTransferError(message)
    return made


def same(one: Any, other: Any) -> bool:
    """Return whether two numbers are equal, or both NaN."""
    return bool(one == other or (one != one and other != other))  # noqa: PLR0124 (NaN)


def read(made: Any) -> list[Any]:
    """Return a tensor's elements in the order of their index, read from its memory and not by torch."""
    host = made.detach().cpu()
    name = str(host.dtype).rpartition(".")[2]
    shape, steps = tuple(host.shape), host.stride()
    if 0 in shape:
        return []
    span = sum((size - 1) * step for size, step in zip(shape, steps)) + 1
    flat = _decoded(host.data_ptr(), span, name)
    if list(steps) == strides(shape):
        return flat
    return [flat[place] for place in places(shape, steps)]


def _decoded(address: int, count: int, dtype: str) -> list[Any]:
    parts = 2 if dtype.startswith("complex") else 1
    form = f"{count * parts}{_CODES[dtype]}"
    numbers = struct.unpack(form, ctypes.string_at(address, struct.calcsize(form)))
    if dtype == "bfloat16":
        return array.array("f", array.array("I", [word << 16 for word in numbers]).tobytes()).tolist()
    return [complex(*pair) for pair in zip(numbers[::2], numbers[1::2])] if parts > 1 else list(numbers)


def along(values: Sequence[Any], shape: Sequence[int], dim: int, each: Any) -> list[Any]:
    """Return `each(line)` for every line along `dim`, put together in the order of the result's index."""
    size, inner = shape[dim], math.prod(shape[dim + 1 :])
    result: list[Any] = []
    for start in range(0, len(values), size * inner or 1):
        lines = [each(values[start + place : start + size * inner : inner]) for place in range(inner)]
        result += itertools.chain.from_iterable(zip(*lines))
    return result


def apart(made: Sequence[float], expected: Sequence[float]) -> float:
    """Return the relative Frobenius distance; infinite where one of them is not a number or the counts differ."""
    if len(made) != len(expected) or not expected:
        return math.inf
    size = math.sqrt(math.fsum(value * value for value in expected))
    distance = math.sqrt(math.fsum((one - other) ** 2 for one, other in zip(made, expected)))
    return distance / size if size and math.isfinite(distance) else math.inf


def off(
    made: Sequence[float], expected: Sequence[float], tolerance: float, least: float = 0.0, spread: Sequence[float] = ()
) -> float:
    """Return the largest |made - expected| / (tolerance * max(|expected|, rms, least) + spread).

    It is infinite for no number. The rms is that of the expected numbers; `spread` has one number for each, or none.
    """
    if len(made) != len(expected):
        return math.inf
    if not expected:
        return 0.0
    rms = math.sqrt(math.fsum(v * v for v in expected if math.isfinite(v)) / len(expected))
    typical = max(rms, least)
    worst = 0.0
    for one, other, around in zip(made, expected, spread or [0.0] * len(expected)):
        if same(one, other):
            continue
        error = abs(one - other) / (tolerance * max(abs(other), typical) + around or math.ulp(0.0))
        worst = max(worst, error) if error == error else math.inf  # noqa: PLR0124 (NaN)
    return worst
