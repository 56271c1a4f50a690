"""A run: start the worker, read the node meanwhile, judge as measurements come, measure a lost performance twice."""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from msgspec import structs

from envcheck.checks import FAIL, Outcome, View, undecided
from envcheck.node.snapshot import Snapshot
from envcheck.runner import judge, session
from envcheck.runner.discover import Found
from envcheck.runner.outcomes import ending, row
from envcheck.runner.plan import worker_plan
from envcheck.runner.record import LimitRow, Mode, OutcomeRow, Plan, Verdict
from envcheck.runner.target import Target

_PAUSE = 3.0


class Watcher(Protocol):
    """Who is told of a run while it goes on."""

    def running(self, check: str) -> None:
        """Be told which check runs now; "" for the start of Python and torch."""

    def learned(self, run: Run) -> None:
        """Be told that the run knows more than before."""


@dataclasses.dataclass
class Run:
    """All that is known of a run so far. `chosen` are the checks of `plan`, in its order.

    `resolution` is what the resolver said of this machine and the target's torch, when it was asked; `matrix` the
    Matrix to judge by, None for the shipped one.
    """

    plan: Plan
    chosen: Sequence[Found]
    target: Target
    started: str = ""
    ended: str = ""
    site: Path | None = None
    spawn: bool = False
    resolution: str | None = None
    matrix: Any = None
    snapshot: Snapshot = dataclasses.field(default_factory=Snapshot)
    environment: dict[str, Any] = dataclasses.field(default_factory=dict)
    promises: dict[str, str] = dataclasses.field(default_factory=dict)
    outcomes: dict[str, OutcomeRow] = dataclasses.field(default_factory=dict)

    @property
    def mode(self) -> Mode:
        """Return what the ranks run on: "gpu" once CUDA shows a device to torch, "unknown" before that is asked."""
        if "device_count" not in self.environment:
            return "unknown"
        return "gpu" if self.environment["device_count"] else "cpu"

    @property
    def view(self) -> View:
        """Return what judges may look at."""
        return View(self.snapshot, self.environment, self.promises, "gpu" if self.mode == "gpu" else "cpu", self.matrix)

    @property
    def ordered(self) -> list[OutcomeRow]:
        """Return the outcomes there are, in the order of the plan; then what belongs to no check."""
        ids = [c.id for c in self.plan.checks]
        return [self.outcomes[i] for i in [*ids, *(o for o in self.outcomes if o not in ids)] if i in self.outcomes]

    @property
    def verdict(self) -> Verdict:
        """Return what it came to so far; a run that has not ended is no pass."""
        return judge.verdict(self.ordered, self.mode, complete=bool(self.ended))


def validate(run: Run, collect: Callable[[], Snapshot], watcher: Watcher, pause: float = _PAUSE) -> None:
    """Carry out a run's plan; on return every planned check has its outcome."""
    run.started = _now()
    watcher.running("")
    try:
        _measure(run, run.plan, collect, watcher)
        again = [c for c in run.plan.checks if c.performance and run.outcomes[c.id].status == FAIL]
        if again:
            time.sleep(pause)
            _measure(run, structs.replace(run.plan, checks=again), lambda: run.snapshot, watcher)
        _require_gpu(run)
        run.ended = _now()
    finally:
        watcher.learned(run)


def _measure(run: Run, plan: Plan, collect: Callable[[], Snapshot], watcher: Watcher) -> None:
    told = worker_plan(
        plan,
        {f.id: f.source for f in run.chosen},
        ours=run.target.ours,
        spawn=run.spawn,
        import_timeout=session.IMPORT_TIMEOUT,
    )
    found = {f.id: f for f in run.chosen if f.id in {c.id for c in plan.checks}}
    limits = {c.id: c.timeout for c in plan.checks}
    unfinished = set(found)
    # The worker imports torch while this process reads the node.
    with session.working_directory(told, run.site) as directory, ThreadPoolExecutor(1) as beside:
        reading = beside.submit(collect)
        for event in session.events(run.target, directory, limits):
            run.snapshot = reading.result()
            for identity, outcome in _told(run, event, found, unfinished):
                unfinished.discard(identity)
                run.outcomes[identity] = row(found[identity], outcome, event, run.outcomes.get(identity))
            if event["event"] == "started":
                watcher.running(event["id"])
            watcher.learned(run)


def _told(run: Run, event: session.Event, found: dict[str, Found], unfinished: set[str]) -> list[tuple[str, Outcome]]:
    """Return the outcomes that an event makes known."""
    if event["event"] == "environment":
        run.environment = event["facts"]
        run.promises = run.target.promises(run.environment)
        return [(i, o) for i in sorted(unfinished) if (o := _unmeasured(run, found[i])) is not None]
    if event["event"] == "done":
        return [(event["id"], _measured(run, found[event["id"]], event))]
    if event["event"] in session.LAST:
        why = ending(event, importing=not run.environment)
        run.environment = run.environment or {"error": why}
        lost = undecided(why, fix="see the log, and try `--only` with one check")
        return [(i, _unmeasured(run, found[i]) or lost) for i in sorted(unfinished)]
    return []


def _unmeasured(run: Run, found: Found) -> Outcome | None:
    """Return the outcome of a check that needs nothing measured, or cannot be; None for one that must be."""
    if found.kind == "env" and "device_count" not in run.environment:
        return None
    gpus = len(run.snapshot.gpus) if found.kind == "node" else int(run.environment["device_count"])
    why = _no_nvml(run.snapshot) if found.kind == "node" else _no_gpu(run.environment)
    lacking = judge.without_gpu(found, gpus, why, require_gpu=run.plan.require_gpu)
    if lacking is None and found.kind == "node":
        return judge.decide(found, run.view)
    return lacking


def _no_gpu(environment: dict[str, Any]) -> str:
    for key in ("device_error", "device_facts_error"):
        if key in environment:
            return str(environment[key])
    if "error" in environment:
        return f"torch cannot be imported ({environment['error']})"
    return "CUDA shows none" if environment.get("cuda") else "this torch is built without CUDA"


def _no_nvml(snapshot: Snapshot) -> str:
    return snapshot.signal("driver.version").reason or "NVML shows none"


def _measured(run: Run, found: Found, event: session.Event) -> Outcome:
    error = event["error"]
    if error is None:
        return judge.decide(found, run.view, event["ranks"])
    if error["text"] == run.environment.get("error"):
        fix = "give --python an interpreter that has torch; `envcheck build` makes one"
        return undecided(f"torch cannot be imported: {error['text']}", fix=fix)
    return undecided(f"rank {error['rank']} {error['text']}", fix="see the log in the report", rank=error["rank"])


def _require_gpu(run: Run) -> None:
    """Without a GPU, --require-gpu is a failure even where no check of the plan would have used one."""
    if not run.plan.require_gpu or run.mode == "gpu" or FAIL in {o.status for o in run.outcomes.values()}:
        return
    run.outcomes["require-gpu"] = OutcomeRow(
        id="require-gpu",
        kind="env",
        status="fail",
        summary=f"torch sees no GPU: {_no_gpu(run.environment)}",
        value=0,
        unit="GPUs",
        limit=LimitRow(value=1, unit="GPUs", source="--require-gpu", kind="at least"),
        remedy=judge.GPU_FIX,
    )


def _now() -> str:
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
