"""The GPU half of measuring bandwidth, with CUDA's events and memory stood in for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from envcheck.checks import Rank
from envcheck.checks.collectives import timed_collectives as bandwidth
from tests.tables import each

GIB = 1 << 30


class Event:
    """A CUDA event of a stream on which each collective takes `STEP` milliseconds."""

    STEP = 2.5
    clock = 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at: float | None = None

    def record(self) -> None:
        """Take the stream's time."""
        self.at = Event.clock

    def elapsed_time(self, later: Event) -> float:
        """Return the milliseconds to a later event."""
        assert self.at is not None
        assert later.at is not None
        return later.at - self.at


class Message:
    """A message that takes `Event.STEP` of the stream's time, and fills and verifies in no time that counts."""

    turns = 0

    def fill(self) -> None:
        """Take time outside the timed part."""
        Event.clock += 7

    def run(self) -> None:
        """Take the time that is measured."""
        Event.clock += Event.STEP

    def verify(self) -> None:
        """Take time outside the timed part."""
        Event.clock += 11
        self.turns += 1


def test_events_are_read_in_seconds_after_one_synchronize_and_every_turn_is_verified_outside_them() -> None:
    synchronized: list[int] = []
    torch = SimpleNamespace(cuda=SimpleNamespace(Event=Event, synchronize=lambda: synchronized.append(1)))
    message = Message()
    cuda = SimpleNamespace(type="cuda")
    times = bandwidth.timed(torch, None, cast("Any", message), cuda, 7)
    assert times == pytest.approx([0.0025] * 7)
    assert (synchronized, message.turns) == ([1], 7)


class Vector(list[int]):
    """A tensor of integers."""

    def tolist(self) -> list[int]:
        """Return it as a list."""
        return [*self]


def everybody(*values: int) -> SimpleNamespace:
    """Return a torch.distributed where rank 0 is this one and the others send these values."""

    def add(tensor: Vector) -> None:
        for index in range(len(tensor)):
            tensor[index] += (0, *values)[index % (len(values) + 1)]

    return SimpleNamespace(all_reduce=add)


TORCH = SimpleNamespace(tensor=lambda values, **_options: Vector(values), int64=None)
FIRST = Rank(0, 2, 0, "cuda:0", "nccl", "")


@each(
    "name, free, largest",
    [
        ("all-reduce", 80 * GIB, 4 * GIB),
        ("all-reduce", 16 * GIB, 4 * GIB),
        ("all-reduce", 16 * GIB - 1, GIB),
        ("all-reduce", 1, 0),
        ("all-to-all", 32 * GIB, 4 * GIB),
        ("all-to-all", 32 * GIB - 1, GIB),
    ],
)
def test_no_size_takes_more_than_a_quarter_of_the_free_memory_of_any_rank(name: str, free: int, largest: int) -> None:
    for here, there in ((free, 80 * GIB), (80 * GIB, free)):
        cuda = SimpleNamespace(mem_get_info=lambda _device, here=here: (here, 80 * GIB))
        torch = SimpleNamespace(**vars(TORCH), cuda=cuda)
        device = SimpleNamespace(type="cuda")
        sizes, right = bandwidth._sizes(torch, everybody(there), FIRST, device, name)  # noqa: SLF001 (no GPU to ask)
        assert (max(sizes, default=0), right) == (largest, True)


def test_what_ranks_tell_each_other_survives_one_wrong_value_and_says_so() -> None:
    def flip(tensor: Vector) -> None:
        everybody(9).all_reduce(tensor)
        tensor[1] ^= 1 << 40

    assert bandwidth.shared(TORCH, everybody(9), FIRST, None, 5) == ([5, 9], True)
    assert bandwidth.shared(TORCH, SimpleNamespace(all_reduce=flip), FIRST, None, 5) == ([5, 9], False)
    assert bandwidth.shared(TORCH, SimpleNamespace(all_reduce=lambda _: None), FIRST, None, 5) == ([5, 0], False)
