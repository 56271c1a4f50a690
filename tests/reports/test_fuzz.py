"""Two thousand snapshots and two thousand measurements with nonsense in what decides: no pass out of garbage.

What decides a check is what it does not pass without, be it a signal or a field of what a rank measured. With garbage
there (no number, a negative one, another kind of value) it must not pass either. Seeds are fixed.
"""

import copy
import functools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envcheck.checks import PASS, View
from envcheck.errors import EnvcheckError
from envcheck.node import collect
from envcheck.reports.model import RunReport, load, rejudge
from envcheck.runner.judging import decide
from envcheck.runner.planning import discover, plan

DATA = Path(__file__).parents[1] / "data"
CHECKS = {module.id: module for module in discover()}
EACH, CHUNKS = 200, 10
NAN = float("nan")
Path_ = tuple[Any, ...]
# Machines of one GPU more often: a snapshot of eight takes five times as long.
MACHINES = ("rtx4090", "mig", "t4", "cpu", "rtx4090", "mixed", "mismatch", "v100x4", "h100x8", "t4")
REPORTS = ("cpu", "cpu", "h200x1", "h200x1", "h100x8-slow-gpu")
# What looks like garbage and is none: (check, last name) -> the values.
MEANT: dict[tuple[str, Any], tuple[Any, ...]] = {
    ("memlock", "bytes"): (-1,),  # RLIM_INFINITY
    ("gpu-lost", "driver"): (None,),  # nothing has bound the device
    ("gpu-lost", "numa_node"): (None, -1),  # the firmware does not say
    ("numa", "driver"): (None,),
    ("container-toolkit", "cdi"): (None, True),  # docker's features.cdi: not set, or on
    ("peer-memory", "rate"): (None,),  # infiniband's business
}


def garbage(old: Any) -> list[Any]:
    if isinstance(old, bool):
        return ["banana", NAN, "nan", -1, 7.5, [], {}, None]
    if isinstance(old, int | float):
        return [NAN, "nan", float("inf"), "banana", "", None, [], {}, True, [1], *([-1, -0.5] if old >= 0 else [])]
    if isinstance(old, str):
        return [NAN, 7, -1, [], {}, True, [old], None]
    return ["banana", 7, NAN, True, None, -1, *([{}] if isinstance(old, list) and old else [])]


def paths(value: Any, above: Path_ = ()) -> Iterator[Path_]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, held in items:
        yield (*above, key)
        yield from paths(held, (*above, key))


def at(tree: Any, path: Path_) -> Any:
    return functools.reduce(lambda held, key: held[key], path, tree)


def put(tree: Any, path: Path_, new: Any) -> Any:
    """Return the tree with something else there; what is not on the way is shared."""
    if not path:
        return new
    changed = copy.copy(tree)
    changed[path[0]] = put(tree[path[0]], path[1:], new)
    return changed


def drop(tree: Any, path: Path_) -> Any:
    """Return the tree without what stands there."""
    holder = copy.copy(at(tree, path[:-1]))
    del holder[path[-1]]
    return put(tree, path[:-1], holder)


