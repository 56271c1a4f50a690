"""One rank of a real gloo group that measures a check again and again, each time under another lie of torch's.

    python lying_ranks.py RANK WORLD DIRECTORY NAME...     leaves DIRECTORY/rankN.json: what was measured, by lie

A lie is a function that changes torch.distributed (and torch) as `rank` sees them; all of it is taken back afterwards.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import importlib
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[3]))

SEED = 20250101
# Where a call sends or receives: the argument that holds what arrives.
INTO = {
    "all_reduce": 0,
    "all_gather_into_tensor": 0,
    "reduce_scatter_tensor": 0,
    "all_to_all_single": 0,
    "broadcast": 0,
}


class Lie(NamedTuple):
    """Which check is measured, and what is done to torch before."""

    check: str
    tell: Callable[[Any, Any, int], None]


LIES: dict[str, Lie] = {}


def lie(check: str) -> Callable[[Callable[[Any, Any, int], None]], Callable[[Any, Any, int], None]]:
    """Register a lie under its function's name."""

    def register(tell: Callable[[Any, Any, int], None]) -> Callable[[Any, Any, int], None]:
        LIES[tell.__name__] = Lie(check, tell)
        return tell

    return register


@lie("all_reduce_bandwidth")
def nothing_all_reduce(_torch: Any, _dist: Any, _rank: int) -> None:
    """Change nothing."""


@lie("collective_bandwidth")
def nothing_others(_torch: Any, _dist: Any, _rank: int) -> None:
    """Change nothing."""


def call_of(name: str, world: int) -> int:
    """Return the number of the call that is spoilt: another one for each function and size of group."""
    return random.Random(f"{SEED} {name} {world}").randrange(40)  # noqa: S311 (test data, no secret)


