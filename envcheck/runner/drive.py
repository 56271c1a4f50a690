"""A run: start the worker, read the node meanwhile, judge as measurements come, measure a lost performance twice."""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec import structs

from envcheck.checks import FAIL, Outcome, View, undecided
from envcheck.node import shapes
from envcheck.node.snapshot import Snapshot
from envcheck.runner import budget, demands, judge, locked, peers, resume, session, soak
from envcheck.runner.discover import Found
from envcheck.runner.outcomes import BY_HAND, ending, lost, row
from envcheck.runner.plan import worker_plan
from envcheck.runner.record import LimitRow, Mode, OutcomeRow, Plan, Planned, Timing, Verdict
from envcheck.runner.target import Target

_PAUSE = 3.0
_SAME: Final = "same-environment"


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
    Matrix to judge by, None for the shipped one. `known` are the outcomes of earlier rounds, or of the run that this
    one goes on with (then `resumed` says when, and `report` which file that was); `current` those of this round.
    `demands` are a site's on what is measured.
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
    demands: Sequence[demands.Demand] = ()
    snapshot: Snapshot = dataclasses.field(default_factory=Snapshot)
    environment: dict[str, Any] = dataclasses.field(default_factory=dict)
    promises: dict[str, str] = dataclasses.field(default_factory=dict)
    known: dict[str, OutcomeRow] = dataclasses.field(default_factory=dict)
    current: dict[str, OutcomeRow] = dataclasses.field(default_factory=dict)
    boot: str = dataclasses.field(default_factory=resume.boot_id)
    resumed: list[str] = dataclasses.field(default_factory=list)
    report: Path | None = None
    taken: float = 0.0
    starting: float = 0.0
    _since: float = dataclasses.field(default_factory=time.monotonic)
    _before: float = 0.0
    _shaped: tuple[Any, Any] = (None, None)

    def go_on(self, earlier: resume.Earlier, where: Path, tool: str) -> None:
        """Take over what a run that was cut short came to. Raises ConfigError where this is not the same run."""
        resume.refuse_unlike(earlier, self.plan, self.target.facts, tool, where)
        kept = {row.id: row for row in earlier.outcomes}
        second = {i: row for i, row in kept.items() if not self.plan.soak and resume.unfinished(row, self.plan)}
        self.known, self.current = {i: row for i, row in kept.items() if i not in second}, second
        self.environment, self.snapshot = dict(earlier.environment), earlier.snapshot
        self.started, self.resumed, self.report = earlier.started, [*earlier.resumed, _now()], where
        if earlier.timing is not None:
            self._before, self.starting = earlier.timing.taken, earlier.timing.starting

    def begin(self) -> None:
        """Start the clock."""
        self.started, self._since = self.started or _now(), time.monotonic()

    @property
    def elapsed(self) -> float:
        """Return the seconds since it began, less those in which it was not running."""
        return self._before + time.monotonic() - self._since

    @property
    def number(self) -> int:
        """Return which round this is, from 1."""
        return 1 + min(soak.rounds(self.known.get(check.id)) for check in self.plan.checks)

    @property
    def done(self) -> int:
        """Return how many checks of this round have come to something."""
        number, known = self.number, self.known
        return sum(c.id in self.current or soak.rounds(known.get(c.id)) >= number for c in self.plan.checks)

    @property
    def outcomes(self) -> dict[str, OutcomeRow]:
        """Return what each check came to, over all rounds."""
        if not self.plan.soak:
            return {**self.known, **self.current}
        over = {i: row for i, row in self.current.items() if not resume.unfinished(row, self.plan)}
        return {**self.known, **{i: soak.fold(self.known.get(i), row) for i, row in over.items()}}

    @property
    def timing(self) -> Timing:
        """Return the seconds planned and taken, as they were when a watcher was last told."""
        return Timing(planned=self.plan.seconds, taken=round(self.taken, 3), starting=round(self.starting, 3))

    @property
    def mode(self) -> Mode:
        """Return what the ranks run on: "gpu" once CUDA shows a device to torch, "unknown" before that is asked."""
        if "device_count" not in self.environment:
            return "unknown"
        return "gpu" if self.environment["device_count"] else "cpu"

    @property
    def view(self) -> View:
        """Return what judges may look at; a signal's value that has not its shape was not read."""
        if self._shaped[0] is not self.snapshot:
            self._shaped = (self.snapshot, shapes.sound(self.snapshot))
        mode, image = "gpu" if self.mode == "gpu" else "cpu", self.target.facts.image
        told = structs.asdict(image) if image else {}
        return View(self._shaped[1], self.environment, self.promises, mode, self.matrix, told)

    @property
    def ordered(self) -> list[OutcomeRow]:
        """Return the outcomes there are, in the order of the plan; then what belongs to no check."""
        ids, outcomes = [c.id for c in self.plan.checks], self.outcomes
        return [outcomes[i] for i in [*ids, *(o for o in outcomes if o not in ids)] if i in outcomes]

    @property
    def verdict(self) -> Verdict:
        """Return what it came to so far; a run that has not ended is no pass."""
        return judge.verdict(self.ordered, self.mode, complete=bool(self.ended))


def validate(run: Run, collect: Callable[[], Snapshot], watcher: Watcher, pause: float = _PAUSE) -> None:
    """Carry out a run's plan; on return every planned check has its outcome.

    Raises ConfigError, and tells the watcher nothing, where it is to go on with another environment's run.
    """
    run.begin()
    try:
        while checks := soak.to_do(run.plan, run.known, run.elapsed):
            _round(run, checks, collect, watcher, pause)
        insist_on_gpu(run)
        run.known.update(demands.hold(run.demands, run.outcomes))
        run.ended = _now()
    finally:
        _tell(run, watcher)


