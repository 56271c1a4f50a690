"""All that is known of a run while it goes on, and what an unfinished run leaves to the one that goes on with it.

Of some checks all is known without their measurements: too few GPUs or ranks, and what the snapshot alone says.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import pkgutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from envcheck.checks import ERROR, FAIL, Limit, Outcome, View, failed, gpu_readings, undecided, worst
from envcheck.checks import env as env_checks
from envcheck.errors import ConfigError
from envcheck.node import collect
from envcheck.node.snapshot import Snapshot
from envcheck.runner import attempts, judging, requirements
from envcheck.runner.local_python import NodeGroup, Target
from envcheck.runner.outcomes import fields
from envcheck.runner.planning import CheckModule
from envcheck.runner.schema import Mode, OutcomeRow, Plan, RunVerdict, TargetFacts, Timing, plain

LOST_GPUS: Final = "lost-gpus"
_CHECK: Final = "gpu-lost"
_LOST_FIX: Final = "run the check gpu-lost, which says what to do; drain this node until its GPU answers again"
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


def refuse_unlike(earlier: EarlierRun, plan: Plan, target: TargetFacts, tool: str, where: Path) -> None:
    """Raise a ConfigError, saying what differs, unless this plan on this target and boot is what was cut short."""
    if earlier.ended:
        message = f"the run in {where} is complete"
        raise ConfigError(message, fix="leave --resume out to run again")
    differences = [
        *_difference("envcheck", earlier.tool, tool),
        *_plans(earlier.plan, plan),
        *_difference("target", earlier.target.name, target.name),
        *_difference("image", earlier.target.image_id, target.image_id),
    ]
    if earlier.boot != (now := boot_id()) or not now:
        differences.append("the machine was rebooted since, or it is another machine")
    refuse(differences, where)


def refuse(differences: list[str], where: Path) -> None:
    """Raise a ConfigError naming what differs; nothing when nothing does."""
    if differences:
        message = f"cannot resume {where}: {'; '.join(differences)}"
        raise ConfigError(message, fix="leave --resume out to start again")


def changed(before: Mapping[str, Any], now: Mapping[str, Any], node_before: Snapshot, node_now: Snapshot) -> list[str]:
    """Say how an environment and its driver differ from what they were; nothing of one that was not known before."""
    if not before:
        return []
    differences = [line for name in _FACTS for line in _difference(name, before.get(name), now.get(name))]
    differences += _difference("GPUs", _devices(before), _devices(now))
    for name in _DRIVER:
        differences += _difference(name, node_before.signal(name).value, node_now.signal(name).value)
    return differences


def _plans(before: Plan, now: Plan) -> list[str]:
    differences = [
        line
        for name in before.__struct_fields__
        if name not in {"checks", "gpus"}
        for line in _difference(f"--{name.replace('_', '-')}", *(_given(getattr(p, name)) for p in (before, now)))
    ]
    ids = {check.id for check in before.checks} ^ {check.id for check in now.checks}
    if ids:
        differences.append(f"the checks differ by {', '.join(sorted(ids))}")
    elif before.checks != now.checks:
        odd = [a.id for a, b in zip(before.checks, now.checks, strict=True) if a != b]
        differences.append(f"what is planned differs for {', '.join(odd)}")
    return differences


def _given(value: Any) -> Any:
    return "not given" if value is None else value


def _difference(name: str, before: Any, now: Any) -> list[str]:
    then, today = ("unknown" if value is None else value for value in (before, now))
    return [] if before == now else [f"{name} was {then}, is {today}"]


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
        refuse_unlike(earlier, self.asked.plan, self.asked.target.facts, tool, where)
        kept = {row.id: row for row in earlier.outcomes}
        second = {i: row for i, row in kept.items() if not self.asked.plan.repeated and attempts.unfinished(row)}
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
        return 1 + min(attempts.rounds(self.known.get(check.id)) for check in self.asked.plan.checks)

    @property
    def done(self) -> int:
        """Return how many checks of this round have come to something."""
        number, earlier = self.number, self.known
        return sum(c.id in self.current or attempts.rounds(earlier.get(c.id)) >= number for c in self.asked.plan.checks)

    @property
    def outcomes(self) -> dict[str, OutcomeRow]:
        """Return what each check came to, over all rounds."""
        if not self.asked.plan.repeated:
            return {**self.known, **self.current}
        over = {i: row for i, row in self.current.items() if not attempts.unfinished(row)}
        return {**self.known, **{i: attempts.fold(self.known.get(i), row) for i, row in over.items()}}

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


def unmeasured(run: Run, module: CheckModule) -> Outcome | None:
    """Return the outcome of a check that needs nothing measured, or cannot be; None for one that must be."""
    if module.kind == "env" and "device_count" not in run.environment:
        return None
    gpus = len(run.snapshot.gpus) if module.kind == "node" else int(run.environment["device_count"])
    no_nvml = run.snapshot.signal("driver.version").reason or "NVML shows none"
    why = no_nvml if module.kind == "node" else _no_gpu(run.environment)
    # The GPUs were not counted without torch: insist_on_gpu says so, once.
    required = run.asked.plan.require_gpu and (module.kind == "node" or "error" not in run.environment)
    lacking = judging.without_gpu(module, gpus, why, require_gpu=required)
    if lacking is not None:
        return lacking
    if module.kind == "node":
        return judging.decide(module, run.view)
    ranks = run.nodes.world if run.nodes else gpus or run.asked.plan.nproc
    return None if "error" in run.environment else judging.alone(module, ranks)


def _no_gpu(environment: dict[str, Any]) -> str:
    for key in ("device_error", "device_facts_error"):
        if key in environment:
            return str(environment[key])
    if "error" in environment:
        return f"torch cannot be imported ({environment['error']})"
    return "CUDA shows none" if environment.get("cuda") else "this torch is built without CUDA"


_FIX: Final = "give an interpreter or image that has torch; `envcheck build` makes both"


def insist_on_gpu(run: Run) -> None:
    """Without a GPU, --require-gpu is a failure even where no check of the plan would have used one.

    Where torch cannot be imported, whether there is a GPU is undetermined: the environment is broken, not the node.
    """
    if not run.asked.plan.require_gpu or run.mode == "gpu" or FAIL in {o.status for o in run.outcomes.values()}:
        return
    why, limit = _no_gpu(run.environment), Limit(1, "GPUs", "--require-gpu")
    if "error" in run.environment:
        outcome = undecided(why, fix=_FIX, code="torch.import")
    else:
        told: dict[str, Any] = {"value": 0, "unit": "GPUs", "limit": limit}
        outcome = failed(f"torch sees no GPU: {why}", fix=judging.GPU_FIX, code="gpu.required", **told)
    run.known["require-gpu"] = OutcomeRow(id="require-gpu", kind="env", **fields(outcome))


def insist_on_torch(run: Run) -> None:
    """Add an error where torch cannot be imported and no check said so: such an environment is never a pass.

    Checks of a site alone may be run where no torch is.
    """
    statuses = {outcome.status for outcome in run.outcomes.values()}
    shipped = {name.replace("_", "-") for _, name, _ in pkgutil.iter_modules(env_checks.__path__)}
    planned = any(check.id in shipped for check in run.asked.plan.checks)
    if "error" in run.environment and planned and not statuses & {FAIL, ERROR}:
        outcome = undecided(_no_gpu(run.environment), fix=_FIX, code="torch.import")
        run.known["torch"] = OutcomeRow(id="torch", kind="env", **fields(outcome))


def name_lost_gpus(run: Run) -> None:
    """Add an error where the driver lost a GPU and the check for that was left out."""
    row = lost_gpus_row(run.view, run.outcomes)
    if row is not None:
        run.known[row.id] = row


def lost_gpus_row(view: View, outcomes: Mapping[str, OutcomeRow]) -> OutcomeRow | None:
    """Return an error that names each lost GPU where the check gpu-lost did not fail for them; else None.

    Other checks skip a lost GPU, because gpu-lost fails for it.
    """
    earlier = outcomes.get(_CHECK)
    if earlier is not None and earlier.status in (FAIL, ERROR):
        return None
    lost = [(gpu, signal) for gpu in view.snapshot.gpus if (signal := gpu_readings.lost(gpu))]
    findings = [
        undecided(
            f"{gpu_readings.label(gpu)} does not answer ({signal.reason}), and this run left the check {_CHECK} out",
            fix=_LOST_FIX,
            code="lost-gpus.left-out",
            culprit=gpu_readings.culprit(view, gpu_readings.label(gpu)),
            gpus=[gpu.uuid],
        )
        for gpu, signal in lost
    ]
    if not findings:
        return None
    outcome = worst(findings, findings[0])
    return OutcomeRow(id=LOST_GPUS, kind="node", **fields(outcome), details=plain(dict(outcome.details)))
