"""A run: what is known of it, and how it goes on.

It starts the worker, reads the node meanwhile, judges as measurements come, and measures a lost performance twice.
"""

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from envcheck.checks import View, failed, undecided
from envcheck.errors import refuse
from envcheck.node.collect import boot_id, now, sound
from envcheck.node.snapshot import Snapshot
from envcheck.runner import judging, worker_session
from envcheck.runner.outcomes import Event, fold, outcome_row, row_of, unfinished
from envcheck.runner.requirements import hold_demands, measured_demands
from envcheck.runner.schema import GroupFacts, Mode, OutcomeRow, Plan, PlannedCheck, RunVerdict
from envcheck.runner.worker.fork_server import NODE_READ
from envcheck.runner.worker_session import RunPlan

_FACTS: Final = ("python", "executable", "prefix", "torch", "cuda", "cudnn", "nccl", "start")
_DRIVER: Final = ("driver.version", "driver.kernel")
_PAUSE = 3.0
_SHOWN = 5


@dataclasses.dataclass
class Run:
    """What is known of a run so far.

    `known` are the outcomes of earlier rounds, or of the run that this one goes on with (then `resumed` says when, and
    `report` which file that was); `current` those of this round. Of a run on several nodes, `group` are those that
    met, their ranks once all are ready; `together` puts what the ranks of all measured into this node's events, of the
    worker whose plan is in that directory.
    """

    asked: RunPlan
    started: str = ""
    ended: str = ""
    snapshot: Snapshot = dataclasses.field(default_factory=Snapshot)
    environment: dict[str, Any] = dataclasses.field(default_factory=dict)
    promises: dict[str, str] = dataclasses.field(default_factory=dict)
    known: dict[str, OutcomeRow] = dataclasses.field(default_factory=dict)
    current: dict[str, OutcomeRow] = dataclasses.field(default_factory=dict)
    boot: str = dataclasses.field(default_factory=boot_id)
    resumed: list[str] = dataclasses.field(default_factory=list)
    report: Path | None = None
    group: GroupFacts | None = None
    together: Callable[[Iterator[Event], Path], Iterator[Event]] | None = None
    taken: float = 0.0
    starting: float = 0.0
    load: float | None = None
    _since: float = dataclasses.field(default_factory=time.monotonic)
    _before: float = 0.0

    def go_on(self, earlier: "Run", where: Path, tools: tuple[str, str]) -> None:
        """Take over what a run that was cut short came to; refuse another run's. `tools`: versions then and now."""
        if earlier.ended:
            refuse(f"the run in {where} is complete", "leave --resume out to run again")
        then, target = earlier.asked.target.facts, self.asked.target.facts
        before, plan = earlier.asked.plan, self.asked.plan
        options = [name for name in plan.__struct_fields__ if name not in {"checks", "gpus"}]
        found = _differences(
            [
                ("envcheck", *tools),
                *((f"--{n.replace('_', '-')}", getattr(before, n), getattr(plan, n)) for n in options),
                ("target", then.name, target.name),
                ("image", then.image_id, target.image_id),
            ]
        )
        both = [*before.checks, *plan.checks]
        odd = sorted({c.id for c in both if c not in before.checks or c not in plan.checks})
        more = f" and {len(odd) - _SHOWN} more" if len(odd) > _SHOWN else ""
        found += [f"the checks differ by {', '.join(odd[:_SHOWN])}{more}"] if odd else []
        if earlier.boot != self.boot or not self.boot:
            found.append("the machine was rebooted since, or it is another machine")
        _refuse(found, where)
        second = {i: row for i, row in earlier.known.items() if not plan.repeated and unfinished(row)}
        self.known, self.current = {i: row for i, row in earlier.known.items() if i not in second}, second
        self.environment, self.snapshot = dict(earlier.environment), earlier.snapshot
        self.started, self.resumed, self.report = earlier.started, [*earlier.resumed, now()], where
        self._before, self.starting = earlier.taken, earlier.starting

    def begin(self) -> None:
        """Start the clock."""
        self.started, self._since = self.started or now(), time.monotonic()
        self.load = os.getloadavg()[0]

    def enter(self, facts: dict[str, Any], snapshot: Snapshot) -> None:
        """Take the environment; what changed since it was known was not validated, and is no run to go on with."""
        known, signal = self.environment, self.snapshot.signal
        found = _differences(
            [
                *((name, known.get(name), facts.get(name)) for name in _FACTS),
                ("GPUs", _devices(known), _devices(facts)),
                *((name, signal(name).value, snapshot.signal(name).value) for name in _DRIVER),
            ]
        )
        if known and self.report is not None:
            _refuse(found, self.report)
        if known and found:
            text = f"the environment changed during the run: {'; '.join(found)}"
            fix = "check the kernel log and other users of this node, then run again"
            changed = failed(text, fix=fix, code="same-environment.changed")
            self.current["same-environment"] = row_of("same-environment", changed)
        self.report, self.environment, self.promises = None, facts, self.asked.target.promises(facts)

    @property
    def elapsed(self) -> float:
        """Return the seconds since it began, less those in which it was not running."""
        return self._before + time.monotonic() - self._since

    @property
    def number(self) -> int:
        """Return which round this is, from 1."""
        return 1 + min(_times(self.asked.plan, self.known).values())

    @property
    def done(self) -> int:
        """Return how many checks of this round have come to something."""
        number = self.number
        return sum(i in self.current or times >= number for i, times in _times(self.asked.plan, self.known).items())

    @property
    def outcomes(self) -> dict[str, OutcomeRow]:
        """Return what each check came to, over all rounds."""
        if not self.asked.plan.repeated:
            return {**self.known, **self.current}
        over = {i: row for i, row in self.current.items() if not unfinished(row)}
        return {**self.known, **{i: fold(self.known.get(i), row) for i, row in over.items()}}

    @property
    def mode(self) -> Mode:
        """Return what the ranks run on: "gpu" once CUDA shows a device to torch, "unknown" before that is asked."""
        count = self.environment.get("device_count")
        return "unknown" if count is None else "gpu" if count else "cpu"

    @property
    def view(self) -> View:
        """Return what judges may look at; a signal's value that has not its shape was not read."""
        mode, image = "gpu" if self.mode == "gpu" else "cpu", self.asked.target.facts.image
        image_facts = structs.asdict(image) if image else {}
        return View(sound(self.snapshot), self.environment, self.promises, mode, self.asked.matrix, image_facts)

    @property
    def ordered(self) -> list[OutcomeRow]:
        """Return the outcomes there are, in the order of the plan; then what belongs to no check."""
        outcomes = self.outcomes
        ids = dict.fromkeys([*(c.id for c in self.asked.plan.checks), *outcomes])
        return [outcomes[i] for i in ids if i in outcomes]

    @property
    def verdict(self) -> RunVerdict:
        """Return what it came to so far; a run that has not ended is no pass."""
        return judging.verdict(self.ordered, self.mode, complete=bool(self.ended))


