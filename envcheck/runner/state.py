"""All that is known of a run while it goes on, and what an unfinished run leaves to the one that goes on with it."""

import dataclasses
import datetime as dt
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from envcheck.checks import View
from envcheck.errors import ConfigError
from envcheck.node import collect
from envcheck.node.snapshot import Snapshot
from envcheck.runner import judging, outcomes, requirements
from envcheck.runner.local_python import NodeGroup, Target
from envcheck.runner.planning import CheckModule
from envcheck.runner.schema import Mode, OutcomeRow, Plan, RunVerdict, TargetFacts, Timing

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_FACTS: Final = ("python", "executable", "prefix", "torch", "cuda", "cudnn", "nccl", "start")
_DRIVER: Final = ("driver.version", "driver.kernel")


@dataclasses.dataclass(frozen=True)
class EarlierRun:
    """What a report says of a run that may be gone on with: its fields of the same names."""

    tool: str
    boot: str
    started: str
    ended: str
    resumed: tuple[str, ...]
    plan: Plan
    target: TargetFacts
    environment: dict[str, Any]
    snapshot: Snapshot
    outcomes: list[OutcomeRow]
    timing: Timing | None


def boot_id() -> str:
    """Return the kernel's name for this boot; empty where it tells none."""
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _difference(name: str, before: Any, now: Any) -> list[str]:
    then, today = ("none" if value is None else value for value in (before, now))
    return [] if before == now else [f"{name} was {then}, is {today}"]


def _plans(before: Plan, now: Plan) -> list[str]:
    options = [name for name in before.__struct_fields__ if name not in {"checks", "gpus"}]
    differences = [
        line
        for name in options
        for line in _difference(f"--{name.replace('_', '-')}", getattr(before, name), getattr(now, name))
    ]
    odd = {a.id for a in before.checks if a not in now.checks} | {b.id for b in now.checks if b not in before.checks}
    return [*differences, f"the checks differ by {', '.join(sorted(odd))}"] if odd else differences


def _devices(environment: Mapping[str, Any]) -> str:
    return ", ".join(str(d.get("uuid") or d.get("name")) for d in environment.get("devices") or []) or "none"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What was asked for: complete before anything is measured. `chosen` are the checks of `plan`, in its order.

    `resolution` is what the resolver said of this machine and the target's torch, when it was asked; `matrix` the
    Matrix to judge by, None for the shipped one. `demands` are a site's on what is measured. `stretch`: the
    limits of checks grow where Python and torch start slowly.
    """

    plan: Plan
    chosen: Sequence[CheckModule]
    target: Target
    site: Path | None = None
    spawn: bool = False
    stretch: bool = False
    resolution: str | None = None
    matrix: Any = None
    demands: Sequence[requirements.Demand] = ()


@dataclasses.dataclass
class Run:
    """What is known of a run so far.

    `known` are the outcomes of earlier rounds, or of the run that this one goes on with (then `resumed` says when, and
    `report` which file that was); `current` those of this round. `nodes` are the other nodes of a group.
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
    nodes: NodeGroup | None = None
    taken: float = 0.0
    starting: float = 0.0
    _since: float = dataclasses.field(default_factory=time.monotonic)
    _before: float = 0.0
    _shaped: tuple[Any, Any] = (None, None)

    def go_on(self, earlier: EarlierRun, where: Path, tool: str) -> None:
        """Take over what a run that was cut short came to. Raises ConfigError where this is not the same run."""
        if earlier.ended:
            message = f"the run in {where} is complete"
            raise ConfigError(message, fix="leave --resume out to run again")
        target = self.asked.target.facts
        differences = [
            *_difference("envcheck", earlier.tool, tool),
            *_plans(earlier.plan, self.asked.plan),
            *_difference("target", earlier.target.name, target.name),
            *_difference("image", earlier.target.image_id, target.image_id),
        ]
        if earlier.boot != (boot := boot_id()) or not boot:
            differences.append("the machine was rebooted since, or it is another machine")
        self._refuse(differences, where)
        kept = {row.id: row for row in earlier.outcomes}
        second = {i: row for i, row in kept.items() if not self.asked.plan.repeated and outcomes.unfinished(row)}
        self.known, self.current = {i: row for i, row in kept.items() if i not in second}, second
        self.environment, self.snapshot = dict(earlier.environment), earlier.snapshot
        self.started, self.resumed, self.report = earlier.started, [*earlier.resumed, now()], where
        if earlier.timing is not None:
            self._before, self.starting = earlier.timing.taken, earlier.timing.starting

    @staticmethod
    def _refuse(differences: Sequence[str], where: Path) -> None:
        if differences:
            message = f"cannot resume {where}: {'; '.join(differences)}"
            raise ConfigError(message, fix="leave --resume out to start again")

    def differences(self, facts: Mapping[str, Any], snapshot: Snapshot) -> list[str]:
        """Say how the environment and driver differ from what was known; ConfigError where this goes on with a run."""
        known, signal = self.environment, self.snapshot.signal
        found = [line for name in _FACTS for line in _difference(name, known.get(name), facts.get(name))]
        found += _difference("GPUs", _devices(known), _devices(facts))
        for name in _DRIVER:
            found += _difference(name, signal(name).value, snapshot.signal(name).value)
        if known and self.report is not None:
            self._refuse(found, self.report)
        self.report = None
        return found if known else []

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
        return 1 + min(outcomes.rounds(self.known.get(check.id)) for check in self.asked.plan.checks)

    @property
    def done(self) -> int:
        """Return how many checks of this round have come to something."""
        number, earlier = self.number, self.known
        return sum(c.id in self.current or outcomes.rounds(earlier.get(c.id)) >= number for c in self.asked.plan.checks)

    @property
    def outcomes(self) -> dict[str, OutcomeRow]:
        """Return what each check came to, over all rounds."""
        if not self.asked.plan.repeated:
            return {**self.known, **self.current}
        over = {i: row for i, row in self.current.items() if not outcomes.unfinished(row)}
        return {**self.known, **{i: outcomes.fold(self.known.get(i), row) for i, row in over.items()}}

    @property
    def timing(self) -> Timing:
        """Return the seconds planned and taken, as a watcher last saw them."""
        return Timing(planned=self.asked.plan.seconds, taken=round(self.taken, 3), starting=round(self.starting, 3))

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
            self._shaped = (self.snapshot, collect.sound(self.snapshot))
        mode, image = "gpu" if self.mode == "gpu" else "cpu", self.asked.target.facts.image
        image_facts = structs.asdict(image) if image else {}
        return View(self._shaped[1], self.environment, self.promises, mode, self.asked.matrix, image_facts)

    @property
    def ordered(self) -> list[OutcomeRow]:
        """Return the outcomes there are, in the order of the plan; then what belongs to no check."""
        ids, outcomes = [c.id for c in self.asked.plan.checks], self.outcomes
        return [outcomes[i] for i in [*ids, *(o for o in outcomes if o not in ids)] if i in outcomes]

    @property
    def verdict(self) -> RunVerdict:
        """Return what it came to so far; a run that has not ended is no pass."""
        return judging.verdict(self.ordered, self.mode, complete=bool(self.ended))


def now() -> str:
    """Return the time as a report has it."""
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
