"""Collectives timed over message sizes: what each sends, whether it came, and how long it took; without any verdict.

S, a message's size, is its total bytes over all ranks' parts, as NVIDIA/nccl-tests counts (doc/PERFORMANCE.md): of an
all-gather what each rank has afterwards, of a reduce-scatter and an all-to-all what each rank gives. Every block of a
message says in fp32, exactly, who sent it and which block it is, and no chunk of it is like its neighbour.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from envcheck.checks import Measured, Rank

MIB = 1 << 20
# 8 B to 32 KiB show latency, from 1 MiB on the curve rises; a GPU needs 1 GB to reach its plateau.
SMALL = (8, 512, 4096, 32768)
SIZES = {"cuda": [MIB << shift for shift in (0, 2, 4, 6, 8, 10, 12)], "cpu": [MIB << shift for shift in (0, 2, 4)]}
WARMUP = {"cuda": 4, "cpu": 3}
# How often one size is timed: as often as fits, within these bounds. Over PCIe, 4 GiB take most of a second.
FEWEST, MOST, BUDGET = 5, 20, {"cuda": 1.0, "cpu": 0.2}
SMALL_ITERATIONS = {"cuda": 200, "cpu": 25}
FREE_SHARE = 0.25
# A prime, so that no chunk that a collective cuts looks like another one.
_PERIOD, _TAG, _EXACT = 1021, 1024, 1 << 23

Expected = tuple[int, int]  # of one block: how many ranks' were added, and the sum of their tags


class Parts(NamedTuple):
    """What one rank sends and has to get: a tag for each block sent, and what each block it gets must hold."""

    sent: list[int]
    got: list[Expected]


class Message(NamedTuple):
    """A collective ready to run again and again on its tensors, of `size` bytes in all."""

    run: Callable[[], None]
    sent: Any
    got: Any
    size: int


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


def around(dist: Any, rank: Rank, sent: Any, got: Any, distance: int = 1) -> None:
    """Send to the rank at a distance and receive from the one as far before; at 1, as nccl-tests' sendrecv does."""
    after, before = (rank.rank + distance) % rank.world, (rank.rank - distance) % rank.world
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, got, before)])
    for work in works:
        work.wait()


CALLS: dict[str, Callable[[Any, Rank, Any, Any], Any]] = {
    "all-reduce": lambda dist, _rank, _sent, got: dist.all_reduce(got),
    "all-gather": lambda dist, _rank, sent, got: dist.all_gather_into_tensor(got, sent),
    "reduce-scatter": lambda dist, _rank, sent, got: dist.reduce_scatter_tensor(got, sent),
    "all-to-all": lambda dist, _rank, sent, got: dist.all_to_all_single(got, sent),
    "broadcast": lambda dist, _rank, _sent, got: dist.broadcast(got, 0),
    "send/recv": around,
}
IN_PLACE = ("all-reduce", "broadcast")


def curves(torch: Any, dist: Any, rank: Rank, device: Any, names: Sequence[str]) -> Measured:
    """Time each collective: {curves, latency, unsupported}, by name; what gloo does not have is `unsupported`.

    A curve's point is {bytes, seconds (median), right}, a latency's {bytes, p50, p99 (seconds)}; as this rank saw them.
    """
    found: Measured = {"curves": {}, "latency": {}, "unsupported": {}}
    for name in names if rank.world > 1 else ():
        lacking = _lacking(torch, dist, rank, device, name)
        if lacking:
            found["unsupported"][name] = lacking
            continue
        found["latency"][name] = [_small(torch, dist, rank, device, name, size) for size in SMALL]
        sizes = _sizes(torch, dist, device, name)
        found["curves"][name] = [_large(torch, dist, rank, device, name, size) for size in sizes]
    return found


def _lacking(torch: Any, dist: Any, rank: Rank, device: Any, name: str) -> str:
    """Return in gloo's words that it does not have this collective; "" where it has."""
    try:
        message(torch, dist, rank, device, name, SMALL[0]).run()
    except (RuntimeError, ValueError) as error:
        if rank.backend != "gloo" or "support" not in str(error):
            raise
        return str(error).splitlines()[0]
    return ""


