"""Data that plain Python makes from a seed, hands to torch, and finds again in memory without torch's help.

A reference that torch computes, and a comparison that torch makes, are as wrong as the torch under test. One block is
drawn, and each later block of a tensor is the same one under another mask, so that no two are equal.

Of a product of 8192^3 plain Python computes a corner, and sums of 64 elements each are compared with sums in float64
that no matrix product takes part in (Freivalds, "Probabilistic machines can use less running time", 1977). Every
repetition has to have the bits of that reference (NVIDIA cuBLAS documentation, Results reproducibility).
"""

from __future__ import annotations

import array
import ctypes
import math
import os
import random
import struct
from collections.abc import Callable, Sequence
from operator import mul
from typing import Any

# IEEE 754-2019, table 3.5; bfloat16 keeps 8 bits of significand (Intel, BFLOAT16 Numerics Definition, 2018).
UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SEED = "ENVCHECK_SEED"
_CODES = {"float64": "d", "float32": "f", "float16": "e", "bfloat16": "H", "int64": "q"}
# Words of a block: no multiple of anything, so that blocks lie across pages, rows and messages.
BLOCK = (1 << 20) + 7
# So many blocks are read back: the first, the last, and others from the seed.
LOOKED = 8
# Blocks of 4 MiB that are not computed again.
_KEPT = 16
# Words of a piece in which a difference is looked for.
_COMPARED = 4096
# 2^32 over the golden ratio: the masks of a tensor's blocks are far apart (Knuth, TAOCP 3, 6.4).
_STEP = 0x9E3779B1
_ALL = 0xFFFFFFFF


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


def content(made: Any) -> bytes:
    """Return the bytes of a tensor, read from its memory and not by torch."""
    host = made.detach().cpu().contiguous()
    return ctypes.string_at(host.data_ptr(), host.numel() * host.element_size())


def read(made: Any) -> list[Any]:
    """Return a tensor's elements in the order of their index, read from its memory and not by torch."""
    name = str(made.dtype).rpartition(".")[2]
    numbers = struct.unpack(f"{made.numel()}{_CODES[name]}", content(made))
    if name == "bfloat16":
        return array.array("f", array.array("I", [word << 16 for word in numbers]).tobytes()).tolist()
    return list(numbers)


def apart(made: Sequence[float], expected: Sequence[float]) -> float:
    """Return the relative Frobenius distance; infinite where one of them is not a number or the counts differ."""
    if len(made) != len(expected) or not expected:
        return math.inf
    size = math.sqrt(math.fsum(value * value for value in expected))
    distance = math.sqrt(math.fsum((one - other) ** 2 for one, other in zip(made, expected)))
    return distance / size if size and math.isfinite(distance) else math.inf


