"""The cases of `collectives`: every collective in every operation and dtype, and what has to arrive from plain Python.

Integers that a dtype holds exactly are moved and combined. A case runs on all ranks alike and returns its parts:
(which, what arrived, what has to be there), as lists.
"""

from __future__ import annotations

import array
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from envcheck.checks import Rank

# The largest integer up to which all are exact: 2^(significand's bits) (IEEE 754-2019, table 3.5), or the type's own.
EXACT = {
    "float64": 1 << 53,
    "float32": 1 << 24,
    "float16": 1 << 11,
    "bfloat16": 1 << 8,
    "int32": (1 << 31) - 1,
    "int64": (1 << 63) - 1,
    "uint8": 255,
    "int8": 127,
}
FLOATS = ("float64", "float32", "float16", "bfloat16")
OPERATIONS: dict[str, Callable[[Sequence[int]], int]] = {
    "sum": sum,
    "min": min,
    "max": max,
    "product": math.prod,
    "average": lambda column: sum(column) // len(column),
}
# So many ranks at most have a factor other than 1 or -1 in one place, so that the product stays exact.
_FACTORS = 5
# Beyond where NCCL changes from its latency protocols to Simple; `all-reduce` and the bandwidth checks go far beyond.
LARGE = {"cuda": (1 << 17) + 3, "cpu": (1 << 14) + 3}
MIDDLE, ODD = 2039, 257
Part = tuple[str, list[Any], list[Any]]
_GROUPS: dict[Any, Any] = {}


class Kind(NamedTuple):
    """What is done to integers of a dtype by a group of so many ranks; `operation` is "" where they are only moved."""

    operation: str
    dtype: str
    world: int


def bound(kind: Kind) -> int:
    """Return up to which size a rank's integers may be, so that every partial result is exact; 0 where none may."""
    most = EXACT[kind.dtype]
    if kind.operation == "product":
        root = int(float(most) ** (1 / _FACTORS))
        return root if root**_FACTORS <= most else root - 1
    return most // {"sum": kind.world, "average": kind.world**2}.get(kind.operation, 1)


def integers(seed: str, kind: Kind, rank: int, count: int) -> list[int]:
    """Return a rank's integers, over all that the dtype holds exactly; for an average multiples of the world."""
    largest, signed = bound(kind), kind.dtype != "uint8"
    chance = random.Random(f"{seed}/{rank}")  # noqa: S311 (test data, no secret)
    raw = array.array("Q", chance.getrandbits(64 * count).to_bytes(8 * count, "little"))
    if kind.operation == "product":
        free = ((rank + place) % kind.world < _FACTORS for place in range(count))
        signs = (1, -1) if signed else (1, 1)
        return [(1 + (word >> 1) % largest if big else 1) * signs[word & 1] for word, big in zip(raw, free)]
    low, width = (-largest, 2 * largest + 1) if signed else (0, largest + 1)
    step = kind.world if kind.operation == "average" else 1
    return [(word % width + low) * step for word in raw]


def reduced(kind: Kind, vectors: Sequence[Sequence[int]]) -> list[int]:
    """Return place by place what the operation makes of the ranks' integers."""
    return [OPERATIONS[kind.operation](column) for column in zip(*vectors)]


def slack(kind: Kind) -> float:
    """Return by how much a result may differ: an average of floats by n + 2 roundings (ncclAvg, NCCL user guide)."""
    if kind.operation != "average" or kind.dtype not in FLOATS or kind.world & (kind.world - 1) == 0:
        return 0.0
    return (kind.world + 2) * bound(kind) * kind.world / EXACT[kind.dtype]


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


class Bench:
    """A case on a setting: what each rank gives, as integers and as tensors; each rank in turn is the root."""

    def __init__(self, setting: Setting, case: CollectiveCase) -> None:
        self.setting, self.case, self.dist = setting, case, setting.dist
        self.world, self.mine = setting.rank.world, setting.rank.rank
        self.root, self.kind = case.turn % self.world, Kind(case.operation, case.dtype, self.world)

    @property
    def operation(self) -> Any:
        """The operation as torch names it."""
        return getattr(self.dist.ReduceOp, {"average": "AVG"}.get(self.case.operation, self.case.operation.upper()))

    def given(self, rank: int, block: int = 0, count: int | None = None) -> list[int]:
        """Return what `rank` gives, in one of its blocks."""
        size = self.case.size if count is None else count
        return integers(f"{self.setting.seed}/{self.case.name()}/{block}", self.kind, rank, size)

    def tensor(self, values: list[int]) -> Any:
        """Return integers as a tensor of the case's dtype on the rank's device."""
        torch = self.setting.torch
        return torch.tensor(values, dtype=getattr(torch, self.case.dtype)).to(self.setting.device)

    def empty(self, count: int | None = None) -> Any:
        """Return a tensor to receive into, full of ones."""
        return self.tensor([1] * (self.case.size if count is None else count))

    def own(self) -> Any:
        """Return what this rank gives, as a tensor."""
        return self.tensor(self.given(self.mine))

    def blocks(self, rank: int) -> list[Any]:
        """Return what `rank` gives to each rank, as tensors."""
        return [self.tensor(self.given(rank, block)) for block in range(self.world)]

    def reduced(self, block: int = 0) -> list[int]:
        """Return what the operation makes of what all ranks give in a block."""
        return reduced(self.kind, [self.given(rank, block) for rank in range(self.world)])


