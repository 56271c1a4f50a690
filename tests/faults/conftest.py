"""Machines with a fault put in, and the public command line that has to find it."""

import contextlib
import dataclasses
import functools
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from envcheck.cli import main
from envcheck.node import kernel_log
from envcheck.node.snapshot import Gpu, Signal, Snapshot
from envcheck.reports.model import RunReport, write
from envcheck.runner.planning import discover, plan
from envcheck.runner.schema import Attempt, TargetFacts
from tests import builders
from tests.builders import signals
from tests.tables import beside

CHECKS = {module.id: module for module in discover()}
Row = Mapping[str, Any]

# Snapshots that are of faulty machines.
FAULTY = {"mismatch", "mixed"}
# The wheels of those that the default one is not for.
WHEELS: dict[str, dict[str, Any]] = {
    "v100x4": {"torch": "2.8.0+cu126", "cuda": "12.6", "arch_list": ["sm_50", "sm_60", "sm_70", "sm_75"]},
    "cpu": {"torch": "2.13.0+cpu", "cuda": None, "cudnn": None, "nccl": None, "arch_list": []},
}
# How a fault is put in, by the first of these fields that its row has.
KINDS = {
    "sabotage": "real ranks that lie",
    "rank": "processes that break",
    "measured": "measurements made by hand",
    "fault": "a node, its torch, its labels",
}


class RunResult(NamedTuple):
    """What a user reads: the exit code, the printed text without its blanks, and the outcomes of the JSON."""

    code: int
    printed: str
    outcomes: dict[str, dict[str, Any]]
    verdict: dict[str, Any]