def _round(run: Run, checks: list[Planned], collect: Callable[[], Snapshot], watcher: Watcher, pause: float) -> None:
    # What waits for its second look, in a run that is gone on with, has had its first.
    first = [c for c in checks if c.id not in run.current]
    watcher.running("")
    if first:
        left = None if run.plan.budget is None else run.plan.budget - run.elapsed
        _measure(run, structs.replace(run.plan, checks=first, budget=left), collect, watcher)
    again = [c for c in checks if c.id in run.current and resume.unfinished(run.current[c.id], run.plan)]
    if again:
        time.sleep(pause)
        before = run.snapshot
        reread = collect if run.report is not None else lambda: before
        # A check that has begun is not cut short by a budget.
        _measure(run, structs.replace(run.plan, checks=again, budget=None), reread, watcher)
    run.known, run.current = run.outcomes, {}


def _tell(run: Run, watcher: Watcher) -> None:
    # Until it is known to be the same environment, the report of the run that was cut short stays as it is.
    if run.report is None:
        run.taken = run.elapsed
        watcher.learned(run)


def _measure(run: Run, plan: Plan, collect: Callable[[], Snapshot], watcher: Watcher) -> None:
    begun = time.monotonic()
    probes = [f.id for f in run.chosen if f.check.probe]
    told = worker_plan(
        plan,
        {f.id: f.source for f in run.chosen},
        ours=run.target.ours,
        spawn=run.spawn,
        import_timeout=session.IMPORT_TIMEOUT,
        probes=probes,
        imports={f.id: f.check.imports for f in run.chosen},
        environment=peers.environment(probes, run.outcomes),
    )
    found = {f.id: f for f in run.chosen if f.id in {c.id for c in plan.checks}}
    limits = {c.id: c.timeout for c in plan.checks}
    unfinished = set(found)
    # The worker imports torch while this process reads the node.
    with session.working_directory(told, run.site) as directory, ThreadPoolExecutor(1) as beside:
        reading = beside.submit(collect)
        reading.add_done_callback(lambda _: session.node_was_read(directory))
        for event in session.events(run.target, directory, limits):
            if event["event"] == "environment":
                run.starting += time.monotonic() - begun
                _compare(run, event["facts"], reading.result())
            if run.plan.soak or not run.snapshot.taken:
                run.snapshot = reading.result()
            for identity, outcome in _told(run, event, found, unfinished):
                unfinished.discard(identity)
                run.current[identity] = row(found[identity], outcome, event, run.current.get(identity))
            if event["event"] == "started":
                watcher.running(event["id"])
            _tell(run, watcher)


def _compare(run: Run, facts: dict[str, Any], snapshot: Snapshot) -> None:
    """Hold an environment that was known before against what it is now: what changed meanwhile was not validated."""
    found = resume.changed(run.environment, facts, run.snapshot, snapshot)
    if run.report is not None:
        resume.refuse(found, run.report)
        run.report = None
    elif found:
        run.current[_SAME] = OutcomeRow(
            id=_SAME,
            kind="env",
            status="fail",
            summary=f"it changed while it was validated: {'; '.join(found)}",
            remedy="look at the kernel log and at who else works on this node, then run again",
        )


def _told(run: Run, event: session.Event, found: dict[str, Found], unfinished: set[str]) -> list[tuple[str, Outcome]]:
    """Return the outcomes that an event makes known."""
    if event["event"] == "environment":
        run.environment = event["facts"]
        run.promises = locked.with_packages(run.target.promises(run.environment))
        return [(i, o) for i in sorted(unfinished) if (o := unmeasured(run, found[i])) is not None]
    if event["event"] == "done":
        return [(event["id"], _measured(run, found[event["id"]], event))]
    if event["event"] == "left-out":
        seconds = found[event["id"]].check.seconds
        return [(event["id"], budget.left_out(seconds, event["left"], run.plan.budget))]
    if event["event"] in session.LAST:
        run.report = None
        importing = not run.environment
        why = ending(event, importing=importing)
        run.environment = run.environment or {"error": why}
        gone = undecided(why, fix=BY_HAND if importing else "see the log, and try `--only` with one check")
        return [(i, unmeasured(run, found[i]) or gone) for i in sorted(unfinished)]
    return []


def unmeasured(run: Run, found: Found) -> Outcome | None:
    """Return the outcome of a check that needs nothing measured, or cannot be; None for one that must be."""
    if found.kind == "env" and "device_count" not in run.environment:
        return None
    gpus = len(run.snapshot.gpus) if found.kind == "node" else int(run.environment["device_count"])
    why = _no_nvml(run.snapshot) if found.kind == "node" else _no_gpu(run.environment)
    lacking = judge.without_gpu(found, gpus, why, require_gpu=run.plan.require_gpu)
    if lacking is not None:
        return lacking
    if found.kind == "node":
        return judge.decide(found, run.view)
    return None if "error" in run.environment else judge.alone(found, gpus or run.plan.nproc)


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
        return peers.told(found, judge.decide(found, run.view, event["ranks"]), peers.kept(event))
    return peers.lost(found, lost(error, run.environment.get("error")), error)


def insist_on_gpu(run: Run) -> None:
    """Without a GPU, --require-gpu is a failure even where no check of the plan would have used one."""
    if not run.plan.require_gpu or run.mode == "gpu" or FAIL in {o.status for o in run.outcomes.values()}:
        return
    run.known["require-gpu"] = OutcomeRow(
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
