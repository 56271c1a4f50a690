"""Numbers and words in plain Python: made from a seed, handed to torch, and read back from memory without torch's help.

A reference that torch computes, and a comparison that torch makes, are as wrong as the torch under test. A gigabyte of
Python's own random words would take seconds: one block is drawn, and each later block of a tensor is the same one under
another mask, so that no two are equal and Python can say what each of them has to hold.
"""

from __future__ import annotations

import array
import ctypes
import math
import os
import random
import struct
from collections.abc import Sequence
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
_PIECE = 4096
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
    for start in range(0, len(one), 4 * _PIECE):
        left, right = (memoryview(side)[start : start + 4 * _PIECE] for side in (one, other))
        if left != right:
            pairs = enumerate(zip(left.cast("I"), right.cast("I")))
            return next((start // 4 + at, a ^ b) for at, (a, b) in pairs if a != b)
    return None
