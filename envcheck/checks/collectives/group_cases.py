"""Collectives of a group that is not all ranks, waited for at once or later, and of other shapes and types.

The cases of `collective_cases` run again inside a group: ranks are counted within it, and those outside hold a tensor
that nobody may touch.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from envcheck.checks.collectives import case_tensors
from envcheck.checks.collectives.case_tensors import Bench, CollectiveCase, Part, Setting

Call = Callable[[Bench], list[Part]]
WAYS = ("in a group", "in a group, waited for later")
SHAPED = "tensors of other shapes"
TYPED = "tensors of other types"
# Where the root, or the other rank, stands among the arguments.
_PLACES = {"reduce": 1, "broadcast": 1, "scatter": 2, "gather": 2, "send": 1, "recv": 1}
_POINT_TO_POINT = ("send", "recv")
_GROUPS: dict[Any, Any] = {}


class Team:
    """torch.distributed as the ranks of one group see it: numbered within the group, waited for at once or later."""

    def __init__(self, dist: Any, ranks: Sequence[int], group: Any, *, later: bool) -> None:
        self.dist, self.ranks, self.group, self.later = dist, list(ranks), group, later
        self.ReduceOp, self.isend, self.irecv = dist.ReduceOp, dist.isend, dist.irecv
        self.batch_isend_irecv = dist.batch_isend_irecv

    def P2POp(self, call: Any, tensor: Any, other: int) -> Any:  # noqa: N802 (as torch names it)
        """Return one message to or from a rank of the group."""
        return self.dist.P2POp(call, tensor, self.ranks[other], self.group)

    def __getattr__(self, name: str) -> Any:
        """Return the collective of that name."""
        return partial(self._call, name)

    def _call(self, name: str, *given: Any, **options: Any) -> Any:
        arguments = list(given)
        if name in _PLACES:
            arguments[_PLACES[name]] = self.ranks[arguments[_PLACES[name]]]
        if name in _POINT_TO_POINT:
            result = getattr(self.dist, name)(*arguments, group=self.group, **options)
            return result if result is None else self.ranks.index(result)
        work = getattr(self.dist, name)(*arguments, group=self.group, async_op=self.later, **options)
        if self.later:
            work.wait()
        return None


def group(setting: Setting, ranks: Sequence[int]) -> Any:
    """Return the group of these ranks; every rank has to ask for the same groups in the same order."""
    key = (id(setting.dist), setting.seed, tuple(ranks))
    if key not in _GROUPS:
        _GROUPS[key] = setting.dist.new_group(list(ranks))
    return _GROUPS[key]


def team(setting: Setting, turn: int) -> list[int]:
    """Return the ranks of a turn's group: all but one, another one in each of two turns; of two ranks, both."""
    every = [*range(setting.rank.world)]
    if len(every) <= 2:  # noqa: PLR2004 (a group of one sends nothing)
        return every
    out = random.Random(f"{setting.seed} outside").sample(every, 2)  # noqa: S311 (test data, no secret)
    return [rank for rank in every if rank != out[turn % 2]]


def within(call: Call, bench: Bench, *, later: bool) -> list[Part]:
    """Run a case of all ranks in two groups at once, so that a group that is ignored gives something else."""
    setting, mine = bench.setting, bench.mine
    most = team(setting, bench.case.turn)
    teams = [most, [rank for rank in range(bench.world) if rank not in most]]
    groups = [group(setting, ranks) for ranks in teams if ranks]
    ranks, ours = teams[mine not in most], groups[mine not in most]
    outside = bench.tensor(bench.given(mine, 9))
    parts: list[Part] = []
    # A rank that is alone has nobody to send to.
    if len(ranks) > 1 or not any(word in bench.case.collective for word in _POINT_TO_POINT):
        dist = Team(setting.dist, ranks, ours, later=later)
        rank = dataclasses.replace(setting.rank, rank=ranks.index(mine), world=len(ranks))
        parts = [
            (f"{which} in the group of ranks {ranks}".strip(), received, right)
            for which, received, right in call(Bench(setting._replace(dist=dist, rank=rank), bench.case))
        ]
    numbers = [ranks.index(mine), len(ranks), *(ranks if hasattr(setting.dist, "get_global_rank") else [])]
    parts.append(("the numbers of the ranks", _numbers(setting.dist, ours), numbers))
    return [*parts, ("a tensor of nobody's", outside.tolist(), bench.given(mine, 9))]