def _differences(facts: Iterable[tuple[str, Any, Any]]) -> list[str]:
    return [
        f"{name} was {'none' if before is None else before}, is {'none' if today is None else today}"
        for name, before, today in facts
        if before != today
    ]


def _refuse(differences: list[str], where: Path) -> None:
    if differences:
        refuse(f"cannot resume {where}: {'; '.join(differences)}", "leave --resume out to start again")


def _devices(environment: Mapping[str, Any]) -> str:
    return ", ".join(str(d.get("uuid") or d.get("name")) for d in environment.get("devices") or []) or "none"


def _times(plan: Plan, done: Mapping[str, OutcomeRow]) -> dict[str, int]:
    return {check.id: done[check.id].rounds if check.id in done else 0 for check in plan.checks}


def to_do(plan: Plan, done: Mapping[str, OutcomeRow], elapsed: float) -> list[PlannedCheck]:
    """Return the checks of the round to come, done least often: one that has begun is finished. None at the end."""
    times = _times(plan, done)
    least, most = min(times.values()), max(times.values())
    more = least < plan.repeat or (plan.duration is not None and elapsed < plan.duration)
    return [check for check in plan.checks if times[check.id] == least] if more or least < most else []


class Watcher:
    """Observes a run while it goes on; this one shows nothing."""

    def running(self, check: str) -> None:
        """Take the check that runs now; "" for the start of Python and torch."""

    def learned(self, run: Run) -> None:
        """Take the news that the run knows more than before."""


