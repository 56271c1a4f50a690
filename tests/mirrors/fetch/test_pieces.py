"""Who is asked for what next, without clock or network."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from envcheck.mirrors.fetch.limits import LONGEST_WAIT
from envcheck.mirrors.fetch.plan.pieces import MIB, Failure, RangeTask, piece_size, spans
from envcheck.mirrors.fetch.plan.scheduler import BACKOFF, PieceScheduler


def board(sources: int = 2, size: int = 4 * MIB, **more: int) -> PieceScheduler:
    return PieceScheduler(size, MIB, sources, per_source=more.get("per_source", 2), done={})


@given(st.integers(0, 1 << 42))
def test_pieces_cover_a_file_without_gap_or_overlap(size: int) -> None:
    piece = piece_size(size)
    actual = spans(size, max(piece, size // 4096 + 1))
    assert sum(span.size for span in actual) == size
    assert all(a.stop == b.start for a, b in itertools.pairwise(actual))


@given(st.integers(1, 1 << 42))
def test_a_journal_stays_short(size: int) -> None:
    assert size / piece_size(size) <= 2048


def known(piece_scheduler: PieceScheduler) -> PieceScheduler:
    for source in piece_scheduler.sources:
        source.identified = True
    return piece_scheduler


def test_one_request_finds_out_which_file_a_source_has() -> None:
    piece_scheduler = board(sources=1, per_source=9)
    first = piece_scheduler.take(0.0)
    assert first is not None
    assert piece_scheduler.take(0.0) is None
    piece_scheduler.answered(first, '"a"')
    second = piece_scheduler.take(0.0)
    assert second is not None
    assert second.etag == '"a"'


def test_pieces_go_to_the_first_source_up_to_its_connections() -> None:
    scheduler = known(board())
    taken = [scheduler.take(0.0) for _ in range(5)]
    assert [(task.piece, task.source) if task else None for task in taken] == [(0, 0), (1, 0), (2, 1), (3, 1), None]


def test_a_source_that_failed_rests_longer_each_time_and_then_is_left_alone() -> None:
    scheduler, now = board(sources=1), 0.0
    for remaining in BACKOFF:
        task = scheduler.take(now)
        assert task is not None
        scheduler.failed(task, Failure("down"), now)
        assert scheduler.take(now) is None
        assert scheduler.wait(now) == remaining
        now += remaining
    task = scheduler.take(now)
    assert task is not None
    scheduler.failed(task, Failure("down"), now)
    assert scheduler.wait(now) is None
    assert scheduler.sources[0].dropped


def refused(piece_scheduler: PieceScheduler, now: float, failure: Failure) -> None:
    """Have the next request fail."""
    task = piece_scheduler.take(now)
    assert task is not None
    piece_scheduler.failed(task, failure, now)


def test_who_asks_to_wait_is_left_alone_for_as_long() -> None:
    piece_scheduler = board(sources=1)
    refused(piece_scheduler, 0.0, Failure("429", after=7.0))
    assert piece_scheduler.wait(0.0) == 7.0


def test_who_asks_to_wait_too_long_at_once_or_in_all_is_given_up() -> None:
    for waits in ([9e9], [float("inf")], [LONGEST_WAIT / 2 + 1] * 2):
        scheduler, now = board(sources=1), 0.0
        for number, wait in enumerate(waits, 1):
            refused(scheduler, now, Failure("429", after=wait))
            assert scheduler.sources[0].dropped is (number == len(waits))
            now += wait


def test_who_gave_something_between_may_ask_to_wait_again() -> None:
    scheduler, now = board(sources=1), 0.0
    for _ in range(3):
        refused(scheduler, now, Failure("429", after=LONGEST_WAIT))
        now += LONGEST_WAIT
        task = scheduler.take(now)
        assert task is not None
        scheduler.arrived(task, None)
    assert not scheduler.sources[0].dropped


def test_who_serves_some_and_asks_the_rest_to_wait_too_long_is_asked_for_fewer_at_once() -> None:
    piece_scheduler = board(sources=1, per_source=2)
    first = piece_scheduler.take(0.0)
    assert first is not None
    piece_scheduler.answered(first, None)
    refused(piece_scheduler, 0.0, Failure("429", after=9e9, crowded=True))
    assert (piece_scheduler.sources[0].dropped, piece_scheduler.sources[0].room) == (False, 1)
    piece_scheduler.arrived(first, None)
    refused(piece_scheduler, 0.0, Failure("429", after=9e9, crowded=True))
    assert piece_scheduler.sources[0].dropped


def test_who_is_slow_for_several_connections_is_tried_with_one_before_it_is_given_up() -> None:
    piece_scheduler = board(sources=1, per_source=3)
    first = piece_scheduler.take(0.0)
    assert first is not None
    piece_scheduler.answered(first, None)
    others = [piece_scheduler.take(0.0) for _ in range(2)]
    for number, task in enumerate((first, *others)):
        assert task is not None
        piece_scheduler.failed(task, Failure("slow", slow=True), 30.0 + 2 * number)
    assert not piece_scheduler.sources[0].dropped
    now = 34.0 + max(BACKOFF)
    alone = piece_scheduler.take(now)
    assert alone is not None
    assert alone.alone
    piece_scheduler.answered(alone, None)
    assert piece_scheduler.take(now) is None
    piece_scheduler.failed(alone, Failure("slow", slow=True), now + 30.0)
    assert piece_scheduler.sources[0].dropped


def test_a_success_makes_earlier_failures_forgotten() -> None:
    piece_scheduler = board(sources=1)
    first = piece_scheduler.take(0.0)
    assert first is not None
    piece_scheduler.failed(first, Failure("down"), 0.0)
    second = piece_scheduler.take(BACKOFF[0])
    assert second is not None
    piece_scheduler.arrived(second, '"a"')
    assert piece_scheduler.sources[0].failures == 0


def test_pieces_of_a_file_that_changed_are_forgotten_once_and_only_that_source_s() -> None:
    piece_scheduler = board(sources=2, per_source=2)
    first = piece_scheduler.take(0.0)
    assert piece_scheduler.take(0.5) is None
    other = piece_scheduler.take(2.0)
    assert first is not None
    assert other is not None
    piece_scheduler.answered(first, '"one"')
    piece_scheduler.answered(other, '"other"')
    second, late = piece_scheduler.take(0.0), piece_scheduler.take(0.0)
    assert second is not None
    assert late is not None
    assert [second.source, late.source] == [0, 1]
    assert piece_scheduler.arrived(first, '"one"')
    third = piece_scheduler.take(0.0)
    assert third is None or third.source == 0
    assert piece_scheduler.arrived(other, '"other"')
    assert piece_scheduler.failed(second, Failure("changed", changed=True), 0.0) == [first.piece]
    assert sorted(piece_scheduler.done) == [other.piece]
    assert piece_scheduler.arrived(late, '"other"')
    task = piece_scheduler.take(0.0)
    assert task is not None
    assert task.etag is None
    piece_scheduler.answered(task, '"two"')
    assert not piece_scheduler.arrived(task, '"one"')
    assert task.piece not in piece_scheduler.done


@given(st.lists(st.sampled_from(["ok", "fail", "drop", "change", "whole"]), max_size=60))
def test_whatever_happens_no_piece_is_lost_or_done_twice(events: list[str]) -> None:
    scheduler, now = board(sources=3, size=9 * MIB + 1), 0.0
    for event in events:
        now += 200.0
        task = scheduler.take(now)
        if task is None:
            break
        if event == "ok":
            scheduler.arrived(task, '"e"')
        else:
            what: dict[str, Any] = {"drop": event == "drop", "changed": event == "change", "whole": event == "whole"}
            scheduler.failed(task, Failure(event, **what), now)
        assert not scheduler.under_way
        assert scheduler.complete == (len(scheduler.done) == len(scheduler.spans))
        assert scheduler.received == sum(scheduler.spans[index].size for index in scheduler.done)


def test_what_was_not_fetched_is_taken_again() -> None:
    scheduler = known(board(sources=1, per_source=9))
    tasks = [task for task in (scheduler.take(0.0) for _ in range(4)) if task]
    for task in tasks[1:]:
        scheduler.arrived(task, None)
    scheduler.failed(tasks[0], Failure("cut off"), 0.0)
    retried = scheduler.take(BACKOFF[0])
    assert retried is not None
    assert retried.piece == tasks[0].piece
    scheduler.arrived(retried, None)
    assert scheduler.complete


def test_requests_that_fail_together_have_failed_once() -> None:
    scheduler = known(board(sources=1, size=9 * MIB, per_source=8))
    tasks = [task for task in (scheduler.take(0.0) for _ in range(8)) if task]
    for task in tasks:
        scheduler.failed(task, Failure("down"), 0.1)
    assert (scheduler.sources[0].failures, scheduler.sources[0].dropped) == (1, False)


def test_a_crowded_source_gets_as_many_requests_as_it_serves_and_later_one_more() -> None:
    scheduler = known(board(sources=1, size=64 * MIB, per_source=8))
    tasks = [task for task in (scheduler.take(0.0) for _ in range(8)) if task]
    for task in tasks[2:]:
        scheduler.failed(task, Failure("429", crowded=True), 0.0)
    assert scheduler.sources[0].failures == 0
    assert scheduler.take(0.0) is None
    scheduler.arrived(tasks[0], None)
    taken = scheduler.take(0.0)
    assert taken is not None
    assert scheduler.take(0.0) is None
    scheduler.arrived(tasks[1], None)
    for _ in range(8):
        scheduler.arrived(taken, None)
        taken = scheduler.take(0.0)
        assert taken is not None
    assert scheduler.take(0.0) is not None
    assert scheduler.take(0.0) is not None


def test_a_source_that_gave_pieces_is_not_left_alone_for_one_refusal() -> None:
    scheduler = known(board(sources=1))
    first, second = scheduler.take(0.0), scheduler.take(0.0)
    assert first is not None
    assert second is not None
    scheduler.arrived(first, None)
    scheduler.failed(second, Failure("it answers 403", drop=True), 0.0)
    assert not scheduler.sources[0].dropped


STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "ok", "fail", "drop", "change", "crowded"]), st.integers(0, 9)), max_size=80
)


@given(STEPS)
def test_with_many_under_way_every_piece_is_missing_under_way_or_done(steps: list[tuple[str, int]]) -> None:
    scheduler, now = board(sources=2, size=9 * MIB, per_source=4), 0.0
    taken: list[RangeTask] = []
    for step, which in steps:
        now += which
        if step == "take":
            task = scheduler.take(now)
            taken += [task] if task else []
        elif taken:
            task = taken.pop(which % len(taken))
            if step == "ok":
                scheduler.answered(task, '"e"')
                scheduler.arrived(task, '"e"')
            else:
                names = {"drop": "drop", "changed": "change", "crowded": "crowded"}
                what: dict[str, Any] = {name: step == kind for name, kind in names.items()}
                scheduler.failed(task, Failure(step, **what), now)
        assert scheduler.under_way == {task.piece for task in taken}
        assert not scheduler.under_way & set(scheduler.done)
        assert [source.busy for source in scheduler.sources] == [sum(t.source == n for t in taken) for n in (0, 1)]
        assert all(1 <= source.room <= 4 and 0 <= source.busy <= 4 for source in scheduler.sources)
    for task in taken:
        scheduler.failed(task, Failure("the end"), now)
    if not scheduler.complete and scheduler.take(now + 1e6) is None:
        assert scheduler.wait(now) is None
