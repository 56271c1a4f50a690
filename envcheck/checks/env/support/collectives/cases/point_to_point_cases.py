"""Messages from one rank to another: in a batch, by calls that wait, several at once, and with tags."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

from envcheck.checks.env.support.collectives.cases import case_tensors
from envcheck.checks.env.support.collectives.cases.case_tensors import Bench, Part


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


MOVING: dict[str, Callable[[Bench], list[Part]]] = {
    "send/recv (batch)": _send_recv,
    "send/recv": _send_recv_in_turn,
    "several sends in one batch": _batched,
}
TAGGED = "send/recv by tags"
