"""Integers that every dtype of a collective holds exactly, and what an operation makes of them, in plain Python."""

from __future__ import annotations

import array
import functools
import math
import operator
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

# The largest integer up to which all are exact: 2^(significand's bits) (IEEE 754-2019, table 3.5), or the type's own.
EXACT = {
    "float64": 1 << 53,
    "float32": 1 << 24,
    "float16": 1 << 11,
    "bfloat16": 1 << 8,
    "int32": (1 << 31) - 1,
    "int64": (1 << 63) - 1,
    "uint8": 255,
    "int8": 127,
}
FLOATS = ("float64", "float32", "float16", "bfloat16")
OPERATIONS = ("sum", "min", "max", "product", "average")
# gloo has them for whole numbers, NCCL does not (torch.distributed.ReduceOp).
BITWISE = ("band", "bor", "bxor")
# So many ranks at most have a factor other than 1 or -1 in one place, so that the product stays exact. So many have
# bits of their own in one place for "and" and "or": of more ranks nothing but zeros or ones would be left.
_FACTORS = 5


class Kind(NamedTuple):
    """What is done to integers of a dtype by a group of so many ranks; `operation` is "" where they are only moved."""

    operation: str
    dtype: str
    world: int


def bound(kind: Kind) -> int:
    """Return up to which size a rank's integers may be, so that every partial result is exact; 0 where none may."""
    most = EXACT[kind.dtype]
    if kind.operation == "sum":
        return most // kind.world
    if kind.operation == "average":
        return most // kind.world**2
    if kind.operation == "product":
        root = int(float(most) ** (1 / _FACTORS))
        return root if root**_FACTORS <= most else root - 1
    return most


def integers(seed: str, kind: Kind, rank: int, count: int) -> list[int]:
    """Return what `rank` gives: `count` integers from the seed, over the whole of what the dtype holds exactly.

    For an average they are multiples of the number of ranks, so that it is an integer too.
    """
    largest, signed = bound(kind), kind.dtype != "uint8"
    chance = random.Random(f"{seed}/{rank}")  # noqa: S311 (test data, no secret)
    raw = array.array("Q", chance.getrandbits(64 * count).to_bytes(8 * count, "little"))
    free = ((rank + place) % kind.world < _FACTORS for place in range(count))
    if kind.operation == "product":
        signs = (1, -1) if signed else (1, 1)
        return [(1 + (word >> 1) % largest if big else 1) * signs[word & 1] for word, big in zip(raw, free)]
    low, width = (-largest, 2 * largest + 1) if signed else (0, largest + 1)
    if kind.operation in ("band", "bor"):
        neutral = 0 if kind.operation == "bor" else -1 if signed else largest
        return [word % width + low if own else neutral for word, own in zip(raw, free)]
    step = kind.world if kind.operation == "average" else 1
    return [(word % width + low) * step for word in raw]


def reduced(kind: Kind, vectors: Sequence[Sequence[int]]) -> list[int]:
    """Return place by place what the operation makes of the ranks' integers."""
    combine: dict[str, Callable[[Sequence[int]], int]] = {
        "sum": sum,
        "min": min,
        "max": max,
        "product": math.prod,
        "average": lambda column: sum(column) // len(column),
        "band": lambda column: functools.reduce(operator.and_, column),
        "bor": lambda column: functools.reduce(operator.or_, column),
        "bxor": lambda column: functools.reduce(operator.xor, column),
    }
    return [combine[kind.operation](column) for column in zip(*vectors)]


def slack(kind: Kind) -> float:
    """Return by how much a result may differ: nothing, but for an average of floats by what is no power of two.

    NCCL multiplies each term by 1/n before it adds (ncclAvg, NCCL user guide), and both are rounded: at most n + 2
    roundings of the sum of sizes, each of half a unit in the last place.
    """
    if kind.operation != "average" or kind.dtype not in FLOATS or kind.world & (kind.world - 1) == 0:
        return 0.0
    return (kind.world + 2) * bound(kind) * kind.world / EXACT[kind.dtype]


# Elements compared at once: what is held besides the two tensors stays small.
PIECE = {"cuda": 1 << 26, "cpu": 1 << 20}
_WORDS = {8: "int64", 4: "int32", 2: "int16", 1: "int8"}


def differing(torch: Any, received: Any, expected: Any) -> Any:
    """Return how many elements of two tensors of one shape and dtype differ in any bit: an int64 on their device.

    Counted by exclusive or. The extremes of the integer differences are a second opinion: if they see a difference and
    the count does not, the result is 1, so that one broken torch function hides nothing. Nothing waits for the device.
    """
    words = getattr(torch, _WORDS[received.element_size()])
    left, right = received.view(words), expected.view(words)
    counted = left.bitwise_xor(right).ne(0).sum()
    least, most = torch.aminmax(left.sub(right))
    seen = least.lt(0).logical_or(most.gt(0)).to(torch.int64)
    return torch.maximum(counted, seen)


def compared(torch: Any, received: Any, expected: Any) -> Any:
    """Return `differing` of two flat contiguous tensors, taken in pieces."""
    size = PIECE[received.device.type]
    total = torch.zeros((), dtype=torch.int64, device=received.device)
    for start in range(0, received.numel(), size):
        total += differing(torch, received[start : start + size], expected[start : start + size])
    return total