def _numbers(dist: Any, ours: Any) -> list[int]:
    size = dist.get_world_size(ours)
    # Since 2.0; before, there was a private one.
    every = [dist.get_global_rank(ours, place) for place in range(size)] if hasattr(dist, "get_global_rank") else []
    return [dist.get_rank(ours), size, *every]


def cases(setting: Setting, collectives: Sequence[str], reducing: Sequence[str]) -> Iterator[CollectiveCase]:
    """Yield two cases of each collective in each way, of types and operations from the seed."""
    chance = random.Random(f"{setting.seed} groups")  # noqa: S311 (test data, no secret)
    for collective in collectives:
        operations = ("sum", "max") if collective in reducing else ("",)
        pairs = [
            (operation, dtype) for operation in operations for dtype in ("float32", "bfloat16", "int64", "float64")
        ]
        fitting = [pair for pair in pairs if case_tensors.fits(setting.rank.backend, *pair, setting.rank.world)]
        for way in WAYS:
            for turn in range(2):
                operation, dtype = chance.choice(fitting)
                size = chance.choice((1, chance.randrange(3, case_tensors.ODD, 2), case_tensors.MIDDLE))
                yield CollectiveCase(f"{collective} {way}", operation, dtype, size, turn)


def calls(plain: dict[str, Call]) -> dict[str, Call]:
    """Return what runs each of some collectives in each way."""
    return {
        f"{name} {way}": partial(within, call, later=way == WAYS[1]) for name, call in plain.items() for way in WAYS
    }


def shapes(b: Bench) -> list[Part]:
    """Reduce and broadcast a tensor of no dimension, one of two and one of four."""
    parts: list[Part] = []
    values, right = b.given(b.mine), b.reduced()
    for shape in ((), (b.case.size, 1), (1, 1, b.case.size, 1)):
        count = b.case.size if shape else 1
        for operation in ("all-reduce", "broadcast"):
            tensor = b.tensor(values[:count]).reshape(shape)
            if operation == "all-reduce":
                b.setting.dist.all_reduce(tensor, op=b.operation)
            else:
                b.setting.dist.broadcast(tensor, b.root)
            due = right[:count] if operation == "all-reduce" else b.given(b.root)[:count]
            parts.append((f"{operation} of shape {shape}", tensor.flatten().tolist(), due))
            parts.append((f"the shape after {operation}", list(tensor.shape), list(shape)))
    return parts


def types(b: Bench) -> list[Part]:
    """Add complex numbers; broadcast and gather truth values."""
    torch, dist = b.setting.torch, b.setting.dist
    ones = [value % 2 for value in b.given(b.mine)]
    truth = torch.tensor(ones, dtype=torch.bool).to(b.setting.device)
    received = [torch.zeros_like(truth) for _ in range(b.world)]
    dist.all_gather(received, truth)
    every = [[value % 2 for value in b.given(rank)] for rank in range(b.world)]
    parts: list[Part] = [
        (f"truth values from rank {r}", block.int().tolist(), every[r]) for r, block in enumerate(received)
    ]
    dist.broadcast(truth, b.root)
    parts.append((f"truth values from root {b.root}", truth.int().tolist(), every[b.root]))
    pairs = [b.given(b.mine), b.given(b.mine, 1)]
    added = torch.complex(*(torch.tensor([float(v) for v in part]) for part in pairs)).to(b.setting.device)
    dist.all_reduce(added)
    due = [complex(one, other) for one, other in zip(b.reduced(), b.reduced(1))]
    return [*parts, ("complex numbers", added.tolist(), due)]


OTHERS: dict[str, Call] = {SHAPED: shapes, TYPED: types}
FITTING = {SHAPED: ("float32", "int64"), TYPED: ("float32",)}
