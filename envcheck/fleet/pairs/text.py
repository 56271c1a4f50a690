"""A diagnosis as lines for people, and as the JSON document envcheck/fleet-pairs/1."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Final

import msgspec

from envcheck.counting import counted
from envcheck.fleet.hostlist import fold
from envcheck.fleet.pairs.model import Diagnosis, UnclearNodes
from envcheck.fleet.pairs.session import Fleet
from envcheck.printable import printable

SCHEMA: Final = "envcheck/fleet-pairs/1"


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
        "schema": SCHEMA,
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
