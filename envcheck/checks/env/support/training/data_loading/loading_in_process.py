"""What a DataLoader without workers hands on, compared with a seed's numbers in plain Python."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from envcheck.checks.env.support.training import plain_math, promise_cases

# No multiple of the batch, so that the last one is short.
ITEMS, BATCH, WIDTH = 23, 4, 5


class Rows:
    """Items of several types: item i holds row i of a seed's numbers, and its own number."""

    def __init__(self, torch: Any, seed: int) -> None:
        self.torch, self.rows = torch, plain_math.rows(plain_math.values(f"{seed} rows", ITEMS * WIDTH), WIDTH)

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> Any:
        row = self.rows[index]
        return {"row": self.torch.tensor(row), "pair": (index, row[0]), "name": str(index)}


def tries(torch: Any, seed: int) -> dict[str, Callable[[], str | None]]:
    """Return by name what is tried; each returns what is wrong, or None."""
    data = Rows(torch, seed)
    subset = random.Random(f"{seed} subset").sample(range(ITEMS), 10)  # noqa: S311 (test data, no secret)
    batches = [subset[:1], subset[1:6], subset[6:]]
    whole, load = [*range(ITEMS)], torch.utils.data.DataLoader
    return {
        "in order": partial(_right, data, load(data, batch_size=BATCH), cut(whole)),
        "in order, a second time": lambda: _second_epoch(data, load(data, batch_size=BATCH)),
        "last batch dropped": partial(_right, data, load(data, batch_size=BATCH, drop_last=True), cut(whole)[:-1]),
        "by default one by one": partial(_right, data, load(data), cut(whole, 1)),
        "by a sampler": partial(_right, data, load(data, batch_size=BATCH, sampler=subset), cut(subset)),
        "by batches of a sampler's own": partial(_right, data, load(data, batch_sampler=batches), batches),
        "shuffled": lambda: _shuffled(data, load(data, batch_size=BATCH, shuffle=True)),
        "shuffled, last batch dropped": lambda: _shuffled(
            data, load(data, batch_size=BATCH, shuffle=True, drop_last=True)
        ),
    }


def cut(places: list[int], size: int = BATCH) -> list[list[int]]:
    """Return places in batches."""
    return [places[first : first + size] for first in range(0, len(places), size)]


def run(torch: Any, seed: int) -> dict[str, Any]:
    """Try each; return how many there were, and the first thing that is wrong in each that is not right."""
    results = {name: _tried(case) for name, case in tries(torch, seed).items()}
    return {
        "tried": len(results),
        "wrong": [f"{name}: {difference}" for name, difference in results.items() if difference],
    }


def _tried(case: Callable[[], str | None]) -> str | None:
    try:
        return case()
    except Exception as error:  # noqa: BLE001 (whatever ends an epoch here is a finding)
        return f"raised {promise_cases.quoted(error)}"


def _right(data: Rows, loader: Any, due: list[list[int]]) -> str | None:
    """Compare every batch, and how many there are."""
    batches = list(loader)
    if (len(batches), len(loader)) != (len(due), len(due)):
        return f"{len(batches)} batches arrived and {len(loader)} were announced, {len(due)} were due"
    for number, (batch, places) in enumerate(zip(batches, due)):
        rows = [data.rows[place] for place in places]
        parts = {
            "tensors": (batch["row"].tolist(), rows),
            "whole numbers": (batch["pair"][0].tolist(), places),
            "floats": (batch["pair"][1].tolist(), [row[0] for row in rows]),
            "texts": (list(batch["name"]), [str(place) for place in places]),
        }
        for part, (actual, right) in parts.items():
            if actual != right:
                return f"the {part} of batch {number} are {str(actual)[:80]}, not {str(right)[:80]}"
    return None


def _second_epoch(data: Rows, loader: Any) -> str | None:
    list(loader)
    return _right(data, loader, cut([*range(ITEMS)]))


def _shuffled(data: Rows, loader: Any) -> str | None:
    """Count the samples of an epoch, and hold each batch against the rows that its numbers name."""
    batches = list(loader)
    places = [batch["pair"][0].tolist() for batch in batches]
    sizes = [len(batch) for batch in places]
    due = [len(batch) for batch in cut([*range(ITEMS)]) if len(batch) == BATCH or not loader.drop_last]
    places_seen = sorted(place for batch in places for place in batch)
    if sizes != due or len(set(places_seen)) != sum(due) or not set(places_seen) <= {*range(ITEMS)}:
        return f"batches of {sizes} with {len(set(places_seen))} different samples arrived, not batches of {due}"
    return _right(data, _EarlierBatches(batches), places)


class _EarlierBatches:
    """Batches that came, read once more."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Any:
        return iter(self.batches)