def fits(backend: str, collective: str, kind: Kind) -> bool:
    """Return whether a backend has it; gloo of 2.3 to 2.8 only adds in a reduce-scatter (pytorch/pytorch#162338)."""
    if backend == "gloo" and collective == "reduce-scatter" and kind.operation != "sum":
        return False
    if backend == "gloo" and kind.operation == "average" and kind.dtype not in FLOATS:
        return False
    return bound(kind) > 0


def cases(setting: Setting) -> Iterator[CollectiveCase]:
    """Yield every case, the same on all ranks: each dtype and operation, each root, sizes from the seed."""
    chance, rank = random.Random(setting.seed), setting.rank  # noqa: S311 (test data, no secret)
    for collective in REDUCING:
        pairs = [*itertools.product(OPERATIONS, EXACT)]
        chance.shuffle(pairs)
        fitting = [pair for pair in pairs if fits(rank.backend, collective, Kind(*pair, rank.world))]
        yield from _sized(chance, collective, fitting, setting)
    for collective in MOVING:
        dtypes = [*EXACT]
        chance.shuffle(dtypes)
        yield from _sized(chance, collective, [("", dtype) for dtype in dtypes], setting)
    yield from _sized(chance, SUBGROUPS, [("sum", dtype) for dtype in ("float32", "int64", "int32")], setting)
    for index, dtype in itertools.product(range(rank.world), ("float32", "float16")):
        yield CollectiveCase(SPECIAL, "sum", dtype, 4, index)


def _sized(
    chance: random.Random, collective: str, pairs: list[tuple[str, str]], setting: Setting
) -> Iterator[CollectiveCase]:
    """Yield a case for each pair, at least one for each rank as the root: one large, the others of one element up."""
    world = setting.rank.world
    most = LARGE[setting.device.type] // world
    for index in range(max(len(pairs), world)):
        sizes = (1, chance.randrange(3, ODD, 2), world * chance.randrange(1, ODD) + 1, chance.randrange(ODD, MIDDLE))
        operation, dtype = pairs[index % len(pairs)]
        yield CollectiveCase(collective, operation, dtype, sizes[index % len(sizes)] if index else most, index)


def _all_reduce(b: Bench) -> list[Part]:
    tensor = b.own()
    b.dist.all_reduce(tensor, op=b.operation)
    return [("", tensor.tolist(), b.reduced())]


def _reduce(b: Bench) -> list[Part]:
    tensor = b.own()
    b.dist.reduce(tensor, b.root, op=b.operation)
    return [(f"to root {b.root}", tensor.tolist(), b.reduced())] if b.mine == b.root else []


def _reduce_scatter(b: Bench) -> list[Part]:
    received = b.empty()
    b.dist.reduce_scatter(received, b.blocks(b.mine), op=b.operation)
    return [("", received.tolist(), b.reduced(b.mine))]


def _broadcast(b: Bench) -> list[Part]:
    tensor = b.own()
    b.dist.broadcast(tensor, b.root)
    return [(f"from root {b.root}", tensor.tolist(), b.given(b.root))]


def _scatter(b: Bench) -> list[Part]:
    received = b.empty()
    b.dist.scatter(received, b.blocks(b.root) if b.mine == b.root else None, b.root)
    return [(f"from root {b.root}", received.tolist(), b.given(b.root, b.mine))]


def _gather(b: Bench) -> list[Part]:
    received = [b.empty() for _ in range(b.world)] if b.mine == b.root else None
    b.dist.gather(b.own(), received, b.root)
    return [(f"at root {b.root} from rank {r}", one.tolist(), b.given(r)) for r, one in enumerate(received or [])]


