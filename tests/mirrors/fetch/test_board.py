"""Parts of pieces: what lacks is asked for and no more, whatever fails, and the last ones end together."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from envcheck.mirrors.fetch.plan.pieces import MIB, Failure, RangeTask, Span
from envcheck.mirrors.fetch.plan.scheduler import BACKOFF, MIXED, SMALLEST_PART, PieceScheduler

# The bytes that the simulation knows apart.
UNIT = 1 << 16
STEP = st.tuples(
    st.sampled_from(["take", "take", "ok", "cut", "drop", "change", "crowded"]), st.integers(0, 9), st.integers(0, 16)
)


def board(pieces: int, *, sources: int = 1, connections: int = 4) -> PieceScheduler:
    piece_scheduler = PieceScheduler(pieces * MIB, MIB, sources, per_source=connections, done={})
    for source in piece_scheduler.sources:
        source.identified = True
    return piece_scheduler


def taken(piece_scheduler: PieceScheduler, now: float = 0.0) -> RangeTask:
    task = piece_scheduler.take(now)
    assert task is not None
    return task


class World:
    """Who wrote each unit last, and of which file of his; a source's file has as many versions as it had changes."""

    def __init__(self, piece_scheduler: PieceScheduler, size: int) -> None:
        self.scheduler = piece_scheduler
        self.wrote: list[tuple[int, int] | None] = [None] * (size // UNIT)
        self.busy: list[RangeTask] = []
        self.most = 0

    def take(self, now: float) -> None:
        """Take what is next; nobody else is at it."""
        task = self.scheduler.take(now)
        if task is not None:
            assert task.span.size > 0
            assert all(task.span.stop <= t.span.start or t.span.stop <= task.span.start for t in self.busy)
            self.busy.append(task)
            self.most = max(self.most, len(self.busy))

    def write(self, task: RangeTask, count: int) -> None:
        """Write the first bytes of what was asked for."""
        first = task.span.start // UNIT
        self.wrote[first : first + count // UNIT] = [(task.source, task.changes)] * (count // UNIT)

    def end(self, what: str, which: int, units: int, now: float) -> None:
        """End a request, well or not."""
        task = self.busy.pop(which % len(self.busy))
        actual = {"ok": task.span.size, "cut": min(units * UNIT, task.span.size - UNIT)}.get(what, 0)
        self.write(task, actual)
        if what == "ok":
            self.scheduler.answered(task, f'"{task.changes}"')
            self.scheduler.arrived(task, f'"{task.changes}"', 1.0 if units else 0.0)
            return
        more: dict[str, Any] = {"drop": what == "drop", "changed": what == "change", "crowded": what == "crowded"}
        self.scheduler.failed(task, Failure(what, got=actual, **more), now)

    def look(self) -> None:
        """Look that what is there is of its source's present file, and that no more is begun than was asked at once."""
        scheduler = self.scheduler
        for piece in scheduler.done:
            units = self.wrote[piece * MIB // UNIT : (piece + 1) * MIB // UNIT]
            assert None not in units
            assert all(scheduler.sources[source].changes == change for source, change in filter(None, units))
            givers = {source for source, _ in filter(None, units)}
            assert scheduler.done[piece] == (givers.pop() if len(givers) == 1 else MIXED)
        assert 0 <= scheduler.begun <= self.most * MIB
        assert scheduler.under_way == {task.piece for task in self.busy}
        assert [source.busy for source in scheduler.sources] == [
            sum(task.source == number for task in self.busy) for number in range(len(scheduler.sources))
        ]


@settings(max_examples=300, deadline=None)
@given(st.lists(STEP, max_size=120))
def test_what_is_there_was_all_written_and_is_of_one_file_of_each_source(steps: list[tuple[str, int, int]]) -> None:
    scheduler, now = board(7, sources=2, connections=3), 0.0
    world = World(scheduler, 7 * MIB)
    for what, which, units in steps:
        now += which
        if what == "take":
            world.take(now)
        elif world.busy:
            world.end(what, which, units, now)
        world.look()
    while world.busy:
        world.end("ok", 0, 1, now)
        world.look()
    for source in scheduler.sources:
        source.dropped, source.resting_until = False, 0.0
    while not scheduler.complete:
        world.take(now + 1e6)
        world.end("ok", 0, 0, now)
    world.look()
    assert scheduler.begun == 0


def test_what_was_cut_off_is_gone_on_with_where_it_ended() -> None:
    piece_scheduler = board(1)
    piece_scheduler.failed(taken(piece_scheduler), Failure("cut off", got=3 * UNIT), 0.0)
    assert piece_scheduler.begun == 3 * UNIT
    remaining = taken(piece_scheduler, BACKOFF[0])
    assert remaining.span == Span(3 * UNIT, MIB)
    assert piece_scheduler.arrived(remaining, None)
    assert piece_scheduler.done == {0: 0}


def test_another_source_goes_on_with_it_and_the_piece_is_then_of_both() -> None:
    piece_scheduler = board(1, sources=2)
    piece_scheduler.failed(taken(piece_scheduler), Failure("cut off", got=3 * UNIT), 0.0)
    remaining = taken(piece_scheduler)
    assert (remaining.source, remaining.span) == (1, Span(3 * UNIT, MIB))
    assert piece_scheduler.arrived(remaining, None)
    assert piece_scheduler.done == {0: MIXED}


def test_a_piece_of_two_sources_is_forgotten_when_the_file_of_one_of_them_changes() -> None:
    piece_scheduler = board(2, sources=2, connections=1)
    first = taken(piece_scheduler)
    piece_scheduler.failed(first, Failure("cut off", got=UNIT), 0.0)
    piece_scheduler.arrived(taken(piece_scheduler), '"b"')
    assert piece_scheduler.done == {0: MIXED}
    assert piece_scheduler.failed(taken(piece_scheduler, 9.0), Failure("changed", changed=True), 9.0) == [0]
    assert piece_scheduler.done == {}


def test_what_came_of_the_file_before_is_not_gone_on_with() -> None:
    piece_scheduler = board(2, connections=2)
    first, second = taken(piece_scheduler), taken(piece_scheduler)
    piece_scheduler.failed(first, Failure("cut off", got=UNIT), 0.0)
    piece_scheduler.failed(second, Failure("changed", changed=True), 0.0)
    assert taken(piece_scheduler, BACKOFF[0]).span == first.span


def test_nobody_writes_where_an_answer_of_the_file_before_is_still_written() -> None:
    piece_scheduler = board(2, connections=2)
    late, changed = taken(piece_scheduler), taken(piece_scheduler)
    piece_scheduler.failed(changed, Failure("changed", changed=True), 0.0)
    assert piece_scheduler.take(0.0) is None
    piece_scheduler.sources[0].identified = True
    repeated = taken(piece_scheduler)
    assert repeated.piece == changed.piece
    assert piece_scheduler.take(0.0) is None
    assert not piece_scheduler.arrived(late, '"one"')
    assert taken(piece_scheduler).span == late.span


def test_the_last_pieces_are_shared_by_all_connections_and_before_that_a_request_is_a_piece() -> None:
    piece_scheduler = board(12, connections=4)
    tasks = [taken(piece_scheduler) for _ in range(4)]
    assert {task.span.size for task in tasks} == {MIB}
    for task in tasks:
        piece_scheduler.arrived(
            task, None, 2.0
        )  # half a MiB a second: what takes a quarter of a second is the smallest part
    sizes = []
    while (part := piece_scheduler.take(0.0)) is not None:
        sizes.append(part.span.size)
        piece_scheduler.arrived(part, None, 2.0 * part.span.size / MIB)
    assert piece_scheduler.complete
    assert sizes[0] == MIB
    assert sizes[-4:] == [SMALLEST_PART] * 4
    assert sum(sizes) == 8 * MIB


def test_a_fast_connection_gets_no_small_parts() -> None:
    piece_scheduler = board(3)
    while (task := piece_scheduler.take(0.0)) is not None:
        assert task.span.size == MIB
        piece_scheduler.arrived(task, None, 0.01)


def test_the_only_source_is_kept_as_long_as_it_moves_and_another_is_turned_to() -> None:
    for sources, dropped in ((1, False), (2, True)):
        scheduler, now = board(8, sources=sources), 0.0
        scheduler.sources[-1].resting_until = 1e9 if sources > 1 else 0.0
        for _ in range(len(BACKOFF) + 1):
            task = taken(scheduler, now)
            scheduler.failed(task, Failure("cut off", got=UNIT), now)
            now += max(BACKOFF)
        assert scheduler.sources[0].dropped is dropped
