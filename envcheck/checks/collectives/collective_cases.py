"""Every collective in every operation and dtype, with what has to arrive from plain Python: the cases of `collectives`.

A case runs on all ranks alike and returns its parts: (which, what arrived, what has to be there), as lists.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

from envcheck.checks.collectives import case_tensors, exact_numbers, group_cases, object_cases
from envcheck.checks.collectives.case_tensors import Bench, CollectiveCase, Part, Setting

_KEPT: list[Any] = []


def _all_reduce(b: Bench) -> list[Part]:
    tensor = b.tensor(b.given(b.mine))
    b.setting.dist.all_reduce(tensor, op=b.operation)
    return [("", tensor.tolist(), b.reduced())]


def _reduce(b: Bench) -> list[Part]:
    tensor = b.tensor(b.given(b.mine))
    b.setting.dist.reduce(tensor, b.root, op=b.operation)
    return [(f"to root {b.root}", tensor.tolist(), b.reduced())] if b.mine == b.root else []


def _broadcast(b: Bench) -> list[Part]:
    tensor = b.tensor(b.given(b.mine))
    b.setting.dist.broadcast(tensor, b.root)
    return [(f"from root {b.root}", tensor.tolist(), b.given(b.root))]


def _scatter(b: Bench) -> list[Part]:
    received, sent = b.empty(), [b.tensor(block) for block in b.blocks(b.root)] if b.mine == b.root else None
    b.setting.dist.scatter(received, sent, b.root)
    return [(f"from root {b.root}", received.tolist(), b.given(b.root, b.mine))]


def _gather(b: Bench) -> list[Part]:
    received = [b.empty() for _ in range(b.world)] if b.mine == b.root else None
    sent = b.tensor(b.given(b.mine))
    b.setting.dist.gather(sent, received, b.root)
    parts = [(f"at root {b.root} from rank {r}", block.tolist(), b.given(r)) for r, block in enumerate(received or [])]
    return [*parts, case_tensors.unchanged(sent, b.given(b.mine))]


def _all_gather(b: Bench) -> list[Part]:
    received, sent = [b.empty() for _ in range(b.world)], b.tensor(b.given(b.mine))
    b.setting.dist.all_gather(received, sent)
    parts = [(f"from rank {r}", block.tolist(), b.given(r)) for r, block in enumerate(received)]
    return [*parts, case_tensors.unchanged(sent, b.given(b.mine))]


def _all_gather_tensor(b: Bench) -> list[Part]:
    received, sent = b.empty(b.case.size * b.world), b.tensor(b.given(b.mine))
    b.setting.dist.all_gather_into_tensor(received, sent)
    return [
        *((f"from rank {r}", block.tolist(), b.given(r)) for r, block in enumerate(received.split(b.case.size))),
        case_tensors.unchanged(sent, b.given(b.mine)),
    ]


def _all_gather_stacked(b: Bench) -> list[Part]:
    received, sent = b.empty(b.case.size * b.world).reshape(b.world, b.case.size), b.tensor(b.given(b.mine))
    b.setting.dist.all_gather_into_tensor(received, sent)
    return [(f"from rank {r}", block.tolist(), b.given(r)) for r, block in enumerate(received)]


def _reduce_scatter(b: Bench) -> list[Part]:
    received = b.empty()
    b.setting.dist.reduce_scatter(received, [b.tensor(block) for block in b.blocks(b.mine)], op=b.operation)
    return [("", received.tolist(), b.reduced(b.mine))]


def _reduce_scatter_tensor(b: Bench) -> list[Part]:
    received, values = b.empty(), [*itertools.chain(*b.blocks(b.mine))]
    sent = b.tensor(values)
    b.setting.dist.reduce_scatter_tensor(received, sent, op=b.operation)
    return [("", received.tolist(), b.reduced(b.mine)), case_tensors.unchanged(sent, values)]


def _all_to_all(b: Bench) -> list[Part]:
    received = [b.empty() for _ in range(b.world)]
    b.setting.dist.all_to_all(received, [b.tensor(block) for block in b.blocks(b.mine)])
    return [(f"from rank {r}", block.tolist(), b.given(r, b.mine)) for r, block in enumerate(received)]


def _all_to_all_single(b: Bench) -> list[Part]:
    values = [*itertools.chain(*b.blocks(b.mine))]
    received, sent = b.empty(len(values)), b.tensor(values)
    b.setting.dist.all_to_all_single(received, sent)
    parts = [
        (f"from rank {r}", block.tolist(), b.given(r, b.mine)) for r, block in enumerate(received.split(b.case.size))
    ]
    return [*parts, case_tensors.unchanged(sent, values)]


def _uneven(b: Bench) -> list[Part]:
    """Have each rank give another count to each other one; some give nothing."""

    def size(sender: int, receiver: int) -> int:
        return b.case.size * ((sender + 2 * receiver + b.case.turn) % 4)

    out, into = ([size(b.mine, r) for r in range(b.world)], [size(r, b.mine) for r in range(b.world)])
    sent = b.tensor([*itertools.chain(*(b.given(b.mine, r, count) for r, count in enumerate(out)))])
    received = b.empty(sum(into))
    b.setting.dist.all_to_all_single(received, sent, into, out)
    return [
        (f"from rank {r}", block.tolist(), b.given(r, b.mine, count))
        for (r, count), block in zip(enumerate(into), received.split(into))
    ]


def _in_flight(b: Bench) -> list[Part]:
    """Start several all-reduces and wait for the last one first."""
    tensors = [b.tensor(b.given(b.mine, block)) for block in range(case_tensors.IN_FLIGHT)]
    works = [b.setting.dist.all_reduce(tensor, op=b.operation, async_op=True) for tensor in tensors]
    for work in works[::-1]:
        work.wait()
    return [(f"message {block}", tensor.tolist(), b.reduced(block)) for block, tensor in enumerate(tensors)]


def _strided(b: Bench) -> list[Part]:
    """Reduce every other element of a tensor: right, with the gaps as they were, or refused for not being dense."""
    mine = b.given(b.mine)
    base = b.tensor([value for value in mine for _ in range(2)])
    try:
        b.setting.dist.all_reduce(base[::2], op=b.operation)
    except (RuntimeError, ValueError) as error:
        if not any(word in str(error).lower() for word in ("contiguous", "dense", "overlapping")):
            raise
        return [("what was refused, afterwards", base[::2].tolist(), mine)]
    return [("", base[::2].tolist(), b.reduced()), ("the gaps", base[1::2].tolist(), mine)]


def _special_values(b: Bench) -> list[Part]:
    """Add infinities and NaN of one rank: a gradient scaler sees an overflow anywhere only if they arrive."""
    special = [float("inf"), float("-inf"), float("nan"), 1.0]
    torch, given = b.setting.torch, special if b.mine == b.root else [1.0] * len(special)
    tensor = torch.tensor(given, dtype=getattr(torch, b.case.dtype)).to(b.setting.device)
    b.setting.dist.all_reduce(tensor, op=b.operation)
    # NaN is unlike itself: as text, what arrived can be compared.
    return [(f"of rank {b.root}", [*map(repr, tensor.tolist())], ["inf", "-inf", "nan", repr(float(b.world))])]


def _subgroups(b: Bench) -> list[Part]:
    """Have two groups that no rank shares work at once: neither may have anything of the other."""
    dist, ranks = b.setting.dist, [*range(b.world)]
    # The first of the ranks in another order is left alone; so are two of five and more.
    random.Random(f"{b.setting.seed}/{b.case.turn}").shuffle(ranks)  # noqa: S311 (test data, no secret)
    alone = 1 if b.world < 5 else 2  # noqa: PLR2004 (as said)
    teams = [sorted(ranks[alone:]), sorted(ranks[:alone])]
    groups = [dist.new_group(team) for team in teams]
    _KEPT.extend(groups)
    ours = b.mine not in teams[0]
    team, group = teams[ours], groups[ours]
    summed, bystander = b.tensor(b.given(b.mine)), b.tensor(b.given(b.mine, 9))
    dist.all_reduce(summed, group=group)
    sent, gathered = b.tensor(b.given(b.mine, 1)), [b.empty() for _ in team]
    dist.all_gather(gathered, sent, group=group)
    moved = b.tensor(b.given(b.mine, 2))
    dist.broadcast(moved, team[-1], group=group)
    dist.barrier(group=group)
    summary = f"in the group of ranks {team}"
    return [
        (f"all-reduce {summary}", summed.tolist(), exact_numbers.reduced(b.kind, [b.given(rank) for rank in team])),
        *((f"all-gather {summary}", one.tolist(), b.given(rank, 1)) for rank, one in zip(team, gathered)),
        (f"broadcast {summary}", moved.tolist(), b.given(team[-1], 2)),
        ("a tensor of nobody's", bystander.tolist(), b.given(b.mine, 9)),
    ]


REDUCING: dict[str, Callable[[Bench], list[Part]]] = {
    "all-reduce": _all_reduce,
    "reduce": _reduce,
    "reduce-scatter": _reduce_scatter,
    "reduce-scatter (tensor)": _reduce_scatter_tensor,
}


def _send_recv(b: Bench) -> list[Part]:
    """Send to the rank at a distance, each distance in turn, so that every pair is used both ways."""
    distance = 1 + b.case.turn % (b.world - 1)
    to, source, dist = (b.mine + distance) % b.world, (b.mine - distance) % b.world, b.setting.dist
    received, sent = b.empty(), b.tensor(b.given(b.mine))
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, to), dist.P2POp(dist.irecv, received, source)]):
        work.wait()
    return [(f"from rank {source}", received.tolist(), b.given(source)), case_tensors.unchanged(sent, b.given(b.mine))]


def _send_recv_in_turn(b: Bench) -> list[Part]:
    """Send and receive by the calls that wait, one pair of ranks after the other."""
    parts = []
    for first, second in itertools.combinations(range(b.world), 2):
        if b.mine not in (first, second):
            continue
        other, received = first + second - b.mine, b.empty()
        sent = b.tensor(b.given(b.mine, other))
        steps = [
            functools.partial(b.setting.dist.send, sent, other),
            functools.partial(b.setting.dist.recv, received, other),
        ]
        senders = [step() for step in (steps if b.mine == first else steps[::-1])]
        parts.append((f"from rank {other}", received.tolist(), b.given(other, b.mine)))
        parts.append(("the sender's number", [number for number in senders if number is not None], [other]))
    return parts


def _batched(b: Bench) -> list[Part]:
    """Send several messages to one rank in one batch: they arrive in their order."""
    to, source, dist = (b.mine + 1) % b.world, (b.mine - 1) % b.world, b.setting.dist
    received = [b.empty() for _ in range(case_tensors.IN_FLIGHT)]
    calls = [dist.P2POp(dist.isend, b.tensor(b.given(b.mine, block)), to) for block in range(case_tensors.IN_FLIGHT)]
    for work in dist.batch_isend_irecv([*calls, *(dist.P2POp(dist.irecv, one, source) for one in received)]):
        work.wait()
    return [
        (f"message {block} from rank {source}", one.tolist(), b.given(source, block))
        for block, one in enumerate(received)
    ]


def tagged(b: Bench) -> list[Part]:
    """Send two messages with tags to the next rank, which receives them in the other order (gloo; NCCL has no tags)."""
    to, source, dist = (b.mine + 1) % b.world, (b.mine - 1) % b.world, b.setting.dist
    works = [dist.isend(b.tensor(b.given(b.mine, block)), to, tag=71 + block) for block in range(2)]
    received = [b.empty(), b.empty()]
    for block in (1, 0):
        dist.recv(received[block], source, tag=71 + block)
    for work in works:
        work.wait()
    # One rank alone sends to this one: who, is said by what is received from anybody.
    last, anybody = dist.isend(b.tensor(b.given(b.mine, 2)), to), b.empty()
    sender = dist.recv(anybody)
    last.wait()
    return [
        ("from anybody", anybody.tolist(), b.given(source, 2)),
        ("who that was", [sender], [source]),
        *(
            (f"tag {71 + block} from rank {source}", one.tolist(), b.given(source, block))
            for block, one in enumerate(received)
        ),
    ]


POINT_TO_POINT: dict[str, Callable[[Bench], list[Part]]] = {
    "send/recv (batch)": _send_recv,
    "send/recv": _send_recv_in_turn,
    "several sends in one batch": _batched,
}
TAGGED = "send/recv by tags"
MOVING: dict[str, Callable[[Bench], list[Part]]] = {
    "broadcast": _broadcast,
    "scatter": _scatter,
    "gather": _gather,
    "all-gather": _all_gather,
    "all-gather (tensor)": _all_gather_tensor,
    "all-to-all (list)": _all_to_all,
    "all-to-all": _all_to_all_single,
    "all-to-all (uneven)": _uneven,
    **POINT_TO_POINT,
}
STRIDED = "all-reduce of a strided tensor"
STACKED = "all-gather (tensor), stacked"
OTHERS: dict[str, Callable[[Bench], list[Part]]] = {
    "several all-reduces at once": _in_flight,
    STRIDED: _strided,
    STACKED: _all_gather_stacked,
    "sub-groups": _subgroups,
    TAGGED: tagged,
}
SPECIAL = "all-reduce of inf and NaN"
CALLS = {
    **REDUCING,
    **MOVING,
    **OTHERS,
    **group_cases.calls({**REDUCING, **MOVING}),
    **group_cases.OTHERS,
    object_cases.OBJECTS: object_cases.objects,
    SPECIAL: _special_values,
}
# What one of the backends alone has.
ONLY = {STRIDED: "nccl", STACKED: "nccl", TAGGED: "gloo"}


def cases(setting: Setting) -> Iterator[CollectiveCase]:
    """Yield every case, the same on all ranks: each dtype and operation, each root, sizes from the seed."""
    chance, world = random.Random(setting.seed), setting.rank.world  # noqa: S311 (test data, no secret)
    for collective in REDUCING:
        pairs = [*itertools.product((*exact_numbers.OPERATIONS, *exact_numbers.BITWISE), exact_numbers.EXACT)]
        chance.shuffle(pairs)
        fitting = [pair for pair in pairs if case_tensors.fits(setting.rank.backend, *pair, world)]
        yield from case_tensors.sized(chance, collective, fitting, setting)
    for collective in MOVING:
        dtypes = [*exact_numbers.EXACT]
        chance.shuffle(dtypes)
        yield from case_tensors.sized(chance, collective, [("", dtype) for dtype in dtypes], setting)
    for collective in OTHERS:
        # gloo takes a strided tensor for a dense one and says nothing (torch 2.13); NCCL's side refuses it.
        if ONLY.get(collective, setting.rank.backend) == setting.rank.backend:
            pairs = [("sum", dtype) for dtype in ("float32", "int64", "int32")]
            yield from case_tensors.sized(chance, collective, pairs, setting)
    yield from group_cases.cases(setting, [*REDUCING, *MOVING], [*REDUCING])
    for collective, types in group_cases.FITTING.items():
        yield from case_tensors.sized(chance, collective, [("sum", dtype) for dtype in types], setting, large=False)
    for index in range(world):
        yield CollectiveCase(object_cases.OBJECTS, "", "int64", chance.randrange(1, case_tensors.ODD), index)
    for index, dtype in itertools.product(range(world), ("float32", "float16")):
        yield CollectiveCase(SPECIAL, "sum", dtype, 4, index)
