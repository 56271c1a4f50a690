"""Machines with a fault put in, and the real runner that has to find it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from envcheck.node.snapshot import Gpu, Signal, Snapshot, from_json
from envcheck.runner.discover import Found, discover
from envcheck.runner.drive import Run, validate
from envcheck.runner.plan import plan
from envcheck.runner.record import TargetFacts

SNAPSHOTS = Path(__file__).parents[1] / "data" / "snapshots"
CHECKS = {found.id: found for found in discover()}
Row = Mapping[str, Any]

# Snapshots that are of faulty machines.
FAULTY = {"mismatch", "mixed"}
# The wheels of those that the default one is not for.
WHEELS: dict[str, dict[str, Any]] = {
    "v100x4": {"torch": "2.8.0+cu126", "cuda": "12.6", "arch_list": ["sm_50", "sm_60", "sm_70", "sm_75"]},
    "cpu": {"torch": "2.13.0+cpu", "cuda": None, "cudnn": None, "nccl": None, "arch_list": []},
}
# What a sound torch says of itself; the machine's own GPUs are added.
TORCH: dict[str, Any] = {
    "python": "3.12.3",
    "torch": "2.8.0+cu128",
    "cuda": "12.8",
    "cudnn": "9.10.2",
    "nccl": "2.27.3",
    "arch_list": ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"],
}


def catalogue(name: str) -> list[dict[str, Any]]:
    """Return the rows of faults.yaml or of machines.yaml."""
    rows: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    return rows


def sound() -> list[dict[str, Any]]:
    """Return the sound machines: those of machines.yaml, and the snapshots that are of one."""
    names = sorted(path.stem for path in SNAPSHOTS.glob("*.json") if path.stem not in FAULTY)
    kept = [{"name": name, "machine": name, "environment": WHEELS.get(name, {})} for name in names]
    return [*kept, *catalogue("machines.yaml")]


def machine(name: str) -> Snapshot:
    """Return a machine of tests/data/snapshots."""
    return from_json(json.loads((SNAPSHOTS / f"{name}.json").read_text(encoding="utf-8")))


def broken(row: Row) -> Snapshot:
    """Return a machine with the row's edits."""
    sound = machine(row.get("machine", "h100x8"))
    changes, gone = row.get("gpus", {}), row.get("gone", [])
    gpus = [
        Gpu(gpu.uuid, {**gpu.signals, **_signals(changes.get("all", {})), **_signals(changes.get(index, {}))})
        for index, gpu in enumerate(sound.gpus)
        if index not in gone
    ]
    return dataclasses.replace(sound, signals={**sound.signals, **_signals(row.get("node", {}))}, gpus=gpus)


def _signals(edits: Mapping[str, Any]) -> dict[str, Signal]:
    unread = {n: Signal(reason=v["reason"]) for n, v in edits.items() if isinstance(v, dict) and [*v] == ["reason"]}
    return {**{name: Signal(value) for name, value in edits.items()}, **unread}


class Told:
    """A target whose worker says what the row says, and nothing of whose processes is started."""

    ours = True
    facts = TargetFacts(kind="python", name="told", chosen="test")

    def __init__(self, environment: Mapping[str, Any], promises: Mapping[str, str], done: Mapping[str, Any]) -> None:
        self._promises = dict(promises)
        self._events = [{"event": "environment", "facts": dict(environment)}]
        self._events += [{"event": "done", "id": check, **_measured(ranks)} for check, ranks in done.items()]

    def start(self, directory: Path) -> Told:
        """Say it all at once."""
        lines = [json.dumps(event) for event in [*self._events, {"event": "end"}]]
        (directory / "events.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return self

    def promises(self, environment: object) -> dict[str, str]:  # noqa: ARG002 (the contract's)
        """Return the labels."""
        return self._promises

    def poll(self) -> int | None:
        """Run for ever."""
        return None

    def log(self) -> str:
        """Print nothing."""
        return ""

    def end(self, groups: list[int]) -> None:
        """Have nothing to end."""

    def running(self, check: str) -> None:
        """Watch nothing."""

    def learned(self, run: Run) -> None:
        """Learn nothing."""


def _measured(ranks: list[Any]) -> dict[str, Any]:
    return {"ranks": ranks, "error": None, "seconds": 0.1, "body": 0.1, "logs": [""] * len(ranks), "survivors": []}


@pytest.fixture
def judged() -> Callable[..., Run]:
    """Return what runs all checks of the node, and those that a row has measurements for."""

    def run(row: Row) -> Run:
        snapshot = broken(row)
        seen = {"device_count": len(snapshot.gpus), "devices": [{"uuid": gpu.uuid} for gpu in snapshot.gpus]}
        told: dict[str, Any] = {row["check"]: row["measured"]} if "measured" in row else {}
        chosen: list[Found] = [f for f in CHECKS.values() if f.kind == "node" or f.id in told]
        target = Told({**TORCH, **seen, **row.get("environment", {})}, row.get("promises", {}), told)
        made = Run(plan(chosen, level="full", nproc=2), chosen, target)
        validate(made, lambda: snapshot, target, pause=0.0)
        return made

    return run


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test of each row of the catalogue, by how the fault is put in."""
    rows = catalogue("faults.yaml")
    for name, mine, key in (
        ("fault", [row for row in rows if not {"sabotage", "rank"} & row.keys()], "fault"),
        ("process", [row for row in rows if "rank" in row], "fault"),
        ("lie", [row for row in rows if "sabotage" in row], "fault"),
        ("sane", sound(), "name"),
    ):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, mine, ids=[row[key] for row in mine])


@pytest.fixture(scope="session")
def rows() -> list[dict[str, Any]]:
    """Return the whole catalogue of faults."""
    return catalogue("faults.yaml")


@pytest.fixture(scope="session")
def machines() -> list[dict[str, Any]]:
    """Return every sound machine."""
    return sound()


@pytest.fixture
def checks() -> dict[str, Found]:
    """Return the checks there are."""
    return CHECKS