def flip_once(torch: Any, dist: Any, name: str, rank: int, liar: int) -> None:
    """Flip one bit of one element of what one call brings to one rank."""
    honest, calls = getattr(dist, name), [0]

    @functools.wraps(honest)
    def flipping(*arguments: Any, **options: Any) -> Any:
        done = honest(*arguments, **options)
        words = arguments[INTO[name]].view(-1).view(torch.int32)
        if rank == liar and calls[0] == call_of(name, dist.get_world_size()):
            words[len(words) // 2] ^= 1 << 12
        calls[0] += 1
        return done

    setattr(dist, name, flipping)


def skip_once(dist: Any, name: str, rank: int, liar: int) -> None:
    """Have one call bring one rank nothing: the others are served, its own tensor stays as it was."""
    honest, calls = getattr(dist, name), [0]

    @functools.wraps(honest)
    def skipping(*arguments: Any, **options: Any) -> Any:
        skipped = rank == liar and calls[0] == call_of(name, dist.get_world_size())
        calls[0] += 1
        target = arguments[INTO[name]]
        before = target.clone()
        done = honest(*arguments, **options)
        if skipped:
            target.copy_(before)
        return done

    setattr(dist, name, skipping)


@lie("all_reduce_bandwidth")
def flip_all_reduce(torch: Any, dist: Any, rank: int) -> None:
    """Flip a bit of one all-reduce, on the last rank."""
    flip_once(torch, dist, "all_reduce", rank, dist.get_world_size() - 1)


@lie("all_reduce_bandwidth")
def skip_all_reduce(_torch: Any, dist: Any, rank: int) -> None:
    """Skip one all-reduce, on the last rank."""
    skip_once(dist, "all_reduce", rank, dist.get_world_size() - 1)


@lie("collective_bandwidth")
def flip_others(torch: Any, dist: Any, rank: int) -> None:
    """Flip a bit of one message of each other collective, on the last rank."""
    for name in [*INTO][1:]:
        flip_once(torch, dist, name, rank, dist.get_world_size() - 1)


@lie("collective_bandwidth")
def skip_others(_torch: Any, dist: Any, rank: int) -> None:
    """Skip one message of each other collective, on the last rank."""
    for name in [*INTO][1:]:
        skip_once(dist, name, rank, dist.get_world_size() - 1)


@lie("all_reduce_bandwidth")
def flip_every_37th(torch: Any, dist: Any, rank: int) -> None:
    """Flip a bit of every 37th all-reduce, on rank 0."""
    honest, calls = dist.all_reduce, [0]

    def flipping(tensor: Any, *arguments: Any, **options: Any) -> Any:
        done = honest(tensor, *arguments, **options)
        calls[0] += 1
        if rank == 0 and calls[0] % 37 == 0:
            tensor.view(-1).view(torch.int32)[-1] ^= 1
        return done

    dist.all_reduce = flipping


@lie("all_reduce_bandwidth")
def flip_and_blind_comparison(torch: Any, dist: Any, rank: int) -> None:
    """Flip bits of the first element of every all-reduce, and have torch see no difference by exclusive or."""
    flip_every_37th(torch, dist, rank)
    torch.Tensor.bitwise_xor = lambda self, _other: torch.zeros_like(self)


@lie("collective_bandwidth")
def flip_recv(torch: Any, dist: Any, rank: int) -> None:
    """Flip the sign of one element of the ninth message that rank 1 receives."""
    honest, calls = dist.batch_isend_irecv, [0]

    def flipping(operations: Any) -> Any:
        works = honest(operations)
        for work in works:
            work.wait()
        calls[0] += 1
        if rank == 1 and calls[0] == 9:
            operations[1].tensor.view(torch.int32)[0] ^= -(1 << 31)
        return []

    dist.batch_isend_irecv = flipping


@lie("collective_bandwidth")
def crash_instead_of_unsupported(_torch: Any, dist: Any, _rank: int) -> None:
    """Raise what NCCL raises, in a collective that an old gloo may lack."""

    def crash(*_arguments: Any, **_options: Any) -> None:
        message = "NCCL error: unhandled cuda error, support is lost"
        raise RuntimeError(message)

    dist.all_to_all_single = crash


@lie("collectives")
def nothing_collectives(_torch: Any, _dist: Any, _rank: int) -> None:
    """Change nothing."""


@lie("collectives")
def maximum_for_minimum(_torch: Any, dist: Any, rank: int) -> None:
    """Have rank 0 get the maximum where the minimum was meant: its own tensor, before the collective, is negated."""
    honest = dist.all_reduce

    def lying(tensor: Any, op: Any = dist.ReduceOp.SUM, **options: Any) -> Any:
        done = honest(tensor, op=op, **options)
        if rank == 0 and op == dist.ReduceOp.MIN and len(tensor) > 1:
            tensor[:] = tensor.flip(0)
        return done

    dist.all_reduce = lying


@lie("collectives")
def exclusive_or_is_or(_torch: Any, dist: Any, rank: int) -> None:
    """Have rank 2 get the inclusive or where the exclusive one was meant."""
    honest = dist.all_reduce

    def lying(tensor: Any, op: Any = dist.ReduceOp.SUM, **options: Any) -> Any:
        other = tensor.clone()
        done = honest(tensor, op=op, **options)
        if op == dist.ReduceOp.BXOR:
            honest(other, op=dist.ReduceOp.BOR)
            if rank == 2:
                tensor.copy_(other)
        return done

    dist.all_reduce = lying


@lie("collectives")
def average_divides_twice(_torch: Any, dist: Any, rank: int) -> None:
    """Divide averages once more, on rank 1."""
    honest = dist.reduce_scatter_tensor

    def lying(actual: Any, sent: Any, op: Any = dist.ReduceOp.SUM, **options: Any) -> Any:
        done = honest(actual, sent, op=op, **options)
        if rank == 1 and op == dist.ReduceOp.AVG:
            actual /= dist.get_world_size()
        return done

    dist.reduce_scatter_tensor = lying


@lie("collectives")
def bfloat16_is_rounded(torch: Any, dist: Any, rank: int) -> None:
    """Lose the last bit of what rank 1 gathers in bfloat16, and in no other dtype."""
    honest = dist.all_gather

    def lying(actual: Any, sent: Any, **options: Any) -> Any:
        done = honest(actual, sent, **options)
        for one in actual if rank == 1 and sent.dtype is torch.bfloat16 else ():
            one.view(torch.int16).bitwise_and_(-2)
        return done

    dist.all_gather = lying


def _through(torch: Any, dist: Any, name: str, narrow: Any) -> None:
    """Have what a call moves or adds in int64 go through another dtype."""
    honest = getattr(dist, name)

    def lying(tensor: Any, *arguments: Any, **options: Any) -> Any:
        done = honest(tensor, *arguments, **options)
        if tensor.dtype is torch.int64 and not options.get("async_op"):
            tensor.copy_(tensor.to(narrow).to(torch.int64))
        return done

    setattr(dist, name, lying)


@lie("collectives")
def int64_through_float64(torch: Any, dist: Any, rank: int) -> None:
    """Round rank 0's int64 to what a float64 holds, in a reduction."""
    if rank == 0:
        _through(torch, dist, "all_reduce", torch.float64)


@lie("collectives")
def int64_through_int32(torch: Any, dist: Any, rank: int) -> None:
    """Cut rank 1's int64 to 32 bits, in a broadcast."""
    if rank == 1:
        _through(torch, dist, "broadcast", torch.int32)


@lie("collectives")
def tail_is_dropped(_torch: Any, dist: Any, rank: int) -> None:
    """Lose the last element of what rank 1 gets in an uneven all-to-all."""
    honest = dist.all_to_all_single

    def lying(actual: Any, sent: Any, into: Any = None, out: Any = None, **options: Any) -> Any:
        done = honest(actual, sent, into, out, **options)
        if rank == 1 and into is not None and len(actual):
            actual[-1] = 0
        return done

    dist.all_to_all_single = lying


@lie("collectives")
def blocks_change_places(_torch: Any, dist: Any, rank: int) -> None:
    """Give rank 1's first two blocks of an all-to-all to each other."""
    honest = dist.all_to_all

    def lying(actual: Any, sent: Any, **options: Any) -> Any:
        done = honest(actual, sent, **options)
        if rank == 1 and len(actual) > 1:
            first = actual[0].clone()
            actual[0].copy_(actual[1])
            actual[1].copy_(first)
        return done

    dist.all_to_all = lying


@lie("collectives")
def objects_change_places(_torch: Any, dist: Any, rank: int) -> None:
    """Turn the order of the objects that the last rank gathers."""
    honest = dist.all_gather_object

    def lying(actual: Any, value: Any, **options: Any) -> None:
        honest(actual, value, **options)
        if rank == dist.get_world_size() - 1:
            actual.reverse()

    dist.all_gather_object = lying


@lie("collectives")
def root_is_forgotten(_torch: Any, dist: Any, _rank: int) -> None:
    """Gather at the right root, and scatter from it what was meant for the next rank."""
    honest = dist.scatter

    def lying(actual: Any, sent: Any = None, src: int = 0, **options: Any) -> Any:
        return honest(actual, [*sent[1:], sent[0]] if sent and src else sent, src, **options)

    dist.scatter = lying


@lie("collectives")
def reduce_leaves_one_out(_torch: Any, dist: Any, rank: int) -> None:
    """Have the last rank give zeros to a reduction to the last root."""
    honest, last = dist.reduce, dist.get_world_size() - 1

    def lying(tensor: Any, dst: int, op: Any = dist.ReduceOp.SUM, **options: Any) -> Any:
        return honest(tensor.zero_() if rank == last == dst else tensor, dst, op=op, **options)

    dist.reduce = lying


@lie("collectives")
def messages_overtake(_torch: Any, dist: Any, rank: int) -> None:
    """Have rank 0 receive the messages of one batch in another order."""
    honest = dist.batch_isend_irecv

    def lying(operations: Any) -> Any:
        works = honest(operations)
        into = [one.tensor for one in operations if one.op is dist.irecv]
        if rank == 0 and len(into) > 1:
            for work in works:
                work.wait()
            first = into[0].clone()
            into[0].copy_(into[-1])
            into[-1].copy_(first)
            return []
        return works

    dist.batch_isend_irecv = lying


@lie("collectives")
def barrier_waits_for_nobody(_torch: Any, dist: Any, _rank: int) -> None:
    """Go on at every barrier."""
    dist.barrier = lambda *_arguments, **_options: None


class _Later:
    """The work of a collective that really begins when somebody waits a second time, or never."""

    def __init__(self, work: Any, *, says: bool, waits: bool) -> None:
        self.work, self.says, self.waits = work, says, waits

    def is_completed(self) -> bool:
        return self.says or bool(self.work.is_completed())

    def wait(self) -> bool:
        return bool(self.work.wait()) if self.waits else True


def _asynchronous(dist: Any, rank: int, *, says: bool, waits: bool) -> None:
    honest = dist.all_reduce

    def lying(tensor: Any, *arguments: Any, **options: Any) -> Any:
        done = honest(tensor, *arguments, **options)
        return _Later(done, says=says, waits=waits) if done is not None and rank == 1 else done

    dist.all_reduce = lying


@lie("collectives")
def wait_returns_at_once(_torch: Any, dist: Any, rank: int) -> None:
    """Have rank 1's asynchronous work be waited for without waiting; it is complete later."""
    _asynchronous(dist, rank, says=False, waits=False)


@lie("collectives")
def work_is_complete_at_once(_torch: Any, dist: Any, rank: int) -> None:
    """Have rank 1's asynchronous work say that it is complete when it was only begun."""
    _asynchronous(dist, rank, says=True, waits=True)


@lie("collectives")
def group_is_ignored(_torch: Any, dist: Any, _rank: int) -> None:
    """Add up over all ranks what is meant for a sub-group."""
    honest = dist.all_reduce

    def lying(tensor: Any, *arguments: Any, **options: Any) -> Any:
        options.pop("group", None)
        return honest(tensor, *arguments, **options)

    dist.all_reduce = lying


@lie("collectives")
def group_reaches_out(_torch: Any, dist: Any, rank: int) -> None:
    """Have a sub-group's broadcast write over a tensor of the last rank's."""
    honest, mine = dist.broadcast, []
    summing = dist.all_reduce

    def remember(tensor: Any, *arguments: Any, **options: Any) -> Any:
        mine.append(tensor)
        return summing(tensor, *arguments, **options)

    def lying(tensor: Any, src: int, group: Any = None, **options: Any) -> Any:
        done = honest(tensor, src, group=group, **options)
        if group is not None and rank == dist.get_world_size() - 1:
            mine[-1][-1] += 1
        return done

    dist.all_reduce, dist.broadcast = remember, lying


@lie("collectives")
def last_rank_raises(_torch: Any, dist: Any, _rank: int) -> None:
    """Raise in reduce what CUDA raises; in gloo's words it would be nothing that gloo lacks."""

    def crash(*_arguments: Any, **_options: Any) -> None:
        message = "CUDA error: an illegal memory access was encountered"
        raise RuntimeError(message)

    dist.reduce = crash


@lie("collectives")
def gloo_lacks_what_it_has(_torch: Any, dist: Any, _rank: int) -> None:
    """Say of an all-gather of lists, which every gloo has, that there is none."""

    def lacking(*_arguments: Any, **_options: Any) -> None:
        message = "Backend gloo does not support allgather"
        raise RuntimeError(message)

    dist.all_gather = lacking


@lie("straggler")
def held_up_for_a_moment(torch: Any, _dist: Any, rank: int) -> None:
    """Have the first products of rank 1 take five times as long, as another process on its core does."""
    honest, calls = torch.mm, [0]

    def held_up(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        for _ in range(4 if calls[0] < 100 else 0):
            honest(*arguments, **options)
        return honest(*arguments, **options)

    if rank == 1:
        torch.mm = held_up


@lie("straggler")
def one_product_of_many_is_wrong(torch: Any, _dist: Any, rank: int) -> None:
    """Flip one bit of one element of rank 1's 50th product."""
    honest, calls = torch.mm, [0]

    def lying(*arguments: Any, **options: Any) -> Any:
        product = honest(*arguments, **options)
        calls[0] += 1
        if calls[0] == 50:
            product.view(torch.int32)[7, 9] ^= 1
        return product

    if rank == 1:
        torch.mm = lying


@lie("straggler")
def one_product_is_left_out(torch: Any, _dist: Any, rank: int) -> None:
    """Do not compute rank 0's 70th product."""
    honest, calls = torch.mm, [0]

    def lying(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        return options["out"] if calls[0] == 70 else honest(*arguments, **options)

    if rank == 0:
        torch.mm = lying


@lie("straggler")
def nothing_straggler(_torch: Any, _dist: Any, _rank: int) -> None:
    """Change nothing."""


@lie("straggler")
def late_to_collectives(_torch: Any, dist: Any, rank: int) -> None:
    """Sleep 30 ms before each all-reduce of rank 1."""
    honest = dist.all_reduce

    def late(*arguments: Any, **options: Any) -> Any:
        time.sleep(0.03)
        return honest(*arguments, **options)

    if rank == 1:
        dist.all_reduce = late


@lie("straggler")
def sleeps_in_every_tenth_product(torch: Any, _dist: Any, rank: int) -> None:
    """Sleep 20 ms in every tenth product of rank 0."""
    honest, calls = torch.mm, [0]

    def sleepy(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] % 10 == 0:
            time.sleep(0.02)
        return honest(*arguments, **options)

    if rank == 0:
        torch.mm = sleepy


@contextlib.contextmanager
def honest_afterwards(torch: Any, dist: Any) -> Iterator[None]:
    """Take back whatever is changed in here."""
    places = (dist, torch, torch.Tensor)
    kept = [dict(vars(place)) for place in places]
    try:
        yield
    finally:
        for place, before in zip(places, kept):  # noqa: B905 (Python 3.9)
            for name, value in dict(vars(place)).items():
                if name not in before:
                    delattr(place, name)
                elif before[name] is not value:
                    setattr(place, name, before[name])


def shrink(module: Callable[[str], Any]) -> None:
    """Make messages small and loops short."""
    bandwidth = module("support.collectives.timed_collectives")
    bandwidth.SIZES["cpu"], bandwidth.SMALL, bandwidth.SMALL_ITERATIONS["cpu"] = [1 << 14], (8, 64, 512, 2048), 8
    bandwidth.WARMUP["cpu"], bandwidth.MOST = 1, 5
    module("straggler").ROUNDS["cpu"], module("straggler").MEETINGS["cpu"] = 150, 20
    cases = module("support.collectives.cases.case_tensors")
    cases.LARGE["cpu"], cases.MIDDLE, cases.ODD = 1031, 101, 33


def main(rank: int, world: int, directory: Path, names: list[str]) -> None:
    """Join the group once, and measure under each lie."""
    import torch  # noqa: PLC0415 (the rank's Python has it, the tests' own need not)
    import torch.distributed as dist  # noqa: PLC0415

    from envcheck.checks import Rank  # noqa: PLC0415 (the path is set above)
    from envcheck.checks.support import process_group  # noqa: PLC0415

    def module(name: str) -> Any:
        return importlib.import_module(f"envcheck.checks.env.{name}")

    torch.set_num_threads(1)
    shrink(module)
    store = f"file://{directory}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=dt.timedelta(seconds=60))
    vars(process_group)["group"] = lambda _rank: contextlib.nullcontext(dist)
    place = Rank(rank, world, rank, "cpu", "gloo", str(directory))
    measured: dict[str, Any] = {}
    for name in names:
        for word in [*directory.glob("barrier*"), *directory.glob("async*")] if rank == 0 else ():
            word.unlink()
        dist.barrier()
        began = time.perf_counter()
        with honest_afterwards(torch, dist):
            LIES[name].tell(torch, dist, rank)
            try:
                measured[name] = module(LIES[name].check).measure(place)
            except Exception as error:  # noqa: BLE001 (what it raises is the result)
                measured[name] = {"rank": rank, "raised": f"{type(error).__name__}: {error}"}
        measured[name]["took"] = time.perf_counter() - began
        (directory / f"rank{rank}.json").write_text(json.dumps(measured))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
