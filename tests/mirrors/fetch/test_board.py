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
    told = PieceScheduler(pieces * MIB, MIB, sources, per_source=connections, done={})
    for source in told.sources:
        source.identified = True
    return told


def taken(told: PieceScheduler, now: float = 0.0) -> RangeTask:
    task = told.take(now)
    assert task is not None
    return task


class World:
    """Who wrote each unit last, and of which file of his; a source's file has as many versions as it had changes."""

    def __init__(self, told: PieceScheduler, size: int) -> None:
        self.told = told
        self.wrote: list[tuple[int, int] | None] = [None] * (size // UNIT)
        self.busy: list[RangeTask] = []
        self.most = 0

    def take(self, now: float) -> None:
        """Take what is next; nobody else is at it."""
        task = self.told.take(now)
        if task is not None:
            assert task.span.size > 0
            assert all(task.span.stop <= t.span.start or t.span.stop <= task.span.start for t in self.busy)
            self.busy.append(task)
            self.most = max(self.most, len(self.busy))

    def write(self, task: RangeTask, got: int) -> None:
        """Write the first bytes of what was asked for."""
        first = task.span.start // UNIT
        self.wrote[first : first + got // UNIT] = [(task.source, task.changes)] * (got // UNIT)

    def end(self, what: str, which: int, units: int, now: float) -> None:
        """End a request, well or not."""
        task = self.busy.pop(which % len(self.busy))
        got = {"ok": task.span.size, "cut": min(units * UNIT, task.span.size - UNIT)}.get(what, 0)
        self.write(task, got)
        if what == "ok":
            self.told.answered(task, f'"{task.changes}"')
            self.told.arrived(task, f'"{task.changes}"', 1.0 if units else 0.0)
            return
        more: dict[str, Any] = {"drop": what == "drop", "changed": what == "change", "crowded": what == "crowded"}
        self.told.failed(task, Failure(what, got=got, **more), now)

    def look(self) -> None:
        """Look that what is there is of its source's present file, and that no more is begun than was asked at once."""
        told = self.told
        for piece in told.done:
            units = self.wrote[piece * MIB // UNIT : (piece + 1) * MIB // UNIT]
            assert None not in units
            assert all(told.sources[source].changes == change for source, change in filter(None, units))
            givers = {source for source, _ in filter(None, units)}
            assert told.done[piece] == (givers.pop() if len(givers) == 1 else MIXED)
        assert 0 <= told.begun <= self.most * MIB
        assert told.under_way == {task.piece for task in self.busy}
        assert [source.busy for source in told.sources] == [
            sum(task.source == number for task in self.busy) for number in range(len(told.sources))
        ]


@settings(max_examples=300, deadline=None)
@given(st.lists(STEP, max_size=120))
def test_what_is_there_was_all_written_and_is_of_one_file_of_each_source(steps: list[tuple[str, int, int]]) -> None:
    told, now = board(7, sources=2, connections=3), 0.0
    world = World(told, 7 * MIB)
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
    for source in told.sources:
        source.dropped, source.resting_until = False, 0.0
    while not told.complete:
        world.take(now + 1e6)
        world.end("ok", 0, 0, now)
    world.look()
    assert told.begun == 0


def test_what_was_cut_off_is_gone_on_with_where_it_ended() -> None:
    told = board(1)
    told.failed(taken(told), Failure("cut off", got=3 * UNIT), 0.0)
    assert told.begun == 3 * UNIT
    rest = taken(told, BACKOFF[0])
    assert rest.span == Span(3 * UNIT, MIB)
    assert told.arrived(rest, None)
    assert told.done == {0: 0}


def test_another_source_goes_on_with_it_and_the_piece_is_then_of_both() -> None:
    told = board(1, sources=2)
    told.failed(taken(told), Failure("cut off", got=3 * UNIT), 0.0)
    rest = taken(told)
    assert (rest.source, rest.span) == (1, Span(3 * UNIT, MIB))
    assert told.arrived(rest, None)
    assert told.done == {0: MIXED}


def test_a_piece_of_two_sources_is_forgotten_when_the_file_of_one_of_them_changes() -> None:
    told = board(2, sources=2, connections=1)
    first = taken(told)
    told.failed(first, Failure("cut off", got=UNIT), 0.0)
    told.arrived(taken(told), '"b"')
    assert told.done == {0: MIXED}
    assert told.failed(taken(told, 9.0), Failure("changed", changed=True), 9.0) == [0]
    assert told.done == {}


def test_what_came_of_the_file_before_is_not_gone_on_with() -> None:
    told = board(2, connections=2)
    first, second = taken(told), taken(told)
    told.failed(first, Failure("cut off", got=UNIT), 0.0)
    told.failed(second, Failure("changed", changed=True), 0.0)
    assert taken(told, BACKOFF[0]).span == first.span


def test_nobody_writes_where_an_answer_of_the_file_before_is_still_written() -> None:
    told = board(2, connections=2)
    late, changed = taken(told), taken(told)
    told.failed(changed, Failure("changed", changed=True), 0.0)
    assert told.take(0.0) is None
    told.sources[0].identified = True
    again = taken(told)
    assert again.piece == changed.piece
    assert told.take(0.0) is None
    assert not told.arrived(late, '"one"')
    assert taken(told).span == late.span


def test_the_last_pieces_are_shared_by_all_connections_and_before_that_a_request_is_a_piece() -> None:
    told = board(12, connections=4)
    tasks = [taken(told) for _ in range(4)]
    assert {task.span.size for task in tasks} == {MIB}
    for task in tasks:
        told.arrived(task, None, 2.0)  # half a MiB a second: what takes a quarter of a second is the smallest part
    sizes = []
    while (part := told.take(0.0)) is not None:
        sizes.append(part.span.size)
        told.arrived(part, None, 2.0 * part.span.size / MIB)
    assert told.complete
    assert sizes[0] == MIB
    assert sizes[-4:] == [SMALLEST_PART] * 4
    assert sum(sizes) == 8 * MIB


def test_a_fast_connection_gets_no_small_parts() -> None:
    told = board(3)
    while (task := told.take(0.0)) is not None:
        assert task.span.size == MIB
        told.arrived(task, None, 0.01)


def test_the_only_source_is_kept_as_long_as_it_moves_and_another_is_turned_to() -> None:
    for sources, dropped in ((1, False), (2, True)):
        told, now = board(8, sources=sources), 0.0
        told.sources[-1].resting_until = 1e9 if sources > 1 else 0.0
        for _ in range(len(BACKOFF) + 1):
            task = taken(told, now)
            told.failed(task, Failure("cut off", got=UNIT), now)
            now += max(BACKOFF)
        assert told.sources[0].dropped is dropped
