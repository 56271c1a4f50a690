"""What users hand to a loader, and what it hands on: which items come, how often, in which order and of what type."""

from __future__ import annotations

import importlib.util
import inspect
import warnings
from functools import partial
from typing import Any, NamedTuple

from envcheck.checks.env.support.training.data_loading import seeded_items
from envcheck.checks.support import promise_cases

NAMES = (
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
LATER = ("loader, in any order", "collate NumPy")
FATAL = 13
_WORKERS = 2


class Pairs(seeded_items.Numbers):
    """Items that hold a number and what the worker's start wrote down."""

    started: int = -1

    def __getitem__(self, index: int) -> Any:
        return self.values[index], Pairs.started


class BrokenDataset(seeded_items.Numbers):
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


class LoaderCases(seeded_items.SeededNumbers):
    """The cases, on numbers from a seed."""

    def cases(self) -> dict[str, promise_cases.Case]:
        """Return each case by its name."""
        tries: tuple[promise_cases.Case, ...] = (self.by_batches, self.by_sampler, self.handed, self.single)
        tries += (self.length, self.streamed, self.workers, self.unordered, self.raised, self.numpy, self.types)
        return dict(zip(NAMES, tries))

    def by_batches(self) -> str | None:
        """Judge batches that a sampler makes, of different sizes, with and without workers."""
        batches = [part for part in (self.order[: self.cuts[0]], self.order[self.cuts[0] :]) if part]
        right = [[self.values[index] for index in batch] for batch in batches]
        for workers in (0, _WORKERS):
            loader = self.data.DataLoader(seeded_items.Numbers(self.values), batch_sampler=batches, num_workers=workers)
            wrong = seeded_items.alike(f"with {workers} workers", [batch.tolist() for batch in loader], right)
            if wrong:
                return wrong
        return None

    def by_sampler(self) -> str | None:
        """Judge that a loader reads in its sampler's order."""
        loader = self.data.DataLoader(seeded_items.Numbers(self.values), batch_size=3, sampler=self.order)
        return seeded_items.alike(
            "the sampler's order", self.given(loader), [self.values[index] for index in self.order]
        )

    def handed(self) -> str | None:
        """Judge that a loader calls what it was given."""
        options = {"collate_fn": collate, "worker_init_fn": begin, "num_workers": _WORKERS, "batch_size": 2}
        loader = self.data.DataLoader(Pairs(self.values), multiprocessing_context="fork", **options)
        right: list[Any] = []
        for number, first in enumerate(range(0, len(self.values), 2)):
            items = [(value, 100 + number % _WORKERS) for value in self.values[first : first + 2]]
            right.append(["collated", *items])
        return seeded_items.alike("what they return", list(loader), right)

    def single(self) -> str | None:
        """Judge a loader without batches."""
        loader = self.data.DataLoader(seeded_items.Numbers(self.values), batch_size=None, num_workers=_WORKERS)
        return seeded_items.alike("items", [int(item) for item in loader], self.values)

    def length(self) -> str | None:
        """Judge how many batches a loader says it has."""
        count = len(self.values)
        made = partial(self.data.DataLoader, seeded_items.Numbers(self.values), batch_size=7)
        lengths = [len(made()), len(made(drop_last=True)), len([*made()]), len([*made(drop_last=True)])]
        return seeded_items.alike("batches", lengths, [-(-count // 7), count // 7] * 2)

    def streamed(self) -> str | None:
        """Judge a stream without workers, whole and without its last batch."""
        made = partial(self.data.DataLoader, seeded_items.stream(self.torch, self.values), batch_size=6)
        full = self.values[: len(self.values) // 6 * 6]
        return seeded_items.alike("a stream", self.given(made()), self.values) or seeded_items.alike(
            "full batches", self.given(made(drop_last=True)), full
        )

    def workers(self) -> str | None:
        """Judge three epochs of four workers that stay."""
        with warnings.catch_warnings():
            # They are more than this machine has cores, perhaps.
            warnings.simplefilter("ignore")
            loader = self.data.DataLoader(
                seeded_items.Numbers(self.values), batch_size=3, num_workers=4, persistent_workers=True
            )
            epochs = [self.given(loader) for _ in range(3)]
        differences = (seeded_items.alike(f"epoch {epoch}", actual, self.values) for epoch, actual in enumerate(epochs))
        return next((wrong for wrong in differences if wrong), None)

    def unordered(self) -> str | None:
        """Judge that no item is lost where batches may come in any order."""
        if "in_order" not in inspect.signature(self.data.DataLoader.__init__).parameters:
            message = f"the DataLoader of torch {self.torch.__version__} takes no in_order"
            raise promise_cases.AbsentFeature(message)
        loader = self.data.DataLoader(
            seeded_items.Numbers(self.values), batch_size=3, num_workers=_WORKERS, in_order=False
        )
        return seeded_items.alike("items", sorted(self.given(loader)), sorted(self.values))

    def raised(self) -> str | None:
        """Judge that an item which cannot be read raises its own exception, and that no other batch is lost."""
        whole = [self.values[first : first + 4] for first in range(0, len(self.values), 4)]
        right = [batch for number, batch in enumerate(whole) if number != FATAL // 4]
        for workers in (0, _WORKERS):
            texts, actual = list[str](), []
            batches = iter(self.data.DataLoader(BrokenDataset(self.values), batch_size=4, num_workers=workers))
            # Read to its end: workers that are left waiting take seconds to end.
            while len(texts) < len(whole):
                try:
                    actual.append(next(batches).tolist())
                except StopIteration:  # noqa: PERF203 (each batch may raise)
                    break
                except KeyError as error:
                    texts.append(str(error))
            if len(texts) != 1 or str(FATAL) not in texts[0]:
                return (
                    f"with {workers} workers it is raised {len(texts)} times: {texts[:1]}; {len(actual)} batches came"
                )
            wrong = seeded_items.alike(f"with {workers} workers the other batches", actual, right)
            if wrong:
                return wrong
        return None

    def numpy(self) -> str | None:
        """Judge arrays and numbers of NumPy, where it is installed, by value and dtype."""
        if importlib.util.find_spec("numpy") is None:
            message = "NumPy is not installed"
            raise promise_cases.AbsentFeature(message)
        numpy, differing = importlib.import_module("numpy"), []
        for dtype in ("float32", "float64", "int64", "uint8"):
            array = numpy.array([value % 200 for value in self.values[:6]], dtype=dtype).reshape(2, 3)
            batch = self.data.default_collate([array, array + 1])
            alone = self.data.default_collate([array[0, 0], array[1, 1]])
            differing += [(str(batch.dtype), batch.tolist()), (str(alone.dtype), alone.tolist())]
            plain = array.tolist()
            right = (f"torch.{dtype}", [plain, [[x + 1 for x in row] for row in plain]])
            wrong = seeded_items.alike(dtype, differing[-2:], [right, (f"torch.{dtype}", [plain[0][0], plain[1][1]])])
            converted = self.data.default_convert({"x": array})["x"]
            wrong = wrong or seeded_items.alike(f"a converted {dtype}", converted.tolist(), plain)
            if wrong:
                return wrong
        return None

    def types(self) -> str | None:
        """Judge what becomes of numbers, truth values, bytes, named tuples and None in a list."""
        torch = self.torch
        batch = self.data.default_collate([Point(x=0.5, y=True), Point(x=0.25, y=False)])
        rows = self.data.default_collate([torch.tensor([1, 2]), torch.tensor([3, 4])])
        actual = [type(batch).__name__, str(batch.x.dtype), batch.x.tolist(), batch.y.tolist()]
        actual += [rows.tolist(), self.data.default_collate([b"a", b"b"]), self.data.default_convert("text")]
        right = ["Point", "torch.float64", [0.5, 0.25], [True, False], [[1, 2], [3, 4]], [b"a", b"b"], "text"]
        return seeded_items.alike("a batch", actual, right)
