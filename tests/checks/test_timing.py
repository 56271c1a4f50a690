"""The GPU half of measuring bandwidth, with CUDA's events and memory stood in for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from envcheck.checks.env import _bandwidth as bandwidth

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


def test_events_are_read_in_seconds_after_one_synchronize() -> None:
    synchronized = []
    torch = SimpleNamespace(cuda=SimpleNamespace(Event=Event, synchronize=lambda: synchronized.append(1)))

    def collective() -> None:
        Event.clock += Event.STEP

    times = bandwidth._events(torch, collective, 7)  # noqa: SLF001 (no GPU to ask)
    assert times == pytest.approx([0.0025] * 7)
    assert synchronized == [1]


@pytest.mark.parametrize(
    ("name", "free", "largest"),
    [
        ("all-reduce", 80 * GIB, 4 * GIB),
        ("all-reduce", 16 * GIB, 4 * GIB),
        ("all-reduce", 16 * GIB - 1, GIB),
        ("all-reduce", 0, 0),
        ("all-to-all", 32 * GIB, 4 * GIB),
        ("all-to-all", 32 * GIB - 1, GIB),
    ],
)
def test_no_size_takes_more_than_a_quarter_of_the_free_memory(name: str, free: int, largest: int) -> None:
    torch = SimpleNamespace(
        cuda=SimpleNamespace(mem_get_info=lambda _device: (free, 80 * GIB)),
        tensor=lambda value, **_options: value,
        int64=None,
    )
    dist = SimpleNamespace(all_reduce=lambda _tensor, op: op, ReduceOp=SimpleNamespace(MIN="min"))
    sizes = bandwidth._sizes(torch, dist, SimpleNamespace(type="cuda"), name)  # noqa: SLF001 (no GPU to ask)
    assert max(sizes, default=0) == largest
