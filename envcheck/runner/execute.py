"""A run: start the worker, read the node meanwhile, judge as measurements come, measure a lost performance twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, Protocol, get_args

from msgspec import structs
from packaging.utils import canonicalize_name

from envcheck.checks import Outcome, undecided
from envcheck.data import data_path, state_path
from envcheck.errors import ConfigError
from envcheck.images import lockfile
from envcheck.images.lockfile import Group, Lock
from envcheck.images.targets import RECIPES, extensions_of, groups_of
from envcheck.matrix.facts.model import Cell, HostArch
from envcheck.node.snapshot import Snapshot
from envcheck.runner import attempts, judging, planning, requirements, state, worker_session
from envcheck.runner.outcomes import ending, ending_fix, lost_rank_outcome, outcome_row
from envcheck.runner.planning import CheckModule, planned_seconds, worker_plan
from envcheck.runner.schema import OutcomeRow, Plan, PlannedCheck
from envcheck.runner.state import Run, insist_on_gpu, insist_on_torch, name_lost_gpus, now, unmeasured

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
        while checks := attempts.to_do(run.asked.plan, run.known, run.elapsed):
            _round(run, checks, collect, watcher, pause)
        insist_on_gpu(run)
        insist_on_torch(run)
        name_lost_gpus(run)
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
    unfinished = [c for c in checks if c.id in run.current and attempts.unfinished(run.current[c.id])]
    if unfinished:
        time.sleep(pause)
        before = run.snapshot
        reread = collect if run.report is not None else lambda: before
        # A check that has begun is not cut short by a budget.
        _measure(run, structs.replace(run.asked.plan, checks=unfinished, budget=None), reread, watcher)
    run.known, run.current = run.outcomes, {}


def _tell(run: Run, watcher: Watcher) -> None:
    # Until it is known to be the same environment, the report of the run that was cut short stays as it is.
    if run.report is None:
        run.taken = run.elapsed
        watcher.learned(run)


def _measure(run: Run, plan: Plan, collect: Callable[[], Snapshot], watcher: Watcher) -> None:
    begun = time.monotonic()
    probes = [f.id for f in run.asked.chosen if f.check.probe]
    planned = worker_plan(
        plan,
        run.asked.chosen,
        ours=run.asked.target.ours,
        spawn=run.asked.spawn,
        stretch=run.asked.stretch,
        import_timeout=worker_session.IMPORT_TIMEOUT,
        environment=judging.p2p_environment(probes, run.outcomes),
    )
    instructions = {**planned, "several_nodes": run.nodes is not None}
    modules = {f.id: f for f in run.asked.chosen if f.id in {c.id for c in plan.checks}}
    limits = {c.id: c.timeout for c in plan.checks}
    unfinished = set(modules)
    # The worker imports torch while this process reads the node.
    with worker_session.working_directory(instructions, run.asked.site) as directory:
        reading = _beside(collect)
        reading.add_done_callback(lambda _: worker_session.node_was_read(directory))
        events = worker_session.events(run.asked.target, directory, limits)
        for event in run.nodes.together(events, directory) if run.nodes else events:
            if event["event"] == "environment":
                run.starting += time.monotonic() - begun
                _compare(run, event["facts"], reading.result())
            if run.asked.plan.repeated or not run.snapshot.taken:
                run.snapshot = reading.result()
            for identity, outcome in _outcomes_of(run, event, modules, unfinished):
                unfinished.discard(identity)
                module = modules[identity]
                seconds = planned_seconds(module.check, run.asked.plan.gpus, run.asked.plan.level)
                run.current[identity] = outcome_row(module, outcome, event, run.current.get(identity), seconds)
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
    differences = state.changed(run.environment, facts, run.snapshot, snapshot)
    if run.report is not None:
        state.refuse(differences, run.report)
        run.report = None
    elif differences:
        run.current[_SAME] = OutcomeRow(
            id=_SAME,
            kind="env",
            status="fail",
            summary=f"the environment changed during the run: {'; '.join(differences)}",
            remedy="check the kernel log and other users of this node, then run again",
            code="same-environment.changed",
        )


def _outcomes_of(
    run: Run, event: worker_session.Event, modules: dict[str, CheckModule], unfinished: set[str]
) -> list[tuple[str, Outcome]]:
    """Return the outcomes that an event makes known."""
    if event["event"] == "environment":
        run.environment = event["facts"]
        run.promises = with_packages(run.asked.target.promises(run.environment))
        return [(i, o) for i in sorted(unfinished) if (o := unmeasured(run, modules[i])) is not None]
    if event["event"] == "done":
        return [(event["id"], _measured(run, modules[event["id"]], event, again=event["id"] not in unfinished))]
    if event["event"] == "left-out":
        seconds = planned_seconds(modules[event["id"]].check, run.asked.plan.gpus, run.asked.plan.level)
        return [(event["id"], planning.left_out(seconds, event["left"], run.asked.plan.budget))]
    if event["event"] in worker_session.LAST:
        run.report = None
        importing = not run.environment
        why = ending(event, importing=importing, own_limits=run.asked.target.ours)
        run.environment = run.environment or {"error": why}
        fix = ending_fix(event, importing=importing)
        lost = undecided(why, fix=fix, code="torch.import-lost" if importing else "worker.lost")
        return [(i, unmeasured(run, modules[i]) or lost) for i in sorted(unfinished)]
    return []


def _measured(run: Run, module: CheckModule, event: worker_session.Event, *, again: bool) -> Outcome:
    if again:
        why = "its result was reported twice: something else writes in the worker's place"
        return undecided(why, fix="look at what Python starts with: run installed-files", code="rank.reported-twice")
    error = event["error"]
    if error is None:
        return judging.decide(module, run.view, event["ranks"], judging.p2p_kept(event))
    return judging.p2p_lost(module, lost_rank_outcome(error, run.environment.get("error")), error)


def with_packages(promises: Mapping[str, str]) -> dict[str, str]:
    """Return the promises with `packages` ("filelock==3.20.0 …") as in the lock meant, shipped or of a build here.

    `target_packages` ("ipykernel …") are those that the promised target is made of, whatever their versions.
    Of a lock by another hand, or of another release of envcheck, only the digest is known; then `packages` are those
    that the environment promises itself, if it does.
    """
    target, cuda = promises.get("target", ""), promises.get("cuda")
    promised = dict(promises)
    if target in RECIPES and RECIPES[target].requirements:
        extensions = extensions_of(target, None if cuda in {"none", "unknown"} else cuda)
        names = map(canonicalize_name, (*RECIPES[target].requirements, *extensions))
        promised["target_packages"] = " ".join(names)
    groups = groups_of(target) if target in RECIPES else lockfile.GROUPS
    if pinned := _pins(promises.get("cell", ""), promises.get("lock", ""), groups):
        promised["packages"] = " ".join(pinned)
    return promised


def _pins(name: str, digest: str, groups: Sequence[Group]) -> list[str]:
    cell = Cell.parse(name)  # a label is anybody's: only a cell's name becomes a path
    if cell is None:
        return []
    locks = next((locks for locks in _locks_here(cell, groups) if lockfile.digest(locks) == digest), [])
    return [f"{pin.name}=={pin.version}" for each in locks for pin in each.pins]


def _locks_here(cell: Cell, groups: Sequence[Group]) -> Iterator[list[Lock]]:
    """Give what a build may have installed: shipped locks, those that builds made, and shipped ones with these on top.

    It is one architecture's at a time.
    """
    for arch in get_args(HostArch):
        shipped = _locks_in(data_path("images"), cell, groups, arch)
        made = _locks_in(state_path("images"), cell, groups, arch)
        merged = {**made, **shipped}
        for locks in (shipped, made, merged):
            yield [locks[group] for group in groups if group in locks]


def _locks_in(images: Path, cell: Cell, groups: Sequence[Group], arch: HostArch) -> dict[Group, Lock]:
    try:
        return {lock.group: lock for lock in lockfile.read_locks(images / str(cell), groups, arch)}
    except (ConfigError, OSError):
        return {}