class Words:
    """The words of one seed, 32 bits each."""

    def __init__(self, torch: Any, seed: int) -> None:
        self.torch = torch
        self.chance = source(seed)
        self.number = self.chance.getrandbits(32 * BLOCK)
        self.ones = int.from_bytes(b"\1\0\0\0" * BLOCK, "little")
        self.kept: dict[int, bytes] = {}

    def block(self, place: int, mask: int = 0) -> bytes:
        """Return what the block at that place holds, each word under a mask besides."""
        under = place * _STEP & _ALL ^ mask & _ALL
        if under not in self.kept:
            while len(self.kept) >= _KEPT:
                del self.kept[next(iter(self.kept))]
            self.kept[under] = (self.number ^ self.ones * under).to_bytes(4 * BLOCK, "little")
        return self.kept[under]

    def tensor(self, count: int, device: Any = "cpu") -> Any:
        """Return `count` words as an int32 tensor, of which some blocks have been read back; or raise."""
        first = self.torch.frombuffer(bytearray(self.block(0)), dtype=self.torch.int32).to(device)
        made = self.torch.empty(count, dtype=self.torch.int32, device=device)
        for place, start in enumerate(range(0, count, BLOCK)):
            mask = place * _STEP & _ALL
            part = made[start : start + BLOCK]
            self.torch.bitwise_xor(first[: part.numel()], mask - (mask >> 31 << 32), out=part)
        self.confirm(made)
        return made

    def confirm(self, made: Any, mask: int = 0) -> None:
        """Raise CorruptTransferError where a block that is read back does not hold these words under the mask."""
        if self.wrong(made, mask):
            message = f"{made.numel()} words on {made.device} are not those that they were made of"
            raise CorruptTransferError(message)

    def wrong(self, made: Any, mask: int = 0, looked: int = LOOKED) -> int:
        """Return how many of the blocks that are read back in plain Python hold anything but these words."""
        count = -(-made.numel() // BLOCK)
        places = {0, count - 1} | {self.chance.randrange(count) for _ in range(looked - 2)}
        held = {place: made[place * BLOCK : (place + 1) * BLOCK] for place in places}
        return sum(content(part) != self.block(place, mask)[: 4 * len(part)] for place, part in held.items())


def first_difference(one: bytes, other: bytes) -> tuple[int, int] | None:
    """Return where two sequences of 32-bit words differ first, and their bits' exclusive or; None where they do not."""
    for start in range(0, len(one), 4 * _COMPARED):
        left, right = (memoryview(side)[start : start + 4 * _COMPARED] for side in (one, other))
        if left != right:
            pairs = enumerate(zip(left.cast("I"), right.cast("I")))
            return next((start // 4 + at, a ^ b) for at, (a, b) in pairs if a != b)
    return None


# Elements compared at once: what is held besides the two tensors stays small.
PIECE = {"cuda": 1 << 26, "cpu": 1 << 20}


def differing(torch: Any, received: Any, expected: Any) -> Any:
    """Return how many elements of two tensors differ in any bit: an int64 on their device, which is not waited for."""
    words = getattr(torch, {8: "int64", 4: "int32", 2: "int16", 1: "int8"}[received.element_size()])
    return received.view(words).bitwise_xor(expected.view(words)).ne(0).sum()


def compared(torch: Any, received: Any, expected: Any) -> Any:
    """Return `differing` of two flat contiguous tensors, taken in pieces."""
    size = PIECE[received.device.type]
    total = torch.zeros((), dtype=torch.int64, device=received.device)
    for start in range(0, received.numel(), size):
        total += differing(torch, received[start : start + size], expected[start : start + size])
    return total


# Rows and columns of the corner that plain Python computes; elements of a sum.
CORNER, SUM = 16, 64
# How far the first product may be off plain Python and sums in float64; all others must have its bits.
TOLERANCE = {"float32": 1e-4, "tf32": 5e-3, "float16": 5e-3, "bfloat16": 1e-2, "float8": 2e-2}
# Data lies between -2 and 2, with all bits of a float32's significand in use.
_SCALE = 2.0**-30
# Bytes drawn at once: getrandbits takes no more than 2^31 - 1 bits.
_DRAWN = 1 << 26
# So many standard deviations off is the largest of a million sums of rounded elements.
_LARGEST = 5.0
# Of the usual size of what is added, what a sum is compared with at least.
_LEAST = 0.01
# Each element of a sum has another weight, so that no two of them change places unseen.
_WEIGHTS = [(-1) ** place * (0.5 + place / SUM) for place in range(SUM)]


def data(torch: Any, rows: int, columns: int, device: Any, seed: int) -> Any:
    """Return a float32 matrix that Python makes from the seed; CorruptTransferError if it holds others."""
    chance, words = source(seed), bytearray()
    while len(words) < 4 * rows * columns:
        count = min(_DRAWN, 4 * rows * columns - len(words))
        words += chance.getrandbits(8 * count).to_bytes(count, "little")
    made = torch.frombuffer(words, dtype=torch.int32).to(device).to(torch.float32).mul_(_SCALE).view(rows, columns)
    first = [word * _SCALE for word in array.array("i", bytes(words[: 4 * CORNER * columns]))]
    if read(made[:CORNER]) != array.array("f", first).tolist():
        message = f"a matrix on {device} does not hold the numbers that it was made of"
        raise CorruptTransferError(message)
    return made


class Products:
    """Two products of one left matrix, taken alternately, so that one that was not computed is seen.

    `lines[turn]` holds the columns of the right matrix as rows: an element of the product is the scalar product of a
    row of `left` and a row of `lines`. `multiply(turn)` returns the product.
    """

    def __init__(self, torch: Any, left: Any, lines: tuple[Any, Any], multiply: Callable[[int], Any]) -> None:
        self.torch, self.multiply, self.turn = torch, multiply, 0
        self.references = [multiply(turn).clone() for turn in (0, 1)]
        self.error = worst([error(torch, left, line, reference) for reference, line in zip(self.references, lines)])
        self.product: Any = None
        self.counted: list[Any] = []

    def work(self) -> None:
        """Compute the product whose turn it is."""
        self.product = self.multiply(self.turn % 2)

    def verify(self) -> None:
        """Count the elements that have other bits than the reference's; the device is not waited for."""
        self.counted.append(compared(self.torch, self.product.view(-1), self.references[self.turn % 2].view(-1)))
        self.turn += 1

    def wrong(self) -> list[int]:
        """Return how many elements were wrong in each product."""
        return [int(count) for count in self.counted]


def worst(errors: list[float]) -> float:
    """Return the largest error, infinite where one is no number."""
    return max((error if math.isfinite(error) else math.inf for error in errors), default=math.inf)


def error(torch: Any, left: Any, lines: Any, product: Any) -> float:
    """Return how far a product is off: its corner, and its sums, each relative to the size of what is compared."""
    rows, columns = (read(side[:CORNER].float()) for side in (left, lines))
    return worst(
        [
            apart(read(product[:CORNER, :CORNER]), _product(rows, columns, left.shape[1])),
            _sums(torch, left, lines, product),
        ]
    )


def _product(left: list[float], lines: list[float], inner: int) -> list[float]:
    columns = [lines[start : start + inner] for start in range(0, len(lines), inner)]
    rows = (left[start : start + inner] for start in range(0, len(left), inner))
    return [sum(map(mul, row, column)) for row in rows for column in columns]


def _sums(torch: Any, left: Any, lines: Any, product: Any) -> float:
    """Return how far weighted sums of SUM elements of each row are off, at most, by the size of what is added."""
    weights = torch.tensor(_WEIGHTS, dtype=torch.float64, device=left.device)
    wide, errors = left.float().double(), []
    for first in range(0, lines.shape[0], SUM):
        weight = weights[: lines.shape[0] - first]
        part = product[:, first : first + SUM].double() * weight
        right = (wide * (lines[first : first + SUM].float().double() * weight[:, None]).sum(0)).sum(1)
        size = part.square().sum(1).sqrt()
        apart = (part.sum(1) - right).abs()
        # A row of zeros, as a dead unit's gradient, is right; one that is nearly so has lost digits below the dtype's.
        errors.append((apart / (_LARGEST * torch.maximum(size, _LEAST * size.mean()))).where(apart != 0, apart).max())
    return worst([float(distance) for distance in torch.stack(errors).tolist()])