def _sizes(torch: Any, dist: Any, device: Any, name: str) -> list[int]:
    """Return the sizes, the same on every rank: none takes over a quarter of the memory that the fullest GPU has."""
    if device.type != "cuda":
        return SIZES["cpu"]
    free = torch.tensor(torch.cuda.mem_get_info(device)[0], dtype=torch.int64, device=device)
    dist.all_reduce(free, op=dist.ReduceOp.MIN)
    held = 1 if name in IN_PLACE else 2
    return [size for size in SIZES["cuda"] if size * held <= int(free) * FREE_SHARE]


def message(torch: Any, dist: Any, rank: Rank, device: Any, name: str, size: int) -> Message:
    """Return the collective on fresh tensors; `size` is rounded up to a float for each rank."""
    count = max(1, size // 4 // rank.world)
    wanted = parts(name, rank.rank, rank.world)
    sent = torch.empty(count * len(wanted.sent), dtype=torch.float32, device=device)
    for block, tag in zip(sent.chunk(len(wanted.sent)), wanted.sent):
        block.copy_(_pattern(torch, count, device)).add_(tag * _TAG)
    got = sent if name in IN_PLACE else torch.zeros(count * len(wanted.got), dtype=torch.float32, device=device)
    return Message(lambda: CALLS[name](dist, rank, sent, got), sent, got, count * rank.world * 4)


def arrived(torch: Any, rank: Rank, name: str, got: Any) -> bool:
    """Return whether every element of a message that was just received is the right one."""
    wanted = parts(name, rank.rank, rank.world).got
    blocks = got.chunk(len(wanted))
    pattern = _pattern(torch, len(blocks[0]), got.device)
    return all(bool(torch.equal(block, pattern * ranks + tags * _TAG)) for block, (ranks, tags) in zip(blocks, wanted))


def _pattern(torch: Any, count: int, device: Any) -> Any:
    short = torch.arange(_PERIOD, dtype=torch.float32, device=device)
    return short.repeat(math.ceil(count / _PERIOD))[:count]


def _large(torch: Any, dist: Any, rank: Rank, device: Any, name: str, size: int) -> Measured:
    made = message(torch, dist, rank, device, name, size)
    made.run()
    right = arrived(torch, rank, name, made.got)
    # What is added up over and over in place has to stay a number.
    made.sent.zero_()
    found = {"bytes": made.size, "seconds": statistics.median(times(torch, dist, made.run, device)), "right": right}
    # The next size is four times as large: give this one's memory back first.
    del made
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return found


def _small(torch: Any, dist: Any, rank: Rank, device: Any, name: str, size: int) -> Measured:
    made = message(torch, dist, rank, device, name, size)
    made.sent.zero_()
    for _ in range(WARMUP[device.type]):
        made.run()
    waited = list(_apart(torch, dist, made.run, device))
    return {"bytes": made.size, "p50": percentile(waited, 0.5), "p99": percentile(waited, 0.99)}


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` of them do not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def times(torch: Any, dist: Any, run: Callable[[], None], device: Any) -> list[float]:
    """Return the seconds of each of several runs, back to back, as many as the ranks agree there is time for."""
    for _ in range(WARMUP[device.type]):
        run()
    dist.barrier()
    timed = _events if device.type == "cuda" else _clocked
    first = torch.tensor(timed(torch, run, 1), dtype=torch.float64, device=device)
    dist.all_reduce(first, op=dist.ReduceOp.MAX)
    return timed(torch, run, min(MOST, max(FEWEST, int(BUDGET[device.type] / max(float(first), 1e-9)))))


def _events(torch: Any, run: Callable[[], None], iterations: int) -> list[float]:
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(iterations + 1)]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    torch.cuda.synchronize()
    return [earlier.elapsed_time(later) / 1000 for earlier, later in zip(marks, marks[1:])]


def _clocked(_torch: Any, run: Callable[[], None], iterations: int) -> list[float]:
    marks = [time.perf_counter()]
    for _ in range(iterations):
        run()
        marks.append(time.perf_counter())
    return [later - earlier for earlier, later in zip(marks, marks[1:])]


def _apart(torch: Any, dist: Any, run: Callable[[], None], device: Any) -> Iterator[float]:
    """Yield the seconds of single runs, all ranks in step before each, so that none waits for a late one."""
    timed = _events if device.type == "cuda" else _clocked
    for _ in range(SMALL_ITERATIONS[device.type]):
        dist.barrier()
        yield from timed(torch, run, 1)