@functools.cache
def catalogue(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = beside(__file__, name)
    return rows


@functools.cache
def recordings() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = beside(str(builders.DATA / "recordings.yaml"))
    return rows


def recorded(row: Row) -> Snapshot:
    """Return the machine of a recording; its GPUs are those of its base with what the source shows."""
    base, own = builders.machine(row["base"]), row["gpus"]
    places = row.get("bus") or [f"0000:{16 + index:02x}:00.0" for index in range(row["count"])]
    lacking = {name: Signal(reason="NVML: Not Supported", why="unsupported") for name in row["lacks"]}
    gpus = []
    for index, place in enumerate(places):
        uuid = f"GPU-{index:08d}-2222-4000-8000-000000000000"
        if index in row.get("lost", {}):
            reason = row["lost"][index]
            lost = Signal(reason=reason, why="lost" if "lost" in reason else "failed")
            gpus.append(Gpu(f"lost-{index}", dict.fromkeys(base.gpus[0].signals, lost)))
            continue
        named = {"index": Signal(index), "uuid": Signal(uuid), "bus_id": Signal(f"0000{place}")}
        shown = {**signals(own["all"]), **lacking, **signals(own.get(index, {}))}
        gpus.append(Gpu(uuid, {**base.gpus[0].signals, **shown, **named}))
    slots = [{"bus_id": place, "driver": "nvidia", "numa_node": 0, "aer": {}} for place in places]
    names = ("driver.version", "driver.kernel", "driver.library", "driver.libcuda")
    node = {**dict.fromkeys(names, row["driver"]), "driver.cuda": row["cuda"]} if "driver" in row else {}
    node |= {"gpu.count": row["count"], "pci.gpus": slots, **logged(row), **row.get("node", {})}
    origin = Signal("transcribed", source=f"{row['source']} {row.get('date', '')}".strip())
    return dataclasses.replace(base, signals={**base.signals, **signals(node), "origin": origin}, gpus=gpus)


def logged(row: Row) -> dict[str, Any]:
    """Return what is read of the lines of the kernel's log that a source shows."""
    if "log" not in row:
        return {}
    records, uptime = [kernel_log.LogRecord(float(at), line) for at, line in enumerate(row["log"])], 1e3
    events = {
        f"kernel.{name}": kernel_log.events(records, uptime, word)
        for name, word in (("xids", "NVRM"), ("sxids", "SXid"))
    }
    return {**events, "kernel.driver_failures": kernel_log.failures(records, uptime, row.get("above", {}))}


def kind(row: Row) -> str:
    return next(result for field, result in KINDS.items() if field in row)


def sound() -> list[dict[str, Any]]:
    """Return the sound machines: those of machines.yaml, and the snapshots and recordings that are of one."""
    names = sorted(path.stem for path in (builders.DATA / "snapshots").glob("*.json") if path.stem not in FAULTY)
    kept = [{"name": name, "machine": name, "environment": WHEELS.get(name, {})} for name in names]
    return [*kept, *catalogue("machines.yaml"), *(row for row in recordings() if "fault" not in row)]


def origin(row: Row) -> str:
    """Return whether a sound machine was recorded; one that was edited is what the edits make it."""
    if "source" in row:
        return "transcribed"
    edited = {"gpus", "node", "gone"} & row.keys()
    known = builders.machine(row.get("machine", "h100x8"))
    return "made from documentation" if edited else str(known.signal("origin").value)


def broken(row: Row) -> Snapshot:
    if "source" in row:
        return recorded(row)
    sound = builders.machine(row.get("machine", "h100x8"))
    changes, missing = row.get("gpus", {}), row.get("gone", [])
    gpus = [
        Gpu(gpu.uuid, {**gpu.signals, **signals(changes.get("all", {})), **signals(changes.get(index, {}))})
        for index, gpu in enumerate(sound.gpus)
        if index not in missing
    ]
    return dataclasses.replace(sound, signals={**sound.signals, **signals(row.get("node", {}))}, gpus=gpus)


def attempts(row: Row, kind: str) -> list[Attempt]:
    """Return the attempts of a row with earlier measurements: these, then the one whose measurements the row has."""
    rounds = [earlier["round"] for earlier in row.get("earlier", []) if kind == "env"]
    last = max(rounds) + (1 if row.get("repeated") else 0) if rounds else 1
    made = [
        Attempt(status="fail", value=None, seconds=1, body=1, round=number, ranks=earlier["ranks"], remeasure=False)
        for number, earlier in zip(rounds, row.get("earlier", []), strict=False)
    ]
    return [*made, Attempt(status="pass", value=None, seconds=1, body=1, round=last, shown=True)] if made else []


def evidence(row: Row) -> RunReport:
    """Return the report of a run on the row's machine that nobody has judged: every check of the node, and its own."""
    snapshot = broken(row)
    seen = {"device_count": len(snapshot.gpus), "devices": [{"uuid": gpu.uuid} for gpu in snapshot.gpus]}
    chosen = [module for module in CHECKS.values() if module.kind == "node"]
    chosen += [CHECKS[row["check"]]] if "measured" in row else []
    unjudged = [
        builders.row(f.id, "error", kind=f.kind, ranks=row.get("measured", []), attempts=attempts(row, f.kind))
        for f in chosen
    ]
    return builders.report(
        *unjudged,
        mode="unknown",
        target=TargetFacts(kind="python", name="/opt/venv/bin/python", chosen="--python"),
        plan=plan(chosen, level="full", nproc=2),
        environment={**builders.TORCH_CU128, **seen, **row.get("environment", {})},
        promises=row.get("promises", {}),
        snapshot=snapshot,
    )


def blankless(text: str) -> str:
    """Return the text without its blanks: how long lines are broken is no matter here."""
    return "".join(text.split())


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunResult]:
    """Return what writes a report and has `envcheck report judge` judge it, as if typed."""

    def run(report: RunReport, *options: str) -> RunResult:
        write(report, tmp_path / "evidence.json")
        argv = ["envcheck", "report", "judge", str(tmp_path / "evidence.json"), "--output"]
        monkeypatch.setattr("sys.argv", [*argv, str(tmp_path / "judged.json"), *options])
        with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit) as ended:
            main()
        judged = json.loads((tmp_path / "judged.json").read_text(encoding="utf-8"))
        outcomes = {row["id"]: row for row in judged["outcomes"]}
        return RunResult(int(str(ended.value.code)), blankless(printed.getvalue()), outcomes, judged["verdict"])

    return run


@pytest.fixture
def judged(judge: Callable[..., RunResult]) -> Callable[[Row], RunResult]:
    return lambda row: judge(evidence(row))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test of each row of the catalogue, by how the fault is put in."""
    rows, sick = catalogue("faults.yaml"), [row for row in recordings() if "fault" in row]
    for name, mine, key in (
        ("fault", [row for row in [*rows, *sick] if not {"sabotage", "rank"} & row.keys()], "fault"),
        ("process", [row for row in rows if "rank" in row], "fault"),
        ("lie", [row for row in rows if "sabotage" in row], "fault"),
        ("sane", sound(), "name"),
    ):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, mine, ids=[row[key] for row in mine])


def pytest_itemcollected(item: pytest.Item) -> None:
    """Have each test of a row say so to tests/conftest.py, which prints the table."""
    params: Mapping[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    for name, row in params.items():
        if name == "sane":
            item.user_properties.append(("sound machine", (row["name"], origin(row))))
        elif name in ("fault", "process", "lie"):
            quiet = "nothing_else" in item.name
            item.user_properties.append(("quiet" if quiet else "fault", (row["fault"], kind(row))))
        elif name == "breakage":
            item.user_properties.append(("fault", (row["name"], "a real environment that was broken")))
        elif name == "variant":
            item.user_properties.append(("sound variant", (row["name"], "")))
