"""All that is known of a run while it goes on: what it did, and what follows from that."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from envcheck.checks import View
from envcheck.node import signal_types
from envcheck.node.snapshot import Snapshot
from envcheck.runner import attempts
from envcheck.runner.judging import judge
from envcheck.runner.planning import repeat, resume
from envcheck.runner.planning.discover import CheckModule
from envcheck.runner.requirements import measured as requirements_measured
from envcheck.runner.schema import Mode, OutcomeRow, Plan, RunVerdict, Timing
from envcheck.runner.targets.interface import NodeGroup, Target


class Run(msgspec.Struct):
    """All that is known of a run so far. `chosen` are the checks of `plan`, in its order.

    `resolution` is what the resolver said of this machine and the target's torch, when it was asked; `matrix` the
    Matrix to judge by, None for the shipped one. `known` are the outcomes of earlier rounds, or of the run that this
    one goes on with (then `resumed` says when, and `report` which file that was); `current` those of this round.
    `demands` are a site's on what is measured, `nodes` the other nodes whose ranks join this one's.
    """

    plan: Plan
    chosen: Sequence[CheckModule]
    target: Target
    started: str = ""
    ended: str = ""
    site: Path | None = None
    spawn: bool = False
    resolution: str | None = None
    matrix: Any = None
    demands: Sequence[requirements_measured.Demand] = ()
    nodes: NodeGroup | None = None
    snapshot: Snapshot = msgspec.field(default_factory=Snapshot)
    environment: dict[str, Any] = msgspec.field(default_factory=dict)
    promises: dict[str, str] = msgspec.field(default_factory=dict)
    known: dict[str, OutcomeRow] = msgspec.field(default_factory=dict)
    current: dict[str, OutcomeRow] = msgspec.field(default_factory=dict)
    boot: str = msgspec.field(default_factory=resume.boot_id)
    resumed: list[str] = msgspec.field(default_factory=list)
    report: Path | None = None
    taken: float = 0.0
    starting: float = 0.0
    _since: float = msgspec.field(default_factory=time.monotonic)
    _before: float = 0.0
    _shaped: tuple[Any, Any] = (None, None)

    def go_on(self, earlier: resume.EarlierRun, where: Path, tool: str) -> None:
        """Take over what a run that was cut short came to. Raises ConfigError where this is not the same run."""
        resume.refuse_unlike(earlier, self.plan, self.target.facts, tool, where)
        kept = {row.id: row for row in earlier.outcomes}
        second = {i: row for i, row in kept.items() if not self.plan.repeated and attempts.unfinished(row)}
        self.known, self.current = {i: row for i, row in kept.items() if i not in second}, second
        self.environment, self.snapshot = dict(earlier.environment), earlier.snapshot
        self.started, self.resumed, self.report = earlier.started, [*earlier.resumed, now()], where
        if earlier.timing is not None:
            self._before, self.starting = earlier.timing.taken, earlier.timing.starting

    def begin(self) -> None:
        """Start the clock."""
        self.started, self._since = self.started or now(), time.monotonic()

    @property
    def elapsed(self) -> float:
        """Return the seconds since it began, less those in which it was not running."""
        return self._before + time.monotonic() - self._since

    @property
    def number(self) -> int:
        """Return which round this is, from 1."""
        return 1 + min(repeat.rounds(self.known.get(check.id)) for check in self.plan.checks)

    @property
    def done(self) -> int:
        """Return how many checks of this round have come to something."""
        number, earlier = self.number, self.known
        return sum(c.id in self.current or repeat.rounds(earlier.get(c.id)) >= number for c in self.plan.checks)

    @property
    def outcomes(self) -> dict[str, OutcomeRow]:
        """Return what each check came to, over all rounds."""
        if not self.plan.repeated:
            return {**self.known, **self.current}
        over = {i: row for i, row in self.current.items() if not attempts.unfinished(row)}
        return {**self.known, **{i: repeat.fold(self.known.get(i), row) for i, row in over.items()}}

    @property
    def timing(self) -> Timing:
        """Return the seconds planned and taken, as a watcher last saw them."""
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
            self._shaped = (self.snapshot, signal_types.sound(self.snapshot))
        mode, image = "gpu" if self.mode == "gpu" else "cpu", self.target.facts.image
        image_facts = structs.asdict(image) if image else {}
        return View(self._shaped[1], self.environment, self.promises, mode, self.matrix, image_facts)

    @property
    def ordered(self) -> list[OutcomeRow]:
        """Return the outcomes there are, in the order of the plan; then what belongs to no check."""
        ids, outcomes = [c.id for c in self.plan.checks], self.outcomes
        return [outcomes[i] for i in [*ids, *(o for o in outcomes if o not in ids)] if i in outcomes]

    @property
    def verdict(self) -> RunVerdict:
        """Return what it came to so far; a run that has not ended is no pass."""
        return judge.verdict(self.ordered, self.mode, complete=bool(self.ended))


def now() -> str:
    """Return the time as a report has it."""
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
