"""Collectives timed over message sizes: what each sends, whether it came, and how long it took; without any verdict.

S, a message's size, is its total bytes over all ranks' parts, as NVIDIA/nccl-tests counts (doc/PERFORMANCE.md). Every
block says in fp32, exactly, who sent it and which block it is; the pattern is another one in each turn, and every
message is verified on its device, outside the timed part.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from envcheck.checks import Measured, Rank
from envcheck.checks.support import exact_data, process_group

MIB = 1 << 20
# 8 B to 32 KiB show latency, from 1 MiB on the curve rises; a GPU needs 1 GB to reach its plateau.
SMALL = (8, 512, 4096, 32768)
SIZES = {"cuda": [MIB << shift for shift in (0, 2, 4, 6, 8, 10, 12)], "cpu": [MIB << shift for shift in (0, 2, 4)]}
WARMUP = {"cuda": 4, "cpu": 3}
# How often one size is timed: as often as fits, within these bounds. Over PCIe, 4 GiB take most of a second.
FEWEST, MOST, BUDGET = 5, 20, {"cuda": 1.0, "cpu": 0.2}
SMALL_ITERATIONS = {"cuda": 200, "cpu": 25}
FREE_SHARE = 0.25
# Floats written or compared at once; what a message needs besides itself is three times that.
PIECE = {"cuda": 1 << 24, "cpu": 1 << 18}
# A prime, so that no chunk that a collective cuts looks like another one.
_PERIOD, _TAG, _EXACT = 1021, 1024, 1 << 23
# From one turn to the next the pattern moves on by so much.
_STRIDE = 389
_SPOTS = 4

Expected = tuple[int, int]  # of one block: how many ranks' were added, and the sum of their tags


class Parts(NamedTuple):
    """What one rank sends and has to get: a tag for each block sent, and what each block it gets must hold."""

    sent: list[int]
    got: list[Expected]


def parts(name: str, rank: int, world: int) -> Parts:
    """Return what `rank` sends and gets in the collective of this name."""
    every, most = range(world), max(1, _EXACT // _TAG // world)

    def tag(sender: int, block: int) -> int:
        return (sender * world + block) % most

    mine = [tag(rank, block) for block in every]
    sums = [(world, sum(tag(r, block) for r in every)) for block in every]
    before = (rank - 1) % world
    return {
        "all-reduce": Parts(mine, sums),
        "all-gather": Parts(mine[:1], [(1, tag(r, 0)) for r in every]),
        "reduce-scatter": Parts(mine, [sums[rank]]),
        "all-to-all": Parts(mine, [(1, tag(r, rank)) for r in every]),
        "broadcast": Parts(mine, [(1, tag(0, block)) for block in every]),
        "send/recv": Parts(mine, [(1, tag(before, block)) for block in every]),
    }[name]


def around(dist: Any, rank: Rank, sent: Any, received: Any, distance: int = 1) -> None:
    """Send to the rank at a distance and receive from the one as far before; at 1, as nccl-tests' sendrecv does."""
    after, before = (rank.rank + distance) % rank.world, (rank.rank - distance) % rank.world
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, received, before)]):
        work.wait()


CALLS: dict[str, Callable[[Any, Rank, Any, Any], Any]] = {
    "all-reduce": lambda dist, _rank, _sent, output: dist.all_reduce(output),
    "all-gather": lambda dist, _rank, sent, output: dist.all_gather_into_tensor(output, sent),
    "reduce-scatter": lambda dist, _rank, sent, output: dist.reduce_scatter_tensor(output, sent),
    "all-to-all": lambda dist, _rank, sent, output: dist.all_to_all_single(output, sent),
    "broadcast": lambda dist, _rank, _sent, output: dist.broadcast(output, 0),
    "send/recv": around,
}
IN_PLACE = ("all-reduce", "broadcast")


