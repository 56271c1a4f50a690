"""Items of a seed for data sets and loaders: numbers, all different, so that no two are taken for one another."""

from __future__ import annotations

import collections
import random
from collections.abc import Iterator
from typing import Any


class Numbers:
    """A data set of these numbers."""

    def __init__(self, values: list[int]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> int:
        return self.values[index]


class SeededNumbers:
    """Numbers of a seed, places to cut them at, and an order to read them in."""

    def __init__(self, torch: Any, seed: int) -> None:
        self.torch, self.data, self.seed = torch, torch.utils.data, seed
        chance = random.Random(seed)  # noqa: S311 (test data, no secret)
        self.values = chance.sample(range(1 << 30), 40 + seed % 29)
        self.cuts = sorted(chance.sample(range(1, len(self.values)), 2))
        self.order = chance.sample(range(len(self.values)), len(self.values))

    def generator(self, more: int = 0) -> Any:
        """Return torch's generator of the seed."""
        return self.torch.Generator().manual_seed(self.seed + more)

    def given(self, loader: Any) -> list[int]:
        """Return what all batches of a loader hold."""
        return [int(x) for batch in loader for x in batch.tolist()]

    def parts(self) -> list[list[int]]:
        """Return the numbers in three parts, cut at places of the seed."""
        first, second = self.cuts
        return [self.values[:first], self.values[first:second], self.values[second:]]


def stream(torch: Any, values: list[int]) -> Any:
    """Return an IterableDataset of these numbers."""

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[int]:
            return iter(values)

    return Stream()


def alike(subject: str, actual: Any, right: Any) -> str | None:
    """Return what is wrong with some items: which are missing and which came too often, or their order."""
    actual, right = list(actual), list(right)
    if actual == right:
        return None
    less, more = (collections.Counter(map(repr, part)) for part in (actual, right))
    missing, extra = sorted((more - less).elements())[:3], sorted((less - more).elements())[:3]
    if not missing and not extra:
        return f"{subject} comes in another order than documented"
    return f"{subject}: missing {', '.join(missing) or 'none'}; too often {', '.join(extra) or 'none'}"