def validate(run: Run, collect: Callable[[], Snapshot], watcher: Watcher, pause: float = _PAUSE) -> None:
    """Carry out a run's plan; on return every planned check has its outcome.

    Raises ConfigError, and tells the watcher nothing, where it is to go on with another environment's run.
    """
    run.begin()
    plan = run.asked.plan
    try:
        while checks := to_do(plan, run.known, run.elapsed):
            watcher.running("")
            # What waits for its second look, in a run that is gone on with, has had its first.
            for looked in (False, True):
                chosen = [c for c in checks if (c.id in run.current) is looked]
                chosen = [c for c in chosen if not looked or unfinished(run.current[c.id])]
                if chosen:
                    time.sleep(pause if looked else 0.0)
                    # A check that has begun is not cut short by a budget.
                    left = None if looked or plan.budget is None else plan.budget - run.elapsed
                    before = run.snapshot
                    reread = collect if not looked or run.report is not None else lambda before=before: before
                    _measure(run, structs.replace(plan, checks=chosen, budget=left), reread, watcher)
            run.known, run.current = run.outcomes, {}
        run.known.update(judging.concluded(run.view, plan, run.outcomes))
        run.known.update(hold_demands(measured_demands(run.asked.requirements), run.outcomes))
        run.ended = now()
    finally:
        _tell(run, watcher)


def _measure(run: Run, plan: Plan, collect: Callable[[], Snapshot], watcher: Watcher) -> None:
    # The worker imports torch while this process reads the node.
    begun, reading = time.monotonic(), _beside(collect)
    instructions = worker_session.worker_plan(plan, run.asked, run.outcomes, several_nodes=run.together is not None)
    planned = {check.id: check for check in plan.checks}
    modules = {f.id: f for f in run.asked.chosen if f.id in planned}
    waiting = set(modules)
    with worker_session.working_directory(instructions, run.asked.site) as directory:
        reading.add_done_callback(lambda _: worker_session.leave_word(directory / NODE_READ))
        events = worker_session.events(run.asked.target, directory, instructions)
        for event in run.together(events, directory) if run.together else events:
            if event["event"] == "environment":
                run.starting += time.monotonic() - begun
                run.enter(event["facts"], reading.result())
            elif event["event"] == "foreign":
                said = "the results of this run hold a line that its worker did not write; it was skipped"
                fix = "look at what the image or Python starts with: something else writes there; run installed-files"
                foreign = undecided(f"{said}: {event['what']}", fix=fix, code="worker.foreign-event")
                run.current["worker-events"] = row_of("worker-events", foreign)
            elif event["event"] in worker_session.LAST:
                run.report, run.environment = None, run.environment or {"error": event["why"]}
            if run.asked.plan.repeated or not run.snapshot.taken:
                run.snapshot = reading.result()
            world = sum(run.group.ranks) if run.group else 0
            for identity, outcome in judging.outcomes_of(event, modules, waiting, run.view, run.asked.plan, world):
                waiting.discard(identity)
                before, seconds = run.current.get(identity), planned[identity].seconds
                run.current[identity] = outcome_row(modules[identity], outcome, event, before, seconds)
            if event["event"] == "started":
                watcher.running(event["id"])
            _tell(run, watcher)


def _tell(run: Run, watcher: Watcher) -> None:
    # Until it is known to be the same environment, the report of the run that was cut short stays as it is.
    if run.report is None:
        run.taken = run.elapsed
        watcher.learned(run)


def _beside(collect: Callable[[], Snapshot]) -> Future[Snapshot]:
    """Read the node on a thread that holds up nobody who wants to leave: a source of it may hang."""
    reading: Future[Snapshot] = Future()

    def work() -> None:
        try:
            reading.set_result(collect())
        except BaseException as error:  # noqa: BLE001 (raised by `result`, which would wait for ever without it)
            reading.set_exception(error)

    threading.Thread(target=work, name="reads the node", daemon=True).start()
    return reading
