"""From the results so far to the tests that come next, or the diagnosis and its text; how much there is to do.

What comes next is a pure function of the results, so a run that was killed goes on from the file that keeps them.
"""

from __future__ import annotations

import datetime as dt
import functools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from envcheck import safe_files
from envcheck.counting import counted, printable
from envcheck.errors import ConfigError
from envcheck.fleet.hostlist import fold
from envcheck.fleet.pairs.diagnosis import Plan, diagnosis, tournament
from envcheck.fleet.pairs.results import ROLL_CALL, Diagnosis, GroupResult, GroupTest, NodeAnswer, UnclearNodes
from envcheck.struct_types import know_types

PairsMode = Literal["tournament", "diagnose"]


class Fleet(NamedTuple):
    """What is to be tested, and how."""

    nodes: tuple[str, ...]
    mode: PairsMode


class NextRound(NamedTuple):
    """Tests to run now, all at the same time, and how many rounds lie before them."""

    tests: tuple[GroupTest, ...]
    done: int


def step(fleet: Fleet, results: Mapping[str, GroupResult]) -> NextRound | Diagnosis:
    """Return the tests of the next round that have no result yet, or the diagnosis. The same results give the same."""
    rounds = planner(fleet)
    number = 0
    try:
        tests = next(rounds)
        while all(test.key in results for test in tests):
            number += bool(tests)
            tests = rounds.send([results[test.key] for test in tests])
    except StopIteration as ended:
        verdict: Diagnosis = ended.value
        return verdict
    return NextRound(tuple(test for test in tests if test.key not in results), number)


def planner(fleet: Fleet) -> Plan:
    """Return the planner of the fleet's mode."""
    return (tournament if fleet.mode == "tournament" else diagnosis)(fleet.nodes)


class Extent(NamedTuple):
    """How much a plan takes: rounds one after another, and tests (groups that start, the roll-call not counted)."""

    rounds: int
    tests: int


def extent(fleet: Fleet, oracle: Callable[[GroupTest], GroupResult]) -> tuple[Extent, Diagnosis]:
    """Run the plan to its end against an oracle that answers each test; as in `step`, none is measured twice."""
    rounds, results = planner(fleet), dict[str, GroupResult]()
    number = measured = 0
    try:
        tests = next(rounds)
        while True:
            new = [test for test in tests if test.key not in results]
            number += bool(new)
            measured += sum(test.step != ROLL_CALL for test in new)
            results |= {test.key: oracle(test) for test in new}
            tests = rounds.send([results[test.key] for test in tests])
    except StopIteration as ended:
        return Extent(number, measured), ended.value


# Minutes for a round of tests, launch included, until some have been measured.
ASSUMED_MINUTES: Final = 2.0


