"""Data sets made of others, and what users hand to a loader: which items come, how often, and in which order.

Each case counts in plain Python. Items are seeded numbers, all different, so that no two are taken for one another.
"""

from __future__ import annotations

import collections
import importlib.util
import inspect
import random
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from envcheck.checks.env.support.training import promise_cases

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
    "loader, batch_sampler",
    "loader, sampler",
    "loader, collate_fn and worker_init_fn",
    "loader, no batches",
    "loader, its length",
    "loader, IterableDataset alone",
    "loader, four workers and three epochs",
    "loader, in any order",
    "a worker's exception is raised",
    "collate NumPy",
    "collate other types",
)
# What came to torch later than 1.13.
LATER = ("StackDataset", "loader, in any order", "collate NumPy")
# More than one block of anything that shuffles.
MANY = 10_007
FATAL = 13
_WORKERS = 2


class Numbers:
    """A data set of these numbers."""

    def __init__(self, values: list[int]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> int:
        return self.values[index]


class Pairs(Numbers):
    """Items that hold a number and what the worker's start wrote down."""

    started: int = -1

    def __getitem__(self, index: int) -> Any:
        return self.values[index], Pairs.started


class Broken(Numbers):
    """A data set one of whose items cannot be read."""

    def __getitem__(self, index: int) -> int:
        if index == FATAL:
            message = f"item {FATAL} cannot be read"
            raise KeyError(message)
        return self.values[index]


class Point(NamedTuple):
    """An item with two parts."""

    x: float
    y: bool


def begin(worker: int) -> None:
    """Write down that this worker began."""
    Pairs.started = 100 + worker


def collate(items: list[Any]) -> list[Any]:
    """Return the items as they are, with a mark before them."""
    return ["collated", *items]


def stream(torch: Any, values: list[int]) -> Any:
    """Return an IterableDataset of these numbers."""

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[int]:
            return iter(values)

    return Stream()


class Tries:
    """The cases, on numbers from a seed."""

    def __init__(self, torch: Any, seed: int) -> None:
        self.torch, self.data, self.seed = torch, torch.utils.data, seed
        chance = random.Random(seed)  # noqa: S311 (test data, no secret)
        self.values = chance.sample(range(1 << 30), 40 + seed % 29)
        self.cuts = sorted(chance.sample(range(1, len(self.values)), 2))
        self.order = chance.sample(range(len(self.values)), len(self.values))

    def cases(self) -> dict[str, promise_cases.Case]:
        """Return each case by its name."""
        tries: tuple[promise_cases.Case, ...] = (self.joined, self.nested, self.tensors, self.stacked, self.chained)
        tries += (self.shares, self.many, self.replaced, self.more, self.by_batches, self.by_sampler, self.handed)
        tries += (self.single, self.length, partial(self.streamed), self.workers, self.unordered, self.raised)
        return dict(zip(NAMES, (*tries, self.numpy, self.types)))

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

    def joined(self) -> str | None:
        """Judge data sets one after the other, also counted from the end."""
        made = self.data.ConcatDataset([Numbers(part) for part in self.parts()])
        got = [made[index] for index in range(len(made))]
        return alike("three data sets", got, self.values) or alike("the last item", [made[-1]], self.values[-1:])

    def nested(self) -> str | None:
        """Judge a part of a part, item by item, and as a loader reads it: several at once."""
        inner = self.data.Subset(Numbers(self.values), self.order[: len(self.order) // 2])
        outer = self.data.Subset(inner, list(range(len(inner)))[::-1])
        right = [self.values[index] for index in self.order[: len(self.order) // 2]][::-1]
        got = [outer[index] for index in range(len(outer))]
        loaded = self.given(self.data.DataLoader(outer, batch_size=4))
        return alike("item by item", got, right) or alike("several at once", loaded, right)

    def tensors(self) -> str | None:
        """Judge rows of two tensors."""
        one = self.torch.tensor(self.values)
        made = self.data.TensorDataset(one, one + 1)
        got = [[int(part) for part in made[index]] for index in self.order]
        right = [[self.values[index], self.values[index] + 1] for index in self.order]
        loaded = [batch.tolist() for pair in self.data.DataLoader(made, batch_size=len(made)) for batch in pair]
        return alike("rows", got, right) or alike("a batch", loaded, [self.values, [v + 1 for v in self.values]])

    def stacked(self) -> str | None:
        """Judge data sets side by side."""
        if not hasattr(self.data, "StackDataset"):
            message = f"torch {self.torch.__version__} has no StackDataset"
            raise promise_cases.Absent(message)
        made = self.data.StackDataset(x=Numbers(self.values), y=Numbers(self.order))
        got = [made[index] for index in range(len(made))]
        right = [{"x": x, "y": y} for x, y in zip(self.values, self.order)]
        return alike("items", got, right)

    def chained(self) -> str | None:
        """Judge streams one after the other."""
        made = self.data.ChainDataset([stream(self.torch, part) for part in self.parts()])
        return alike("three streams", self.given(self.data.DataLoader(made, batch_size=5)), self.values)

    def shares(self) -> str | None:
        """Judge a split by shares: what is left over goes to the first parts in turn."""
        count = len(self.values)
        parts = self.data.random_split(Numbers(self.values), [0.5, 0.25, 0.25], generator=self.generator())
        sizes = [int(count * share) for share in (0.5, 0.25, 0.25)]
        for place in range(count - sum(sizes)):
            sizes[place % 3] += 1
        if [len(part) for part in parts] != sizes:
            return f"parts of {[len(part) for part in parts]}, not {sizes}"
        return alike("all parts", sorted(x for part in parts for x in part), sorted(self.values))

    def many(self) -> str | None:
        """Judge a permutation of many, of one process and of three."""
        right = list(range(MANY))
        got = sorted(self.data.RandomSampler(range(MANY), generator=self.generator()))
        made = partial(self.data.distributed.DistributedSampler, right, num_replicas=3, seed=self.seed, drop_last=True)
        three = [index for rank in range(3) for index in made(rank=rank)]
        wrong = alike("a permutation", got, right)
        return wrong or (None if len({*three}) == len(three) == MANY // 3 * 3 else "three ranks share an index")

    def replaced(self) -> str | None:
        """Judge draws with replacement: as many as asked for, some twice, none outside, each about as often."""
        got = list(self.data.RandomSampler(range(50), replacement=True, num_samples=5000, generator=self.generator()))
        counts = collections.Counter(got)
        # 100 expected of each; eight standard deviations of the binomial.
        # That the first 50 are all different happens once in 10^20 times.
        if len({*got[:50]}) == 50:  # noqa: PLR2004 (as said)
            return "50 draws of 50 with replacement hold none twice"
        if len(got) == 5000 and {*counts} <= {*range(50)} and all(abs(counts[i] - 100) < 80 for i in range(50)):  # noqa: PLR2004
            return None
        return f"{len(got)} draws of 50, the most frequent {counts.most_common(1)}, the least {min(counts.values())}"

    def more(self) -> str | None:
        """Judge more indices than there are, without replacement: one permutation after the other."""
        got = list(self.data.RandomSampler(range(10), num_samples=25, generator=self.generator()))
        rounds = [sorted(got[:10]), sorted(got[10:20])]
        if len(got) != 25 or rounds != [list(range(10))] * 2 or len({*got[20:]}) != 5:  # noqa: PLR2004 (as asked for)
            return f"25 of 10 indices are {got}"
        return None

    def by_batches(self) -> str | None:
        """Judge batches that a sampler makes, of different sizes, with and without workers."""
        batches = [part for part in (self.order[: self.cuts[0]], self.order[self.cuts[0] :]) if part]
        right = [[self.values[index] for index in batch] for batch in batches]
        for workers in (0, _WORKERS):
            loader = self.data.DataLoader(Numbers(self.values), batch_sampler=batches, num_workers=workers)
            wrong = alike(f"with {workers} workers", [batch.tolist() for batch in loader], right)
            if wrong:
                return wrong
        return None

    def by_sampler(self) -> str | None:
        """Judge that a loader reads in its sampler's order."""
        loader = self.data.DataLoader(Numbers(self.values), batch_size=3, sampler=self.order)
        return alike("the sampler's order", self.given(loader), [self.values[index] for index in self.order])

    def handed(self) -> str | None:
        """Judge that a loader calls what it was given."""
        options = {"collate_fn": collate, "worker_init_fn": begin, "num_workers": _WORKERS, "batch_size": 2}
        loader = self.data.DataLoader(Pairs(self.values), multiprocessing_context="fork", **options)
        right: list[Any] = []
        for number, first in enumerate(range(0, len(self.values), 2)):
            items = [(value, 100 + number % _WORKERS) for value in self.values[first : first + 2]]
            right.append(["collated", *items])
        return alike("what they return", list(loader), right)

    def single(self) -> str | None:
        """Judge a loader without batches."""
        loader = self.data.DataLoader(Numbers(self.values), batch_size=None, num_workers=_WORKERS)
        return alike("items", [int(item) for item in loader], self.values)

    def length(self) -> str | None:
        """Judge how many batches a loader says it has."""
        count = len(self.values)
        made = partial(self.data.DataLoader, Numbers(self.values), batch_size=7)
        said = [len(made()), len(made(drop_last=True)), len([*made()]), len([*made(drop_last=True)])]
        return alike("batches", said, [-(-count // 7), count // 7] * 2)

    def streamed(self) -> str | None:
        """Judge a stream without workers, whole and without its last batch."""
        made = partial(self.data.DataLoader, stream(self.torch, self.values), batch_size=6)
        full = self.values[: len(self.values) // 6 * 6]
        return alike("a stream", self.given(made()), self.values) or alike(
            "full batches", self.given(made(drop_last=True)), full
        )

    def workers(self) -> str | None:
        """Judge three epochs of four workers that stay."""
        with warnings.catch_warnings():
            # They are more than this machine has cores, perhaps.
            warnings.simplefilter("ignore")
            loader = self.data.DataLoader(Numbers(self.values), batch_size=3, num_workers=4, persistent_workers=True)
            epochs = [self.given(loader) for _ in range(3)]
        found = (alike(f"epoch {epoch}", got, self.values) for epoch, got in enumerate(epochs))
        return next((wrong for wrong in found if wrong), None)

    def unordered(self) -> str | None:
        """Judge that no item is lost where batches may come in any order."""
        if "in_order" not in inspect.signature(self.data.DataLoader.__init__).parameters:
            message = f"the DataLoader of torch {self.torch.__version__} takes no in_order"
            raise promise_cases.Absent(message)
        loader = self.data.DataLoader(Numbers(self.values), batch_size=3, num_workers=_WORKERS, in_order=False)
        return alike("items", sorted(self.given(loader)), sorted(self.values))

    def raised(self) -> str | None:
        """Judge that an item which cannot be read raises its own exception, and that no other batch is lost."""
        whole = [self.values[first : first + 4] for first in range(0, len(self.values), 4)]
        right = [batch for number, batch in enumerate(whole) if number != FATAL // 4]
        for workers in (0, _WORKERS):
            told, got = list[str](), []
            batches = iter(self.data.DataLoader(Broken(self.values), batch_size=4, num_workers=workers))
            # Read to its end: workers that are left waiting take seconds to end.
            while len(told) < len(whole):
                try:
                    got.append(next(batches).tolist())
                except StopIteration:  # noqa: PERF203 (each batch may raise)
                    break
                except KeyError as error:
                    told.append(str(error))
            if len(told) != 1 or str(FATAL) not in told[0]:
                return f"with {workers} workers it is raised {len(told)} times: {told[:1]}; {len(got)} batches came"
            wrong = alike(f"with {workers} workers the other batches", got, right)
            if wrong:
                return wrong
        return None

    def numpy(self) -> str | None:
        """Judge arrays and numbers of NumPy, where it is installed, by value and dtype."""
        if importlib.util.find_spec("numpy") is None:
            message = "NumPy is not installed"
            raise promise_cases.Absent(message)
        numpy, found = importlib.import_module("numpy"), []
        for dtype in ("float32", "float64", "int64", "uint8"):
            array = numpy.array([value % 200 for value in self.values[:6]], dtype=dtype).reshape(2, 3)
            batch = self.data.default_collate([array, array + 1])
            alone = self.data.default_collate([array[0, 0], array[1, 1]])
            found += [(str(batch.dtype), batch.tolist()), (str(alone.dtype), alone.tolist())]
            plain = array.tolist()
            right = (f"torch.{dtype}", [plain, [[x + 1 for x in row] for row in plain]])
            wrong = alike(dtype, found[-2:], [right, (f"torch.{dtype}", [plain[0][0], plain[1][1]])])
            converted = self.data.default_convert({"x": array})["x"]
            wrong = wrong or alike(f"a converted {dtype}", converted.tolist(), plain)
            if wrong:
                return wrong
        return None

    def types(self) -> str | None:
        """Judge what becomes of numbers, truth values, bytes, named tuples and None in a list."""
        torch = self.torch
        batch = self.data.default_collate([Point(x=0.5, y=True), Point(x=0.25, y=False)])
        rows = self.data.default_collate([torch.tensor([1, 2]), torch.tensor([3, 4])])
        got = [type(batch).__name__, str(batch.x.dtype), batch.x.tolist(), batch.y.tolist()]
        got += [rows.tolist(), self.data.default_collate([b"a", b"b"]), self.data.default_convert("text")]
        right = ["Point", "torch.float64", [0.5, 0.25], [True, False], [[1, 2], [3, 4]], [b"a", b"b"], "text"]
        return alike("a batch", got, right)


def alike(what: str, got: Any, right: Any) -> str | None:
    """Return what is wrong with some items: which are missing and which came too often, or their order."""
    got, right = list(got), list(right)
    if got == right:
        return None
    less, more = (collections.Counter(map(repr, part)) for part in (got, right))
    missing, extra = sorted((more - less).elements())[:3], sorted((less - more).elements())[:3]
    if not missing and not extra:
        return f"{what} comes in another order than documented"
    return f"{what}: missing {', '.join(missing) or 'none'}; too often {', '.join(extra) or 'none'}"