@functools.cache
def report(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((DATA / "reports" / f"{name}.json").read_text(encoding="utf-8"))
    return data


@functools.cache
def machine(name: str) -> dict[str, Any]:
    """Return the report of a run of the node's checks on a machine of tests/data/snapshots."""
    base, snapshot = report("h200x1"), json.loads((DATA / "snapshots" / f"{name}.json").read_text(encoding="utf-8"))
    chosen = plan((f for f in CHECKS.values() if f.kind == "node"), level="full", nproc=2)
    devices = [{"index": i, "uuid": gpu["uuid"]} for i, gpu in enumerate(snapshot["gpus"])]
    environment = {**base["environment"], "device_count": len(devices), "devices": devices}
    rows = [{"id": check.id, "kind": "node", "status": "error", "summary": "not judged"} for check in chosen.checks]
    data = {"plan": msgspec.to_builtins(chosen), "environment": environment, "snapshot": snapshot, "outcomes": rows}
    return {**base, **data}


def view(run_report: RunReport) -> View:
    """Return what the judges of a report may look at."""
    facts = collect.sound_facts(run_report.environment)
    mode = "gpu" if facts.get("device_count") else "cpu"
    return View(collect.sound(run_report.snapshot), facts, run_report.promises, mode)


@functools.cache
def deciding(name: str) -> dict[Path_, list[str]]:
    """Return which checks of a machine pass, and do not without a signal, for each signal that was read."""
    data = machine(name)
    nodes = [f for f in CHECKS.values() if f.kind == "node"]
    sound = [f for f in nodes if decide(f, view(msgspec.convert(data, RunReport))).status == PASS]
    gpus = range(len(data["snapshot"]["gpus"]))
    homes: list[Path_] = [("snapshot", "signals"), *(("snapshot", "gpus", number, "signals") for number in gpus)]
    module = {}
    for path in [(*home, signal) for home in homes for signal in at(data, home)]:
        if "value" in at(data, path):
            seen = view(msgspec.convert(put(data, path, {"reason": "not read"}), RunReport))
            module[path] = [f.id for f in sound if decide(f, seen).status != PASS]
    return {path: ids for path, ids in module.items() if ids}


@functools.cache
def measured(name: str) -> list[tuple[int, Path_]]:
    """Return the fields of measurements that their check passes with, and not without: row, and the way to it."""
    seen, module = view(example(name)), []
    for number, row in enumerate(report(name)["outcomes"]):
        check = CHECKS.get(row["id"])
        if row["ranks"] and check and decide(check, seen, row["ranks"]).status == PASS:
            ways = paths(row["ranks"])
            module += [(number, way) for way in ways if decide(check, seen, drop(row["ranks"], way)).status != PASS]
    return module


def meant(identity: str, path: Path_, new: Any) -> bool:
    """Tell whether what looks like garbage says something there."""
    return any(type(new) is type(value) and new == value for value in MEANT.get((identity, path[-1]), ()))


def passing(data: Any, ids: list[str]) -> list[str]:
    seen = view(msgspec.convert(data, RunReport))
    return [identity for identity in ids if decide(CHECKS[identity], seen).status == PASS]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_nonsense_in_snapshots_is_no_pass(chunk: int) -> None:
    chance = random.Random(chunk)  # noqa: S311 (no secret)
    for _ in range(EACH):
        name = chance.choice(MACHINES)
        data = machine(name)
        signal = chance.choice(list(deciding(name)))
        inside = [(*signal, "value", *path) for path in ((), *paths(at(data, signal)["value"]))]
        path = chance.choice((inside[0], chance.choice(inside)))
        new = chance.choice(garbage(at(data, path)))
        wrong = [i for i in passing(put(data, path, new), deciding(name)[signal]) if not meant(i, path, new)]
        # Not everything inside of what decides does so too.
        kept = passing(drop(data, path), wrong) if wrong and path != inside[0] else []
        assert set(wrong) <= set(kept), (name, path, new)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_nonsense_in_measurements_is_no_pass(chunk: int) -> None:
    chance = random.Random(chunk)  # noqa: S311 (no secret)
    for _ in range(EACH):
        name = chance.choice(REPORTS)
        data = report(name)
        row, way = chance.choice(measured(name))
        path = ("outcomes", row, "ranks", *way)
        new = chance.choice(garbage(at(data, path)))
        changed = put(data, path, new)["outcomes"][row]
        status = decide(CHECKS[changed["id"]], view(example(name)), changed["ranks"]).status
        assert status != PASS or meant(changed["id"], path, new), (name, changed["id"], way, new)


@functools.cache
def example(name: str) -> RunReport:
    return load(DATA / "reports" / f"{name}.json")


def torn(chance: random.Random, text: bytes) -> bytes:
    """Return a file's bytes cut off, with a key twice, with Python's NaN, in other letters, or nested."""
    middle = chance.randrange(len(text))
    return chance.choice(
        (
            text[:middle],
            text[:middle] + text[middle + 1 :],
            text.replace(b'{"', b'{"tool": 1, "', 1),
            text.replace(b"0", b"NaN", 3),
            text[:middle] + b"\xff\xfe" + text[middle:],
            text.replace(b"/1", b"/9", 2),
            b"[" * 100_000,
            b"",
        )
    )


def test_a_torn_file_is_a_report_or_one_line(tmp_path: Path) -> None:
    chance, text = random.Random(1), (DATA / "reports" / "h200x1.json").read_bytes()  # noqa: S311 (no secret)
    said = []
    for _ in range(100):
        (tmp_path / "report.json").write_bytes(torn(chance, text))
        try:
            rejudge(load(tmp_path / "report.json"))
        except EnvcheckError as error:
            said.append(str(error))
    assert len(said) > 50
    assert not any("\n" in line for line in said)