def _all_gather(b: Bench) -> list[Part]:
    received = [b.empty() for _ in range(b.world)]
    b.dist.all_gather(received, b.own())
    return [(f"from rank {r}", one.tolist(), b.given(r)) for r, one in enumerate(received)]


def _all_to_all(b: Bench) -> list[Part]:
    """Have each rank give another count to each other one; some give nothing."""

    def size(sender: int, receiver: int) -> int:
        return b.case.size * ((sender + 2 * receiver + b.case.turn) % 4)

    out, into = ([size(b.mine, r) for r in range(b.world)], [size(r, b.mine) for r in range(b.world)])
    sent = b.tensor([*itertools.chain(*(b.given(b.mine, r, count) for r, count in enumerate(out)))])
    received = b.empty(sum(into))
    b.dist.all_to_all_single(received, sent, into, out)
    return [
        (f"from rank {r}", block.tolist(), b.given(r, b.mine, count))
        for (r, count), block in zip(enumerate(into), received.split(into))
    ]


def _send_recv(b: Bench) -> list[Part]:
    """Send to the rank at a distance, each distance in turn, so that every pair is used both ways."""
    distance, dist, received = 1 + b.case.turn % (b.world - 1), b.dist, b.empty()
    to, source = (b.mine + distance) % b.world, (b.mine - distance) % b.world
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, b.own(), to), dist.P2POp(dist.irecv, received, source)]):
        work.wait()
    return [(f"from rank {source}", received.tolist(), b.given(source))]


def _special_values(b: Bench) -> list[Part]:
    """Add infinities and NaN of one rank: a gradient scaler sees an overflow anywhere only if they arrive."""
    special = [float("inf"), float("-inf"), float("nan"), 1.0]
    torch, given = b.setting.torch, special if b.mine == b.root else [1.0] * len(special)
    tensor = torch.tensor(given, dtype=getattr(torch, b.case.dtype)).to(b.setting.device)
    b.dist.all_reduce(tensor, op=b.operation)
    # NaN is unlike itself: as text, what arrived can be compared.
    return [(f"of rank {b.root}", [*map(repr, tensor.tolist())], ["inf", "-inf", "nan", repr(float(b.world))])]


def _subgroups(b: Bench) -> list[Part]:
    """Have two groups that no rank shares work at once: neither may have anything of the other."""
    ranks = [*range(b.world)]
    # The first of the ranks in another order is left alone; so are two of five and more.
    random.Random(f"{b.setting.seed}/{b.case.turn}").shuffle(ranks)  # noqa: S311 (test data, no secret)
    alone = 1 if b.world < 5 else 2  # noqa: PLR2004 (as said)
    teams = [sorted(ranks[alone:]), sorted(ranks[:alone])]
    # Every rank has to ask for the same groups in the same order.
    groups = [_group(b.setting, team) for team in teams]
    ours = b.mine not in teams[0]
    team, group, summed = teams[ours], groups[ours], b.own()
    b.dist.all_reduce(summed, group=group)
    gathered = [b.empty() for _ in team]
    b.dist.all_gather(gathered, b.tensor(b.given(b.mine, 1)), group=group)
    moved = b.tensor(b.given(b.mine, 2))
    b.dist.broadcast(moved, team[-1], group=group)
    b.dist.barrier(group=group)
    where = f"in the group of ranks {team}"
    return [
        (f"all-reduce {where}", summed.tolist(), reduced(b.kind, [b.given(rank) for rank in team])),
        *((f"all-gather {where}", one.tolist(), b.given(rank, 1)) for rank, one in zip(team, gathered)),
        (f"broadcast {where}", moved.tolist(), b.given(team[-1], 2)),
    ]


def _group(setting: Setting, ranks: list[int]) -> Any:
    key = (id(setting.dist), *ranks)
    if key not in _GROUPS:
        _GROUPS[key] = setting.dist.new_group(ranks)
    return _GROUPS[key]


Call = Callable[[Bench], list[Part]]
REDUCING: dict[str, Call] = {"all-reduce": _all_reduce, "reduce": _reduce, "reduce-scatter": _reduce_scatter}
MOVING: dict[str, Call] = {
    "broadcast": _broadcast,
    "scatter": _scatter,
    "gather": _gather,
    "all-gather": _all_gather,
    "all-to-all": _all_to_all,
    "send/recv (batch)": _send_recv,
}
SUBGROUPS, SPECIAL = "sub-groups", "all-reduce of inf and NaN"
CALLS = {**REDUCING, **MOVING, SUBGROUPS: _subgroups, SPECIAL: _special_values}