def plan_lines(fleet: Fleet, results: Iterable[GroupResult] = ()) -> list[str]:
    """Return how much there is to do where all is sound, and where one node is at fault, in words.

    It is found by running the plan against made-up results; minutes come from results that exist.
    """
    count = len(fleet.nodes)
    both = [extent(fleet, functools.partial(_answered, faulty))[0] for faulty in ("", fleet.nodes[count // 2])]
    low, high = (f"{counted(one.rounds, 'round')}, {counted(one.tests, 'test')}" for one in both)
    seconds = [result.seconds for result in results if result.seconds > 0]
    minutes = statistics.mean(seconds) / 60 if seconds else ASSUMED_MINUTES
    source = "as measured so far" if seconds else "assumed"
    least, most = (one.rounds * minutes for one in both)
    pairs = counted(count * (count - 1) // 2, "test")
    return [
        f"{counted(count, 'node')}, mode {fleet.mode}: a roll-call, then groups that measure together",
        f"all sound: {low}; one node at fault: about {high}; every pair once is {pairs}",
        f"{least:.0f} to {most:.0f} minutes, at {minutes:.1f} minutes a round ({source})",
    ]


def _answered(faulty: str, test: GroupTest) -> GroupResult:
    if test.step == ROLL_CALL:
        return GroupResult("pass", answers=tuple(NodeAnswer(node, "pass") for node in test.nodes))
    return GroupResult("fail" if faulty in test.nodes else "pass", reason="slow")


SCHEMA: Final = "envcheck/fleet-pairs-state/1"
_FIX: Final = "remove the file to begin anew, or give --state another one"


class PairsState(msgspec.Struct):
    """What the state file holds: which fleet, how its tests start, and the results by the key of their test."""

    nodes: str
    mode: str
    launch: str
    schema: Literal["envcheck/fleet-pairs-state/1"] = SCHEMA
    over: bool = False
    results: dict[str, GroupResult] = {}


know_types(PairsState)


def begin(path: Path, fleet: Fleet, launch: str) -> PairsState:
    """Return the state of an earlier run of the same tests that is not over, else an empty one.

    Raise ConfigError where the file is not a state, or one of other nodes or another launcher.
    """
    fresh = PairsState(fold(fleet.nodes), fleet.mode, launch)
    if not path.exists():
        return fresh
    try:
        state = msgspec.json.decode(safe_files.read_whole(path), type=PairsState)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"{path} is not a state of `fleet pairs`: {error}"
        raise ConfigError(message, fix=_FIX) from error
    if state.over:
        return fresh
    if (state.nodes, state.mode, state.launch) != (fresh.nodes, fresh.mode, fresh.launch):
        message = f"{path} has the results of other nodes, mode or launcher: {state.nodes[:60]}, {state.mode}"
        raise ConfigError(message, fix=_FIX)
    return state


def add(path: Path, state: PairsState, test: GroupTest, result: GroupResult) -> None:
    """Keep a result."""
    state.results[test.key] = result
    write(path, state)


def write(path: Path, state: PairsState) -> None:
    """Replace the file, whole or not at all."""
    safe_files.replace(path, msgspec.json.encode(state))


DOCUMENT_SCHEMA: Final = "envcheck/fleet-pairs/1"


def lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the verdict first, then each finding with its evidence, then the nodes to use now."""
    yield printable(sentence(diagnosis))
    for blame in diagnosis.blamed:
        yield printable(f"{blame.kind} {blame.who}: {blame.reason}")
        yield printable(f"    by: {', '.join(blame.by)}")
    for kind, rows in (("not isolated", diagnosis.not_isolated), ("undetermined", diagnosis.undetermined)):
        for row in rows:
            yield printable(f"{kind}: {_nodes(row)}: {row.reason}")
            yield printable(f"    by: {', '.join(row.by) or 'no test'}")
    for note in diagnosis.notes:
        yield printable(f"note: {note}")
    yield f"use now: {fold(diagnosis.good) or 'no node'}"


def sentence(diagnosis: Diagnosis) -> str:
    """Return the verdict in one line."""
    counts = [
        counted(len(diagnosis.blamed), "fault") if diagnosis.blamed else "",
        f"{len(diagnosis.not_isolated)} not isolated" if diagnosis.not_isolated else "",
        f"{counted(len(diagnosis.undetermined), 'question')} open" if diagnosis.undetermined else "",
    ]
    word = {0: "PASS", 1: "FAIL", 3: "UNDETERMINED"}[diagnosis.exit_code]
    return f"{word}: {', '.join(filter(None, counts)) or counted(len(diagnosis.good), 'node') + ' passed in a group'}"


def document(diagnosis: Diagnosis, fleet: Fleet, tests: int) -> bytes:
    """Return the diagnosis as indented JSON with a final newline; `tests` counts repetitions and the roll-call too."""
    content = {
        "schema": DOCUMENT_SCHEMA,
        "at": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "mode": fleet.mode,
        "nodes": fold(fleet.nodes),
        "tests": tests,
        "verdict": {
            "status": {0: "pass", 1: "fail", 3: "error"}[diagnosis.exit_code],
            "exit_code": diagnosis.exit_code,
            "sentence": sentence(diagnosis),
            "good": fold(diagnosis.good),
            "blame": diagnosis.blamed,
            "not_isolated": diagnosis.not_isolated,
            "undetermined": diagnosis.undetermined,
        },
        "notes": diagnosis.notes,
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def _nodes(row: UnclearNodes) -> str:
    return fold(row.nodes) if row.nodes else "no node"
