"""A repeated run: all rounds in one row, and no bad round hidden by a hundred good ones."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import structs

from envcheck.node.snapshot import Signal, Snapshot
from envcheck.runner import execute, outcomes
from envcheck.runner.execute import Run, Watcher, validate
from envcheck.runner.planning import plan
from envcheck.runner.schema import OutcomeRow
from tests import builders
from tests.builders import check_module
from tests.tables import each


def row(status: Any, value: Any = None) -> OutcomeRow:
    return builders.row("a", status, f"{status} {value}", value=value)


def folded(*rows: OutcomeRow) -> OutcomeRow:
    whole = None
    for one in rows:
        whole = outcomes.fold(whole, one)
    assert whole is not None
    return whole


@each("worst", ["fail", "error", "warn", "skip"])
def test_one_round_that_is_no_pass_wins_over_all_that_are(worst: str) -> None:
    combined = folded(row("pass"), row("pass"), row(worst), row("pass"))
    assert combined.status == worst
    assert combined.spread is not None
    assert (combined.spread.rounds, combined.spread.told_in, combined.spread.statuses) == (4, 3, {"pass": 3, worst: 1})


def repeated(*digests: str) -> OutcomeRow:
    """Return the row of a fingerprint that passed, with each rank's digest."""
    ranks = [{"rank": r, "device": f"GPU-{r}", "digests": [d, d], "repeats": 2} for r, d in enumerate(digests)]
    return structs.replace(row("pass"), details={"bits": {str(r): d for r, d in enumerate(digests)}}, ranks=ranks)


def test_bits_that_change_between_rounds_fail_naming_the_gpu() -> None:
    assert folded(repeated("a", "a"), repeated("a", "a"), repeated("a", "a")).status == "pass"
    combined = folded(repeated("a", "a"), repeated("a", "a"), repeated("a", "b"), repeated("a", "a"))
    assert (combined.status, combined.summary) == ("fail", "rank 1 on GPU-1 gave other bits than in the rounds before")
    assert combined.remedy
    assert combined.spread is not None
    assert (combined.spread.told_in, combined.spread.statuses) == (3, {"pass": 3, "fail": 1})


def counted(file: Path) -> str:
    return f"seen = open({str(file)!r}, 'a+')\nseen.write('x')\nseen.seek(0)\nreturn {{'x': len(seen.read())}}"


VALUE = (
    "def judge(view, ranks):\n    x = ranks[0]['x']\n    return failed('odd', fix='mend it', value=x) if x == 2 else "
)
VALUE += "passed('fine', value=x)\n"


def test_rounds_are_really_run_and_the_bad_one_decides(
    add: Callable[..., Path], run_site: Callable[..., Run], tmp_path: Path
) -> None:
    add("counts", counted(tmp_path / "seen"), "ranks=1", VALUE)
    add("sound", "return {}", "ranks=1")
    run = run_site(repeat=3)
    combined = run.outcomes["counts"]
    assert (combined.status, combined.value) == ("fail", 2)
    assert combined.spread is not None
    assert combined.spread.values == [1, 2, 3]
    assert [o.spread.rounds for o in run.outcomes.values() if o.spread] == [3, 3]
    assert run.verdict.sentence.endswith("; 3 rounds")
    assert run.verdict.exit_code == 1


@each(
    ("choices", "data", "elapsed", "to_do"),
    [
        ({}, {}, 0.0, ["a", "b"]),
        ({}, {"a": 1}, 0.0, ["b"]),
        ({}, {"a": 1, "b": 1}, 0.0, []),
        ({"repeat": 2}, {"a": 1, "b": 1}, 0.0, ["a", "b"]),
        ({"repeat": 2}, {"a": 2, "b": 1}, 0.0, ["b"]),
        ({"repeat": 2}, {"a": 2, "b": 2}, 0.0, []),
        ({"duration": 9.0}, {}, 9.0, ["a", "b"]),
        ({"duration": 9.0}, {"a": 4, "b": 4}, 8.9, ["a", "b"]),
        ({"duration": 9.0}, {"a": 4, "b": 4}, 9.0, []),
        ({"duration": 9.0}, {"a": 5, "b": 4}, 99.0, ["b"]),
    ],
)
def test_a_round_that_has_begun_is_finished_and_no_other_begins_when_it_is_over(
    choices: dict[str, Any], data: dict[str, int], elapsed: float, to_do: list[str]
) -> None:
    checks = [check_module(identity) for identity in ("a", "b")]
    known = {identity: folded(*[row("pass")] * count) for identity, count in data.items()}
    made = plan(checks, level="full", nproc=2, **choices)
    assert [c.id for c in execute.to_do(made, known, elapsed)] == to_do


def test_the_node_is_read_in_every_round(site: Path, run_site: Callable[..., Run]) -> None:
    (site / "node" / "heat.py").write_text(
        '"""Doc."""\nfrom envcheck.checks import Check, passed\nCHECK = Check(promise="p", level="quick")\n'
        "def judge(view):\n    return passed('warm', value=view.snapshot.signal('heat').value)\n"
    )
    made = run_site()
    heats: Iterator[float] = iter((40.0, 90.0))
    run = Run(dataclasses.replace(made.asked, plan=plan([*made.asked.chosen], level="full", nproc=2, repeat=2)))
    validate(run, lambda: Snapshot("now", {"heat": Signal(next(heats))}), Watcher())
    spread = run.outcomes["heat"].spread
    assert spread is not None
    assert spread.values == [40.0, 90.0]


def test_a_driver_that_changes_between_rounds_is_a_failure_that_names_both(
    add: Callable[..., Path], run_site: Callable[..., Run]
) -> None:
    add("one", "return {}", "ranks=1")
    made = run_site()
    drivers = iter(("570.26", "570.124.06", "570.124.06"))
    run = Run(dataclasses.replace(made.asked, plan=plan([*made.asked.chosen], level="full", nproc=2, repeat=3)))
    validate(run, lambda: Snapshot("now", {"driver.version": Signal(next(drivers))}), Watcher())
    changed = run.outcomes["same-environment"]
    assert (changed.status, changed.code) == ("fail", "same-environment.changed")
    assert "driver.version was 570.26, is 570.124.06" in changed.summary
    assert run.verdict.exit_code == 1
