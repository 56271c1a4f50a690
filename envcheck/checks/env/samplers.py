"""Epochs that show some samples twice and others never: nothing raises, and the model learns another data set.

Seen in the wild: a DistributedSampler without set_epoch, or whose ranks overlap; workers that all draw the same random
augmentations; an IterableDataset that every worker reads whole; a shuffle that a seed does not repeat. Which indices
each sampler and loader gives is counted in plain Python, and workers say which seeds they were given.
"""

from __future__ import annotations

import collections
import math
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View
from envcheck.checks.env.support.training.data_loading import dataset_cases, loader_cases, seeded_items
from envcheck.checks.support import process_group, promise_cases
from envcheck.checks.training import plain_math

CHECK = Check(
    promise="samplers and loaders give each index as often as documented, workers get seeds of their own that repeat",
    level="standard",
    seconds=2.0,
    cpu_seconds=1.6,
    timeout=120.0,
)

WORLDS = (1, 2, 3, 8)
WORKERS = 2
DRAWS = 4000
# Counts of draws may be off by six standard deviations of the binomial: once in 500 million honest runs.
SIGMAS = 6
NAMES = (
    *(f"DistributedSampler over {world} ranks" for world in WORLDS),
    "DistributedSampler follows set_epoch",
    "RandomSampler gives a permutation",
    "RandomSampler repeats by its generator",
    "SubsetRandomSampler stays in its subset",
    "WeightedRandomSampler follows its weights",
    "BatchSampler loses no index",
    "random_split loses no index",
    "default collate",
    "loader, shuffled",
    "loader, workers",
    "loader, persistent workers",
    "loader, last batch dropped",
    "loader, IterableDataset shared by workers",
    "seeds differ between workers and epochs",
    "seeds repeat by the generator",
    *dataset_cases.NAMES,
    *loader_cases.NAMES,
)
LIMIT = Limit(0, "wrong", "pytorch.org/docs/stable/data.html: which indices, and how often", "at most")
_FIX = "reinstall torch: its samplers or loader do not do what they document; compare torch/utils/data with the wheel's"


def measure(rank: Rank) -> Measured:
    """Count what each sampler and loader gives."""
    import torch

    seed = plain_math.seed_of(rank)
    where = process_group.standing(rank, torch.zeros(1, device=process_group.device_of(rank)))
    cases = {
        **_Tries(torch, seed).cases(),
        **dataset_cases.DatasetCases(torch, seed).cases(),
        **loader_cases.LoaderCases(torch, seed).cases(),
    }
    return {**where, "seed": seed, "cases": promise_cases.run(cases)}