class Message:
    """A collective that runs turn after turn on its tensors, of `size` bytes in all, rounded up to a float a rank.

    Each turn is `fill`, `run`, `verify`; none of them waits for the device. `verdict` does, at the end.
    """

    def __init__(self, torch: Any, dist: Any, rank: Rank, device: Any, name: str, size: int) -> None:
        count = max(1, size // 4 // rank.world)
        self.torch, self.parts, self.count = torch, parts(name, rank.rank, rank.world), count
        self.size, self.turn = count * rank.world * 4, 0
        blocks = len(self.parts.sent), len(self.parts.got)
        self.sent = torch.zeros(count * blocks[0], dtype=torch.float32, device=device)
        self.got = self.sent if name in IN_PLACE else torch.zeros(count * blocks[1], dtype=torch.float32, device=device)
        self.width = min(count, max(1, PIECE[device.type] // max(blocks)))
        index = torch.arange(self.width + _PERIOD, device=device)
        self.pattern = (index - torch.div(index, _PERIOD, rounding_mode="floor") * _PERIOD).to(torch.float32)
        tags = [[tag * _TAG] for tag in self.parts.sent], [[tags * _TAG] for _, tags in self.parts.got]
        self.sent_tags, self.got_tags = (torch.tensor(block, dtype=torch.float32, device=device) for block in tags)
        chance = random.Random(f"{name} {size}")  # noqa: S311 (test data, no secret)
        self.where = sorted({0, self.got.numel() - 1, *(chance.randrange(self.got.numel()) for _ in range(_SPOTS))})
        self.index = torch.tensor(self.where, device=device)
        self.wrong: list[Any] = []
        self.spots: list[Any] = []
        self.run: Callable[[], Any] = lambda: CALLS[name](dist, rank, self.sent, self.got)

    def shift(self, turn: int) -> int:
        """Return by how many places the pattern of this turn is moved on."""
        return (turn * _STRIDE + 1) % _PERIOD

    def _pieces(self, tensor: Any) -> Any:
        """Yield (a part of every block as one matrix, the pattern that belongs there)."""
        rows = tensor.view(-1, self.count)
        for start in range(0, self.count, self.width):
            piece = rows[:, start : start + self.width]
            at = (start + self.shift(self.turn)) % _PERIOD
            yield piece, self.pattern[at : at + piece.shape[1]]

    def fill(self) -> None:
        """Write what this turn sends."""
        for piece, pattern in self._pieces(self.sent):
            self.torch.add(pattern, self.sent_tags, out=piece)

    def verify(self) -> None:
        """Count what of this turn's message is not what it has to be, and go on to the next turn."""
        ranks, total = self.parts.got[0][0], self.torch.zeros((), dtype=self.torch.int64, device=self.got.device)
        for piece, pattern in self._pieces(self.got):
            total += exact_data.differing(self.torch, piece, pattern * ranks + self.got_tags)
        self.wrong.append(total)
        self.spots.append(self.got.index_select(0, self.index))
        self.turn += 1

    def verdict(self) -> Measured:
        """Return {right, messages, wrong (how many were not right in every bit), first (the first of these)}."""
        bad = [
            turn
            for turn, (total, spots) in enumerate(zip(self.wrong, self.spots))
            if int(total) != 0 or spots.tolist() != [self._expected(turn, place) for place in self.where]
        ]
        return {"right": not bad, "messages": self.turn, "wrong": len(bad), "first": bad[0] if bad else None}

    def _expected(self, turn: int, place: int) -> float:
        (ranks, tags), at = self.parts.got[place // self.count], place % self.count
        return float((at + self.shift(turn)) % _PERIOD * ranks + tags * _TAG)


def curves(torch: Any, dist: Any, rank: Rank, device: Any, names: Sequence[str]) -> Measured:
    """Time each collective: {curves, latency, unsupported}, by name; what gloo does not have is `unsupported`.

    A curve's point is {bytes, seconds (median)}, a latency's {bytes, p50, p99 (seconds)}, as this rank saw them; each
    has what became of its messages besides: {right, messages, wrong, first}.
    """
    measured: Measured = {"curves": {}, "latency": {}, "unsupported": {}}
    for name in names if rank.world > 1 else ():
        try:
            latency = [_small(torch, dist, rank, device, name, size) for size in SMALL]
        except (RuntimeError, ValueError, NotImplementedError) as error:
            if not process_group.gloo_lacks(rank.backend, error):
                raise
            measured["unsupported"][name] = process_group.quoted(error)
            continue
        measured["latency"][name] = latency
        sizes = _sizes(torch, dist, device, name)
        measured["curves"][name] = [_large(torch, dist, rank, device, name, size) for size in sizes]
    return measured


def least(torch: Any, dist: Any, device: Any, value: int) -> int:
    """Return the least `value` of all ranks, so that each goes on with the same."""
    tensor = torch.tensor([value], dtype=torch.int64, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MIN)
    return int(tensor)


def _sizes(torch: Any, dist: Any, device: Any, name: str) -> list[int]:
    """Return the sizes, the same on every rank: none takes over a quarter of the memory that the fullest GPU has."""
    if device.type != "cuda":
        return SIZES["cpu"]
    free = least(torch, dist, device, int(torch.cuda.mem_get_info(device)[0]))
    held = 1 if name in IN_PLACE else 2
    return [size for size in SIZES["cuda"] if size * held <= free * FREE_SHARE]


def _large(torch: Any, dist: Any, rank: Rank, device: Any, name: str, size: int) -> Measured:
    made = Message(torch, dist, rank, device, name, size)
    kind = device.type
    first = max(timed(torch, dist, made, device, WARMUP[kind])[-1], 1e-9)
    # The reduction itself may be what is wrong; then the verdict on the message says so.
    often = min(MOST, max(FEWEST, least(torch, dist, device, int(min(MOST, BUDGET[kind] / first)))))
    seconds = statistics.median(timed(torch, dist, made, device, often))
    point = {"bytes": made.size, "seconds": seconds, **made.verdict()}
    # The next size is four times as large: give this one's memory back first.
    del made
    if kind == "cuda":
        torch.cuda.empty_cache()
    return point


def _small(torch: Any, dist: Any, rank: Rank, device: Any, name: str, size: int) -> Measured:
    made = Message(torch, dist, rank, device, name, size)
    timed(torch, dist, made, device, WARMUP[device.type])
    waited = timed(torch, dist, made, device, SMALL_ITERATIONS[device.type], in_step=True)
    return {"bytes": made.size, "p50": percentile(waited, 0.5), "p99": percentile(waited, 0.99), **made.verdict()}


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` of them do not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def timed(torch: Any, dist: Any, made: Message, device: Any, turns: int, *, in_step: bool = False) -> list[float]:
    """Return each turn's seconds; ranks meet before each on a CPU and `in_step`; a GPU's queue keeps step."""
    gpu = device.type == "cuda"
    marks = []
    for _ in range(turns):
        made.fill()
        if in_step or not gpu:
            dist.barrier()
        start = _mark(torch, gpu=gpu)
        made.run()
        marks.append((start, _mark(torch, gpu=gpu)))
        made.verify()
    if gpu:
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1000 for start, end in marks]
    return [end - start for start, end in marks]


def _mark(torch: Any, *, gpu: bool) -> Any:
    if not gpu:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
