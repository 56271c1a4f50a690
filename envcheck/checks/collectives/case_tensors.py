"""A case of a collective on a setting: operation, dtype, size and what each rank gives, the same on all ranks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from envcheck.checks import Rank
from envcheck.checks.collectives import exact_numbers

# Beyond where NCCL changes from its latency protocols to Simple; `all-reduce` and the bandwidth checks go far beyond.
LARGE = {"cuda": (1 << 17) + 3, "cpu": (1 << 14) + 3}
MIDDLE, ODD = 2039, 257
# Messages that are under way at once.
IN_FLIGHT = 4
Part = tuple[str, list[Any], list[Any]]


class Setting(NamedTuple):
    """Where a case runs."""

    torch: Any
    dist: Any
    rank: Rank
    device: Any
    seed: int


class CollectiveCase(NamedTuple):
    """One collective: which one, by which operation ("" if it only moves), of which dtype, how many elements a rank."""

    collective: str
    operation: str
    dtype: str
    size: int
    turn: int

    def name(self) -> str:
        """Return how the case is named in a report."""
        words = [self.collective, self.operation, self.dtype, f"of {self.size} (case {self.turn})"]
        return " ".join(word for word in words if word)


class Bench(NamedTuple):
    """A case on a setting: what each rank gives, as integers and as tensors."""

    setting: Setting
    case: CollectiveCase

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return self.setting.rank.world

    @property
    def mine(self) -> int:
        """The number of this rank."""
        return self.setting.rank.rank

    @property
    def root(self) -> int:
        """The rank that is the root of this case: each in turn."""
        return self.case.turn % self.world

    @property
    def kind(self) -> exact_numbers.Kind:
        """What is done to the integers."""
        return exact_numbers.Kind(self.case.operation, self.case.dtype, self.world)

    @property
    def operation(self) -> Any:
        """The operation as torch names it."""
        names = {"average": "AVG"}
        return getattr(self.setting.dist.ReduceOp, names.get(self.case.operation, self.case.operation.upper()))

    def given(self, rank: int, block: int = 0, count: int | None = None) -> list[int]:
        """Return what `rank` gives, in one of its blocks."""
        size = self.case.size if count is None else count
        return exact_numbers.integers(f"{self.setting.seed}/{self.case.name()}/{block}", self.kind, rank, size)

    def tensor(self, values: list[int]) -> Any:
        """Return integers as a tensor of the case's dtype on the rank's device."""
        torch = self.setting.torch
        return torch.tensor(values, dtype=getattr(torch, self.case.dtype)).to(self.setting.device)

    def empty(self, count: int | None = None) -> Any:
        """Return a tensor to receive into, full of ones."""
        return self.tensor([1] * (self.case.size if count is None else count))

    def blocks(self, rank: int) -> list[list[int]]:
        """Return what `rank` gives to each rank."""
        return [self.given(rank, block) for block in range(self.world)]

    def reduced(self, block: int = 0) -> list[int]:
        """Return what the operation makes of what all ranks give in a block."""
        return exact_numbers.reduced(self.kind, [self.given(rank, block) for rank in range(self.world)])


def fits(backend: str, operation: str, dtype: str, world: int) -> bool:
    """Return whether integers of the dtype can show the operation; gloo averages floats alone.

    Bitwise operations are for whole numbers, and NCCL does not have them.
    """
    if operation in exact_numbers.BITWISE and (backend != "gloo" or dtype in exact_numbers.FLOATS):
        return False
    if backend == "gloo" and operation == "average" and dtype not in exact_numbers.FLOATS:
        return False
    return exact_numbers.bound(exact_numbers.Kind(operation, dtype, world)) > 0


def sized(
    chance: random.Random, collective: str, pairs: list[tuple[str, str]], setting: Setting, *, large: bool = True
) -> Iterator[CollectiveCase]:
    """Yield a case for each pair, at least one for each rank as the root: one large, the others of one element up."""
    world = setting.rank.world
    most = LARGE[setting.device.type] // world if large else MIDDLE
    for index in range(max(len(pairs), world)):
        sizes = (1, chance.randrange(3, ODD, 2), world * chance.randrange(1, ODD) + 1, chance.randrange(ODD, MIDDLE))
        operation, dtype = pairs[index % len(pairs)]
        yield CollectiveCase(collective, operation, dtype, sizes[index % len(sizes)] if index else most, index)


def unchanged(sent: Any, values: list[int]) -> Part:
    """Return the part that a sender's tensor still holds what it sent."""
    return ("what was sent, afterwards", sent.tolist(), values)
