"""The GPU half of measuring bandwidth, with CUDA's events and memory stood in for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

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
    def least(tensor: list[int], op: str) -> None:
        assert op == "MIN"
        tensor[0] = min(tensor[0], free)

    class Tensor(list[int]):
        """As much of a tensor of one integer as is asked of it."""

        def __int__(self) -> int:
            return self[0]

    dist = SimpleNamespace(all_reduce=least, ReduceOp=SimpleNamespace(MIN="MIN"))
    cuda = SimpleNamespace(mem_get_info=lambda _device: (80 * GIB, 80 * GIB))
    torch = SimpleNamespace(cuda=cuda, tensor=lambda values, **_options: Tensor(values), int64=None)
    sizes = bandwidth._sizes(torch, dist, SimpleNamespace(type="cuda"), name)  # noqa: SLF001 (no GPU to ask)
    assert max(sizes, default=0) == largest