class Squares:
    """A data set of `count` items, item i is i * i."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index * index


class Seeds(Squares):
    """Items that say by which worker and with which seeds they were made."""

    def __getitem__(self, index: int) -> Any:
        import torch

        info = torch.utils.data.get_worker_info()
        drawn = float(torch.rand(1, dtype=torch.float64)[0])
        return [index, info.id, torch.initial_seed() % 2**40, random.random(), drawn]  # noqa: S311 (what is looked at)


def parted(torch: Any, count: int) -> Any:
    """Return an IterableDataset of `count` numbers, of which each worker gives its share."""

    class PartedDataset(torch.utils.data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[int]:
            info = torch.utils.data.get_worker_info()
            return iter(range(info.id, count, info.num_workers))

    return PartedDataset()


class _Tries:
    def __init__(self, torch: Any, seed: int) -> None:
        self.torch, self.data, self.seed = torch, torch.utils.data, seed
        self.count = 50 + seed % 37

    def cases(self) -> dict[str, promise_cases.Case]:
        tries: tuple[promise_cases.Case, ...] = tuple(partial(self.distributed, world) for world in WORLDS)
        tries += (self.epochs, self.permutation, self.repeated, self.subset, self.weighted, self.batches, self.split)
        tries += (self.collated, self.shuffled, self.workers, self.persistent, self.dropped, self.shared)
        return dict(zip(NAMES, (*tries, self.seeds, self.same_seeds)))

    def generator(self, more: int = 0) -> Any:
        return self.torch.Generator().manual_seed(self.seed + more)

    def given(self, loader: Any) -> list[int]:
        return [int(x) for batch in loader for x in batch.tolist()]

    def distributed(self, world: int) -> str | None:
        """Without shuffling, rank r has r, r + world, …, and the start again where that is uneven; none is lost."""
        made = self.data.distributed.DistributedSampler
        for drop in (False, True):
            options = {"num_replicas": world, "drop_last": drop, "seed": self.seed}
            each = self.count // world if drop else math.ceil(self.count / world)
            padded = [index % self.count for index in range(each * world)]
            for rank in range(world):
                actual = made(range(self.count), rank=rank, shuffle=False, **options)
                wrong = seeded_items.alike(f"rank {rank} of {world}", actual, padded[rank::world])
                if wrong:
                    return wrong
            drawn = [i for r in range(world) for i in made(range(self.count), rank=r, shuffle=True, **options)]
            counts = collections.Counter(drawn)
            short = [i for i in range(self.count) if not counts[i]]
            if len(drawn) != each * world or (not drop and short) or max(counts.values()) > 1 + (not drop):
                return f"{world} shuffled ranks gave {len(drawn)} indices, not {each * world}, and not {short[:3]}"
        return None

    def epochs(self) -> str | None:
        sampler = self.data.distributed.DistributedSampler(range(self.count), 1, 0, seed=self.seed)
        orders = []
        for epoch in (0, 1, 0):
            sampler.set_epoch(epoch)
            orders.append(list(sampler))
        if orders[0] == orders[1]:
            return "set_epoch changes nothing"
        return None if orders[0] == orders[2] else "the same epoch gives another order the second time"

    def permutation(self) -> str | None:
        actual = list(self.data.RandomSampler(range(self.count)))
        if actual == list(range(self.count)):
            return "nothing was shuffled"
        return seeded_items.alike("a permutation", sorted(actual), range(self.count))

    def repeated(self) -> str | None:
        orders = [list(self.data.RandomSampler(range(self.count), generator=self.generator(i))) for i in (0, 0, 1)]
        if orders[0] != orders[1]:
            return "the same generator gives another order the second time"
        return "another generator gives the same order" if orders[0] == orders[2] else None

    def subset(self) -> str | None:
        subset = list(range(3, self.count, 4))
        return seeded_items.alike("a subset", sorted(self.data.SubsetRandomSampler(subset)), subset)

    def weighted(self) -> str | None:
        weights = [0.0, 1.0, 2.0, 5.0]
        drawn = collections.Counter(self.data.WeightedRandomSampler(weights, DRAWS, generator=self.generator()))
        for index, weight in enumerate(weights):
            share = weight / sum(weights)
            if abs(drawn[index] - DRAWS * share) > SIGMAS * math.sqrt(DRAWS * share * (1 - share)):
                return f"weight {weight:g} of {sum(weights):g} was drawn {drawn[index]} times in {DRAWS}"
        alone = list(self.data.WeightedRandomSampler(weights, 3, replacement=False, generator=self.generator()))
        return seeded_items.alike("draws without replacement", sorted(alone), [1, 2, 3])

    def batches(self) -> str | None:
        whole = _plain_batches(range(self.count), 7)
        actual = list(self.data.BatchSampler(range(self.count), 7, drop_last=False))
        full = list(self.data.BatchSampler(range(self.count), 7, drop_last=True))
        right = [batch for batch in whole if len(batch) == len(whole[0])]
        return seeded_items.alike("batches", actual, whole) or seeded_items.alike("full batches", full, right)

    def split(self) -> str | None:
        sizes = [self.count - 17, 10, 7]
        parts = self.data.random_split(range(self.count), sizes, generator=self.generator())
        if [len(part) for part in parts] != sizes:
            return f"parts of {[len(part) for part in parts]}, not {sizes}"
        return seeded_items.alike("parts together", sorted(i for part in parts for i in part), range(self.count))

    def collated(self) -> str | None:
        items = [{"x": float(i), "y": (i, [i, i + 1]), "name": str(i)} for i in range(3)]
        loaded = next(iter(self.data.DataLoader(items, batch_size=3)))
        actual = [
            loaded["x"].tolist(),
            loaded["y"][0].tolist(),
            [part.tolist() for part in loaded["y"][1]],
            loaded["name"],
        ]
        return seeded_items.alike(
            "a batch of nested items", actual, [[0.0, 1.0, 2.0], [0, 1, 2], [[0, 1, 2], [1, 2, 3]], ["0", "1", "2"]]
        )

    def loader(self, **options: Any) -> Any:
        return self.data.DataLoader(Squares(self.count), batch_size=6, **options)

    def shuffled(self) -> str | None:
        actual = [self.given(self.loader(shuffle=True, generator=self.generator(i))) for i in (0, 0, 1)]
        if actual[0] != actual[1] or actual[0] == actual[2]:
            return "a shuffle does not follow its generator"
        return seeded_items.alike("a shuffled epoch", sorted(actual[0]), [i * i for i in range(self.count)])

    def workers(self) -> str | None:
        actual = self.given(self.loader(num_workers=WORKERS, prefetch_factor=3))
        return seeded_items.alike("an epoch of workers", actual, [i * i for i in range(self.count)])

    def persistent(self) -> str | None:
        loader = self.loader(num_workers=WORKERS, persistent_workers=True, prefetch_factor=1)
        epochs = [self.given(loader) for _ in range(2)]
        right = [i * i for i in range(self.count)]
        return seeded_items.alike("the first epoch", epochs[0], right) or seeded_items.alike(
            "the second epoch", epochs[1], right
        )

    def dropped(self) -> str | None:
        right = [i * i for i in range(self.count - self.count % 6)]
        return seeded_items.alike("full batches", self.given(self.loader(drop_last=True, num_workers=1)), right)

    def shared(self) -> str | None:
        loader = self.data.DataLoader(parted(self.torch, self.count), batch_size=5, num_workers=WORKERS)
        return seeded_items.alike("what workers share", sorted(self.given(loader)), range(self.count))

    def drawn(self, generator: Any) -> list[list[list[Any]]]:
        """Return what the workers of two epochs say of themselves, by item."""
        loader = self.data.DataLoader(
            Seeds(8), batch_size=None, num_workers=WORKERS, generator=generator, multiprocessing_context="fork"
        )
        return [[[float(x) for x in item] for item in loader] for _ in range(2)]

    def seeds(self) -> str | None:
        first, second = self.drawn(None)
        if {item[1] for item in first} != {0.0, 1.0}:
            return f"items came of workers {sorted({item[1] for item in first})}, not 0 and 1"
        for source_name, place in (("torch's seed", 2), ("Python's random", 3), ("torch.rand", 4)):
            by_worker = [{item[1]: item[place] for item in reversed(epoch)} for epoch in (first, second)]
            drawn = [value for epoch in by_worker for value in epoch.values()]
            if len(set(drawn)) != len(drawn):
                return f"{source_name} is the same in two workers or epochs: {drawn}"
        return None

    def same_seeds(self) -> str | None:
        one, other, third = (self.drawn(self.generator(more)) for more in (0, 0, 1))
        if one != other:
            return "the same generator gives workers other seeds the second time"
        return "another generator gives workers the same seeds" if one == third else None


def _plain_batches(indices: range, size: int) -> list[list[int]]:
    return [list(indices[first : first + size]) for first in range(0, len(indices), size)]


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail naming each sampler or loader that gives other indices, or seeds, than documented."""
    later = (*dataset_cases.LATER, *loader_cases.LATER)
    terms = promise_cases.Terms(NAMES, lambda _name: LIMIT, "samplers.wrong", _FIX, later.__contains__)
    return promise_cases.judge(view, ranks, terms)
