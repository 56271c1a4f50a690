"""How long, how often and how evenly, in words."""

from typing import Any

from msgspec import structs

from envcheck.reports import phrases
from envcheck.runner.schema import Attempt, OutcomeRow, Plan, Spread, Timing
from tests.builders import planned, report, row
from tests.tables import each


def timed(identity: str, seconds: float, planned: float, **more: Any) -> OutcomeRow:
    attempt = Attempt(status="pass", value=None, seconds=seconds, body=seconds)
    return row(identity, planned=planned, attempts=[attempt], **more)


def plan(*seconds: float, **choices: Any) -> Plan:
    checks = [planned(f"c{number}", seconds=each) for number, each in enumerate(seconds)]
    return Plan(level="quick", checks=checks, nproc=2, **choices)


@each(
    ("seconds", "message"),
    [(0.4, "<1 s"), (1.0, "1 s"), (119.4, "119 s"), (120.0, "2 min"), (605.0, "10 min 5 s"), (3600.0, "60 min")],
)
def test_durations(seconds: float, message: str) -> None:
    assert phrases.duration(seconds) == message


@each(
    ("choices", "message"),
    [
        ({}, "about 12 s"),
        ({"repeat": 3}, "3 times, about 36 s"),
        ({"duration": 600.0}, "again and again for 10 min"),
        ({"budget": 10.0}, "about 12 s if all; 1 expected to fit into 10 s"),
    ],
)
def test_what_is_said_before_it_begins(choices: dict[str, Any], message: str) -> None:
    assert phrases.extent(plan(2.0, 10.0, **choices)) == message


def test_time_taken_stands_beside_time_planned() -> None:
    rows = [timed("short", 0.2, 0.5), timed("over", 7.04, 2.0), timed("under", 0.9, 5.0)]
    rows += [timed("skipped", 0.0, 9.0), timed("left", 0.0, 9.0, left_out=True)]
    rows += [timed("not here", 0.1, 10.0, status="skip")]
    made = report(*rows, timing=Timing(planned=25.5, taken=12.06, starting=2.91))
    assert phrases.taken(made) == ("12.1 s: starting Python and torch 2.9 s; over 7.0 s (planned 2 s)")
    assert phrases.taken(structs.replace(made, timing=None)) == ""


def test_a_spread_says_how_often_what_and_from_where_to_where() -> None:
    spread = Spread(rounds=3, statuses={"pass": 2, "fail": 1}, told_in=2, smallest=0.5, median=1.0, largest=2.25)
    assert phrases.spread(timed("a", 1.0, 1.0, status="fail", unit="GB/s", spread=spread)) == (
        "2 pass, 1 fail (first in round 2)",
        "0.5 / 1 / 2.25 GB/s",
    )
    memory = Spread(rounds=1, statuses={"pass": 1}, told_in=1, smallest=1 << 20, median=1 << 21, largest=1 << 30)
    assert phrases.spread(timed("a", 1.0, 1.0, unit="B", spread=memory)) == ("1 pass", "1 MiB / 2 MiB / 1 GiB")
    assert phrases.spread(timed("a", 1.0, 1.0, spread=Spread(rounds=1, statuses={"pass": 1}, told_in=1))) == (
        "1 pass",
        "",
    )
    assert phrases.spread(timed("a", 1.0, 1.0)) == ("", "")


@each(
    ("choices", "now", "message"),
    [
        ({}, "", "0/2 done; starting Python and torch 3 s; 4 s of about 12 s in all"),
        ({}, "c1", "0/2 done; c1 3 s of about 10 s; 4 s of about 12 s in all"),
        ({"repeat": 2}, "c1", "round 1 of 2, 0/2 done; c1 3 s of about 10 s; 4 s of about 24 s in all"),
        ({"duration": 60.0}, "c1", "round 1, 0/2 done; c1 3 s of about 10 s; 4 s of about 60 s in all"),
        ({"budget": 8.0}, "c1", "0/2 done; c1 3 s of about 10 s; 4 s of about 8 s in all"),
    ],
)
def test_the_progress_line(choices: dict[str, Any], now: str, message: str) -> None:
    assert phrases.progress(plan(2.0, 10.0, **choices), 0, now, (3.0, 4.0), 1) == message


@each(
    ("gpus", "least_ranks", "fitting", "message"),
    [
        (1, 1, ["x"], "10 s"),
        (1, 1, [], "left out"),
        (0, 1, ["x"], "no GPU"),
        (1, 2, ["x"], "too few"),
        (None, 2, ["x"], "10 s"),
    ],
)
def test_a_check_that_takes_no_time_here_says_why(
    gpus: int | None, least_ranks: int, fitting: list[str], message: str
) -> None:
    check = planned("x", seconds=10.0, least_ranks=least_ranks)
    assert phrases.cost(Plan(level="full", checks=[check], nproc=2, gpus=gpus), check, fitting) == message
