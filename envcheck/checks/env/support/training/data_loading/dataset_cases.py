"""Data sets made of others, and samplers of many indices: which items come, how often, and in which order."""

from __future__ import annotations

import collections
from functools import partial

from envcheck.checks.env.support.training.data_loading import seeded_items
from envcheck.checks.support import promise_cases

NAMES = (
    "ConcatDataset",
    "Subset of a Subset",
    "TensorDataset",
    "StackDataset",
    "ChainDataset",
    "random_split by shares",
    "RandomSampler of many",
    "RandomSampler with replacement",
    "RandomSampler of more than there are",
)
# What came to torch later than 1.13.
LATER = ("StackDataset",)
# More than one block of anything that shuffles.
MANY = 10_007


class DatasetCases(seeded_items.SeededNumbers):
    """The cases, on numbers from a seed."""

    def cases(self) -> dict[str, promise_cases.Case]:
        """Return each case by its name."""
        tries: tuple[promise_cases.Case, ...] = (self.joined, self.nested, self.tensors, self.stacked, self.chained)
        return dict(zip(NAMES, (*tries, self.shares, self.many, self.replaced, self.more)))

    def joined(self) -> str | None:
        """Judge data sets one after the other, also counted from the end."""
        made = self.data.ConcatDataset([seeded_items.Numbers(part) for part in self.parts()])
        actual = [made[index] for index in range(len(made))]
        return seeded_items.alike("three data sets", actual, self.values) or seeded_items.alike(
            "the last item", [made[-1]], self.values[-1:]
        )

    def nested(self) -> str | None:
        """Judge a part of a part, item by item, and as a loader reads it: several at once."""
        inner = self.data.Subset(seeded_items.Numbers(self.values), self.order[: len(self.order) // 2])
        outer = self.data.Subset(inner, list(range(len(inner)))[::-1])
        right = [self.values[index] for index in self.order[: len(self.order) // 2]][::-1]
        actual = [outer[index] for index in range(len(outer))]
        loaded = self.given(self.data.DataLoader(outer, batch_size=4))
        return seeded_items.alike("item by item", actual, right) or seeded_items.alike("several at once", loaded, right)

    def tensors(self) -> str | None:
        """Judge rows of two tensors."""
        one = self.torch.tensor(self.values)
        made = self.data.TensorDataset(one, one + 1)
        actual = [[int(part) for part in made[index]] for index in self.order]
        right = [[self.values[index], self.values[index] + 1] for index in self.order]
        loaded = [batch.tolist() for pair in self.data.DataLoader(made, batch_size=len(made)) for batch in pair]
        return seeded_items.alike("rows", actual, right) or seeded_items.alike(
            "a batch", loaded, [self.values, [v + 1 for v in self.values]]
        )

    def stacked(self) -> str | None:
        """Judge data sets side by side."""
        if not hasattr(self.data, "StackDataset"):
            message = f"torch {self.torch.__version__} has no StackDataset"
            raise promise_cases.AbsentFeature(message)
        made = self.data.StackDataset(x=seeded_items.Numbers(self.values), y=seeded_items.Numbers(self.order))
        actual = [made[index] for index in range(len(made))]
        right = [{"x": x, "y": y} for x, y in zip(self.values, self.order)]
        return seeded_items.alike("items", actual, right)

    def chained(self) -> str | None:
        """Judge streams one after the other."""
        made = self.data.ChainDataset([seeded_items.stream(self.torch, part) for part in self.parts()])
        return seeded_items.alike("three streams", self.given(self.data.DataLoader(made, batch_size=5)), self.values)

    def shares(self) -> str | None:
        """Judge a split by shares: what is left over goes to the first parts in turn."""
        count = len(self.values)
        parts = self.data.random_split(seeded_items.Numbers(self.values), [0.5, 0.25, 0.25], generator=self.generator())
        sizes = [int(count * share) for share in (0.5, 0.25, 0.25)]
        for place in range(count - sum(sizes)):
            sizes[place % 3] += 1
        if [len(part) for part in parts] != sizes:
            return f"parts of {[len(part) for part in parts]}, not {sizes}"
        return seeded_items.alike("all parts", sorted(x for part in parts for x in part), sorted(self.values))

    def many(self) -> str | None:
        """Judge a permutation of many, of one process, of a loader and of three; the next epoch has another."""
        right = list(range(MANY))
        order = list(self.data.RandomSampler(range(MANY), generator=self.generator()))
        # One number stays in its place on average.
        if sum(map(int.__eq__, order, right)) > MANY // 100:
            return "most of many indices are left in their places"
        if list(self.data.RandomSampler(right)) == list(self.data.RandomSampler(right)):
            return "without a generator, two epochs come in one order"
        loaded = self.given(self.data.DataLoader(seeded_items.Numbers(right), batch_size=64, shuffle=True))
        if sorted(loaded) != right:
            return seeded_items.alike("a loader of many", sorted(loaded), right)
        actual = sorted(order)
        made = partial(self.data.distributed.DistributedSampler, right, num_replicas=3, seed=self.seed, drop_last=True)
        three = [index for rank in range(3) for index in made(rank=rank)]
        wrong = seeded_items.alike("a permutation", actual, right)
        return wrong or (None if len({*three}) == len(three) == MANY // 3 * 3 else "three ranks share an index")

    def replaced(self) -> str | None:
        """Judge draws with replacement: as many as asked for, some twice, none outside, each about as often."""
        actual = list(
            self.data.RandomSampler(range(50), replacement=True, num_samples=5000, generator=self.generator())
        )
        counts = collections.Counter(actual)
        # 100 expected of each; eight standard deviations of the binomial.
        # That the first 50 are all different happens once in 10^20 times.
        if len({*actual[:50]}) == 50:  # noqa: PLR2004 (as said)
            return "50 draws of 50 with replacement hold none twice"
        if len(actual) == 5000 and {*counts} <= {*range(50)} and all(abs(counts[i] - 100) < 80 for i in range(50)):  # noqa: PLR2004
            return None
        return f"{len(actual)} draws of 50, the most frequent {counts.most_common(1)}, the least {min(counts.values())}"

    def more(self) -> str | None:
        """Judge more indices than there are, without replacement: one permutation after the other."""
        actual = list(self.data.RandomSampler(range(10), num_samples=25, generator=self.generator()))
        rounds = [sorted(actual[:10]), sorted(actual[10:20])]
        if len(actual) != 25 or rounds != [list(range(10))] * 2 or len({*actual[20:]}) != 5:  # noqa: PLR2004 (as asked for)
            return f"25 of 10 indices are {actual}"
        return None
