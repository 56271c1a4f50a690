"""A run: start the worker, read the node meanwhile, judge as measurements come, measure a lost performance twice."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, Protocol

from msgspec import structs

from envcheck.node.snapshot import Snapshot
from envcheck.runner import judging, requirements, worker_session
from envcheck.runner.outcomes import outcome_row, to_do, unfinished
from envcheck.runner.schema import OutcomeRow, Plan, PlannedCheck
from envcheck.runner.state import Run, now

_PAUSE = 3.0
_SAME: Final = "same-environment"


class Watcher(Protocol):
    """Observes a run while it goes on."""

    def running(self, check: str) -> None:
        """Take the check that runs now; "" for the start of Python and torch."""

    def learned(self, run: Run) -> None:
        """Take the news that the run knows more than before."""


def validate(run: Run, collect: Callable[[], Snapshot], watcher: Watcher, pause: float = _PAUSE) -> None:
    """Carry out a run's plan; on return every planned check has its outcome.

    Raises ConfigError, and tells the watcher nothing, where it is to go on with another environment's run.
    """
    run.begin()
    try:
        while checks := to_do(run.asked.plan, run.known, run.elapsed):
            _round(run, checks, collect, watcher, pause)
        run.known.update(judging.concluded(run.view, run.asked.plan, run.outcomes))
        run.known.update(requirements.hold_demands(run.asked.demands, run.outcomes))
        run.ended = now()
    finally:
        _tell(run, watcher)


def _round(
    run: Run, checks: list[PlannedCheck], collect: Callable[[], Snapshot], watcher: Watcher, pause: float
) -> None:
    # What waits for its second look, in a run that is gone on with, has had its first.
    first = [c for c in checks if c.id not in run.current]
    watcher.running("")
    if first:
        left = None if run.asked.plan.budget is None else run.asked.plan.budget - run.elapsed
        _measure(run, structs.replace(run.asked.plan, checks=first, budget=left), collect, watcher)
    again = [c for c in checks if c.id in run.current and unfinished(run.current[c.id])]
    if again:
        time.sleep(pause)
        before = run.snapshot
        reread = collect if run.report is not None else lambda: before
        # A check that has begun is not cut short by a budget.
        _measure(run, structs.replace(run.asked.plan, checks=again, budget=None), reread, watcher)
    run.known, run.current = run.outcomes, {}


def _tell(run: Run, watcher: Watcher) -> None:
    # Until it is known to be the same environment, the report of the run that was cut short stays as it is.
    if run.report is None:
        run.taken = run.elapsed
        watcher.learned(run)


def _measure(run: Run, plan: Plan, collect: Callable[[], Snapshot], watcher: Watcher) -> None:
    begun = time.monotonic()
    probes = [f.id for f in run.asked.chosen if f.check.probe]
    environment = judging.p2p_environment(probes, run.outcomes)
    instructions = worker_session.worker_plan(plan, run.asked, environment, several_nodes=run.nodes is not None)
    planned = {check.id: check for check in plan.checks}
    modules = {f.id: f for f in run.asked.chosen if f.id in planned}
    waiting = set(modules)
    # The worker imports torch while this process reads the node.
    with worker_session.working_directory(instructions, run.asked.site) as directory:
        reading = _beside(collect)
        reading.add_done_callback(lambda _: worker_session.node_was_read(directory))
        events = worker_session.events(run.asked.target, directory, {i: c.timeout for i, c in planned.items()})
        for event in run.nodes.together(events, directory) if run.nodes else events:
            if event["event"] == "environment":
                run.starting += time.monotonic() - begun
                _compare(run, event["facts"], reading.result())
                run.environment = event["facts"]
                run.promises = run.asked.target.promises(run.environment)
            elif event["event"] in worker_session.LAST:
                run.report = None
                run.environment = run.environment or {"error": event["why"]}
            if run.asked.plan.repeated or not run.snapshot.taken:
                run.snapshot = reading.result()
            world = run.nodes.world if run.nodes else 0
            for identity, outcome in judging.outcomes_of(event, modules, waiting, run.view, run.asked.plan, world):
                waiting.discard(identity)
                before, seconds = run.current.get(identity), planned[identity].seconds
                run.current[identity] = outcome_row(modules[identity], outcome, event, before, seconds)
            if event["event"] == "started":
                watcher.running(event["id"])
            _tell(run, watcher)


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


def _compare(run: Run, facts: dict[str, Any], snapshot: Snapshot) -> None:
    """Hold an environment that was known before against what it is now: what changed meanwhile was not validated."""
    differences = run.differences(facts, snapshot)
    if differences:
        run.current[_SAME] = OutcomeRow(
            id=_SAME,
            kind="env",
            status="fail",
            summary=f"the environment changed during the run: {'; '.join(differences)}",
            remedy="check the kernel log and other users of this node, then run again",
            code="same-environment.changed",
        )
