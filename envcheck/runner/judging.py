"""From measurements to outcomes, and from outcomes to one verdict. Pure, and fails closed.

`decide` has the check's own judge look at the measurements, then applies OUTCOME_RULES, which know what that judge does
not: that it contradicts itself, that somebody else used the GPU, that peer-to-peer is broken. Each change of a status
is kept with its rule and reason. outcomes.ROW_RULES compare a measurement with an earlier one of the same check.
"""

import collections
import dataclasses
import math
import pkgutil
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from envcheck.checks import (
    ERROR,
    FAIL,
    NOT_FINITE,
    PASS,
    SKIP,
    WARN,
    WORST_FIRST,
    Change,
    Limit,
    Outcome,
    Ranks,
    View,
    failed,
    gpu_readings,
    skipped,
    undecided,
    worst,
)
from envcheck.checks import env as env_checks
from envcheck.checks.env import shared_libraries
from envcheck.checks.node.driver_cuda import init_error
from envcheck.checks.support import control_group, process_group
from envcheck.counting import counted, numbered
from envcheck.runner.outcomes import default_code, row_of
from envcheck.runner.planning import CheckModule
from envcheck.runner.schema import Mode, OutcomeRow, Plan, RunVerdict, VerdictStatus
from envcheck.runner.worker.fork_server import P2P_OFF
from envcheck.runner.worker.group_ending import HUNG

_VERDICTS: Final[dict[int, VerdictStatus]] = {0: "pass", 1: "fail", 3: "error"}
_WHERE: Final[dict[Mode, str]] = {
    "gpu": "on the GPUs of this node",
    "cpu": "on CPU{gloo}; no GPU was tested",
    "unknown": "without an answer from torch; no GPU was tested",
}
GPU_FIX: Final = "check `nvidia-smi`, the torch variant (`envcheck resolve`) and, in a container, `--gpus all`"
_BUSY_FIX: Final = "end the processes that gpu-in-use names, or drain the node; then run again"
LOST_GPUS: Final = "lost-gpus"
_GPU_LOST: Final = "gpu-lost"
_NO_TORCH: Final = "ModuleNotFoundError: No module named 'torch'"
_OFF: Final = [f"{name}={value}" for name, value in P2P_OFF.items()]
_OFF_WORDS: Final = ", ".join(_OFF)
_P2P_FIX: Final = (
    "on bare metal disable ACS on the PCIe bridges and set the IOMMU to pass through (iommu=pt), then look at NVLink "
    f"and fabric manager; until then {_OFF_WORDS} has NCCL go through the host's memory"
)


def decide(
    module: CheckModule, view: View, ranks: Ranks | None = None, details: Mapping[str, Any] | None = None
) -> Outcome:
    """Judge one check, then apply OUTCOME_RULES; `details`: how its ranks ran (KEPT). A broken judge is an error."""
    outcome = apply_rules(_judged(module, view, ranks), Evidence(module, view, details or {}))
    if (gpus := len(view.snapshot.gpus)) > 1:
        every = rf"{re.escape(numbered('GPU', range(gpus)))}(?!\d)"
        outcome = dataclasses.replace(outcome, summary=re.sub(every, f"all {gpus} GPUs", outcome.summary))
    return _with_codes(module.id, outcome)


def _judged(module: CheckModule, view: View, ranks: Ranks | None) -> Any:
    unread = [(n, view.snapshot.signal(n).reason) for n in module.check.signals if view.snapshot.signal(n).reason]
    if unread:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in unread)
        fix = "run where they are readable, or pass --skip"
        return undecided(f"undetermined: cannot read {reasons}", fix=fix, code="signal.unread")
    # A report is a file, and `measure` always gives an object.
    shapeless = [(number, entry) for number, entry in enumerate(ranks or []) if not isinstance(entry, dict)]
    if shapeless:
        said = f"rank {shapeless[0][0]} reported {str(shapeless[0][1])[:60]}, not what it measured"
        return undecided(said, fix="run the check again; look at its log", code="rank.no-measurement")
    try:
        return module.judge(view) if module.kind == "node" else module.judge(view, ranks)
    except Exception as error:  # noqa: BLE001 (whatever a judge raises, its check came to no pass)
        reasons = f"bug in this check: {type(error).__name__}: {error}"
        return undecided(reasons, fix=f"report it, with {module.path.name}", code="envcheck.bug")


def outcomes_of(
    event: Mapping[str, Any],
    modules: Mapping[str, CheckModule],
    waiting: Collection[str],
    view: View,
    plan: Plan,
    world: int = 0,
) -> list[tuple[str, Outcome]]:
    """Return the outcomes that an event of the worker makes known, by check; `waiting` are those without one so far."""
    if event["event"] == "environment" or "why" in event:
        known = {identity: unmeasured(modules[identity], view, plan, world) for identity in sorted(waiting)}
        if "why" in event:
            fix = event.get("fix", "see the log, and try `--only` with one check")
            lost = Outcome(ERROR, event["why"], remedy=fix, code=event.get("code", "worker.lost"))
            known = {identity: outcome or lost for identity, outcome in known.items()}
        return [(identity, outcome) for identity, outcome in known.items() if outcome is not None]
    if event["event"] not in ("done", "left-out"):
        return []
    module = modules[event["id"]]
    if event["event"] == "left-out":
        [planned] = [check.seconds for check in plan.checks if check.id == module.id]
        left = f"{max(event['left'], 0.0):.1f} s of the budget of {plan.budget or 0.0:g} s were left"
        outcome = skipped(f"left out: planned for {planned:g} s, and {left}", code="budget.left-out")
    elif event["error"] is None:
        outcome = decide(module, view, event["ranks"], event["kept"])
    else:
        outcome = lost_rank(module, event["error"], view.environment)
    return [(module.id, outcome)]


def unmeasured(module: CheckModule, view: View, plan: Plan, world: int = 0) -> Outcome | None:
    """Return the outcome of a check that needs nothing measured, or cannot be, else None; `world`: a group's ranks."""
    environment, check, on_node = view.environment, module.check, module.kind == "node"
    if not on_node and "device_count" not in environment:
        return None
    gpus = len(view.snapshot.gpus) if on_node else int(environment["device_count"])
    if check.gpus > gpus:
        why = (view.snapshot.signal("driver.version").reason or "NVML shows none") if on_node else _no_gpu(environment)
        reason = f"needs {counted(check.gpus, 'GPU')}, found {gpus or f'none: {why}'}"
        # The GPUs were not counted without torch: `concluded` says so, once.
        if gpus == 0 and plan.require_gpu and (on_node or "error" not in environment):
            return failed(reason, fix=GPU_FIX, value=0, unit="GPUs", code="gpu.required")
        return skipped(reason, code="gpu.not-enough")
    if on_node:
        return decide(module, view)
    ranks = world or gpus or plan.nproc
    if "error" in environment or check.ranks or ranks >= check.least_ranks:
        return None
    return skipped(f"needs {counted(check.least_ranks, 'rank')}, found {ranks}", code="rank.not-enough")


def _no_gpu(environment: Mapping[str, Any]) -> str:
    for key in ("device_error", "device_facts_error"):
        if key in environment:
            return str(environment[key])
    if "error" in environment:
        return f"torch cannot be imported ({shared_libraries.import_error(environment)})"
    return "CUDA shows none" if environment.get("cuda") else "this torch is built without CUDA"


def concluded(view: View, plan: Plan, rows: Mapping[str, OutcomeRow]) -> dict[str, OutcomeRow]:
    """Return what belongs to no check: --require-gpu, an environment without torch, GPUs that the driver lost."""
    found, statuses = {}, {row.status for row in rows.values()}
    # Without torch, whether there is a GPU is undetermined: the environment is broken, not the node.
    no_torch = shared_libraries.unimportable(view.environment) if "error" in view.environment else None
    if plan.require_gpu and view.mode != "gpu" and FAIL not in statuses:
        text, limit = f"torch sees no GPU: {_no_gpu(view.environment)}", Limit(1, "GPUs", "--require-gpu")
        known = init_error(view)
        fix = known.fix if known else GPU_FIX
        found["require-gpu"] = no_torch or failed(text, fix=fix, code="gpu.required", value=0, limit=limit)
    # Checks of a site alone may be run where no torch is; any other environment without it is never a pass.
    shipped = {name.replace("_", "-") for _, name, _ in pkgutil.iter_modules(env_checks.__path__)}
    if no_torch and any(c.id in shipped for c in plan.checks) and not found and not statuses & {FAIL, ERROR}:
        found["torch"] = no_torch
    made = {identity: row_of(identity, outcome) for identity, outcome in found.items()}
    lost = lost_gpus_row(view, rows)
    return {**made, lost.id: lost} if lost else made


def lost_gpus_row(view: View, rows: Mapping[str, OutcomeRow]) -> OutcomeRow | None:
    """Return an error that names each lost GPU where the check gpu-lost did not fail for them; else None."""
    findings = [
        undecided(
            f"{gpu_readings.label(gpu)} does not answer ({signal.reason}), and this run left the check {_GPU_LOST} out",
            fix="run the check gpu-lost, which says what to do; drain this node until its GPU answers again",
            code="lost-gpus.left-out",
            culprit=gpu_readings.culprit(gpu),
            gpus=[gpu.uuid],
        )
        for gpu in view.snapshot.gpus
        if (signal := gpu_readings.lost(gpu))
    ]
    if not findings or (_GPU_LOST in rows and rows[_GPU_LOST].status in (FAIL, ERROR)):
        return None
    return row_of(LOST_GPUS, worst(findings, findings[0]), "node")


def lost_rank(module: CheckModule, error: Mapping[str, Any], environment: Mapping[str, Any]) -> Outcome:
    """Return the outcome of a check of which a rank ended badly, or not at all, where the environment is this one."""
    torch, hung, doing = environment.get("error"), error["text"].startswith(HUNG), str(error.get("doing") or "")
    # What half of an import left behind makes the next one raise something else.
    if torch is not None and (error["text"] == torch or (torch != _NO_TORCH and not hung)):
        outcome = shared_libraries.unimportable(environment)
    else:
        fix = "the log says where it hung; if this machine is only slow, give a longer --timeout" if hung else ""
        fix = fix or process_group.remedy(error["text"], "see the log in the report")
        named = {"rank": error["rank"], "culprit": f"rank {error['rank']}"}
        code = "process.hung" if hung else "process.lost"
        outcome = undecided(f"rank {error['rank']} {error['text']}", fix=fix, code=code, **named)
    if doing and module.check.probe:
        summary = f"P2P broken: {doing}: the process {error['text']}"
        return Outcome(FAIL, summary, remedy=_P2P_FIX, details=outcome.details, code="peer-to-peer.lost", culprit=doing)
    return dataclasses.replace(outcome, summary=f"{outcome.summary}, while it was at: {doing}") if doing else outcome


def verdict(rows: Sequence[OutcomeRow], mode: Mode, *, complete: bool = True) -> RunVerdict:
    """Say what a run came to: 1 where anything failed, else 3 where it was cut short, not all is known, or no pass."""
    counts = collections.Counter(str(o.status) for o in rows)
    code = 1 if counts[FAIL] else 3 if counts[ERROR] or not counts[PASS] or not complete else 0
    culprits = [o.id for o in rows if o.status == (FAIL if code == 1 else ERROR)]
    culprits += [] if complete or code == 1 else ["cut short"]
    # Every sentence of a CPU run says that it is one, so that none of them is taken for a GPU's.
    where = _WHERE[mode].format(gloo=" and gloo" if group_size(rows) else "")
    sentence = f"PASS: {counted(counts[PASS], 'promise')} proved {where}"
    if code:
        on_cpu = "" if mode == "gpu" else f" ({where})"
        sentence = f"{'FAIL' if code == 1 else 'UNDETERMINED'}: {', '.join(culprits) or 'nothing passed'}{on_cpu}"
    times = max([o.spread.rounds for o in rows if o.spread], default=0)
    left = sum(o.left_out for o in rows)
    return RunVerdict(
        status=_VERDICTS[code],
        exit_code=code,
        sentence=sentence
        + (f"; {counted(times, 'round')}" if times else "")
        + (f"; {counted(left, 'check')} left out by the budget" if left else ""),
        counts={status: counts[status] for status in (PASS, WARN, FAIL, SKIP, ERROR)},
    )


def group_size(outcomes: Iterable[OutcomeRow]) -> int:
    """Return how many ranks the largest group had of those that measured something; 0 where each was alone."""
    return max((len(o.ranks) for o in outcomes if len(o.ranks) > 1 and any(r is not None for r in o.ranks)), default=0)


class Evidence(NamedTuple):
    """What a rule may look at: the check, what judges see, and how the ranks ran (rank_group.KEPT)."""

    found: CheckModule
    view: View
    details: Mapping[str, Any]


def apply_rules(outcome: Any, evidence: Evidence) -> Outcome:
    """Return the outcome after all OUTCOME_RULES, with each change of its status recorded.

    `outcome` is whatever a judge returned; the first rule makes an error of what is not an Outcome.
    """
    changes: list[Change] = []
    for name, (reason, rule) in OUTCOME_RULES.items():
        before = getattr(outcome, "status", "nothing")
        outcome = rule(outcome, evidence)
        if outcome.status != before:
            changes.append(Change(name, str(before), outcome.status, reason))
    return dataclasses.replace(outcome, changes=tuple(changes)) if changes else cast("Outcome", outcome)


def _each(outcome: Outcome, change: Callable[[Outcome], Outcome]) -> Outcome:
    before = outcome.findings or (outcome,)
    after = tuple(change(finding) for finding in before)
    if after == before:
        return outcome
    if not outcome.findings:
        return after[0]
    combined = worst(after, otherwise=outcome)
    return dataclasses.replace(combined, details={**combined.details, **outcome.details})


def _with_codes(check: str, outcome: Outcome) -> Outcome:
    if all(finding.code or finding.status == PASS for finding in (outcome, *outcome.findings)):
        return outcome
    parts = tuple(_with_codes(check, finding) for finding in outcome.findings)
    code = "" if outcome.status == PASS else outcome.code or default_code(check, outcome.status)
    return dataclasses.replace(outcome, code=code, findings=parts)


def _consistent(outcome: Any, _of: Evidence) -> Outcome:
    """Return what a judge returned, or an error where it contradicts itself; no finding is lost by that."""
    if not isinstance(outcome, Outcome) or not isinstance(outcome.findings, tuple):
        return _bug(f"its judge returned {type(outcome).__name__}")
    own = _consistent_finding(dataclasses.replace(outcome, findings=()))
    parts = [_consistent_finding(finding) for finding in outcome.findings]
    if not parts:
        return own
    statuses = [own.status, *(part.status for part in parts)]
    if parts == [*outcome.findings] and outcome.status == own.status == min(statuses, key=WORST_FIRST.index):
        return outcome
    return worst([*parts, own], otherwise=own)


def _consistent_finding(finding: Any) -> Outcome:
    if not isinstance(finding, Outcome) or finding.status not in WORST_FIRST or finding.findings:
        return _bug(f"a finding is {type(finding).__name__} {str(getattr(finding, 'status', ''))[:20]!r}")
    bound = finding.limit.value if finding.limit else None
    if not _finite(finding.value) or not _finite(bound):
        summary = f"measured {finding.value} against {bound}: {finding.summary}"
        unknown = dataclasses.replace(finding, value=None, limit=None, remeasure=False)
        return dataclasses.replace(unknown, status=ERROR, summary=summary, code=NOT_FINITE)
    if finding.status in (FAIL, WARN) and not finding.remedy:
        return _bug(f"{finding.status} without a remedy: {finding.summary}")
    if finding.remeasure and finding.status != FAIL:
        return _bug(f"a {finding.status} that is too slow: {finding.summary}")
    return finding


def _bug(problem: str) -> Outcome:
    return undecided(f"bug in this check: {problem}", fix="report it, with this report", code="envcheck.bug")


def _finite(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_finite(v) for v in value)
    return not isinstance(value, float) or math.isfinite(value)


def _excused(outcome: Outcome, condition: Callable[[Outcome], str], fix: str, *, code: str) -> Outcome:
    """Return each speed that fell short under a condition ("" where there is none) as one that is not known."""

    def excused(finding: Outcome) -> Outcome:
        why = condition(finding) if finding.remeasure else ""
        told: dict[str, Any] = {"status": ERROR, "summary": f"{why}: {finding.summary}", "remedy": fix, "code": code}
        return dataclasses.replace(finding, **told, remeasure=False) if why else finding

    return _each(outcome, excused)


def excuse_busy(outcome: Outcome, of: Evidence) -> Outcome:
    """Return each speed that fell short while others were on its GPU as what it is: not known. All else stays."""

    def beside(finding: Outcome) -> str:
        others = [user.text() for user in _other_users(of.view, finding)]
        return f"measured while {'; '.join(others[:3])}" if others else ""

    def noted(finding: Outcome) -> Outcome:
        why = beside(finding) if finding.status == WARN else ""
        return dataclasses.replace(finding, summary=f"{finding.summary}; {why}") if why else finding

    if not of.found.check.performance:
        return outcome
    return _excused(_each(outcome, noted), beside, _BUSY_FIX, code="speed.gpu-in-use")


def _excuse_throttled(outcome: Outcome, of: Evidence) -> Outcome:
    """Return each speed that fell short while a CPU quota held the ranks back as not known."""
    held: Any = of.details.get("throttled")
    if not of.found.check.performance or not control_group.measured(held) or held["share"] < control_group.HELD.value:
        return outcome
    return _excused(outcome, lambda _: control_group.told(held), control_group.FIX, code="speed.throttled")


def _other_users(view: View, outcome: Outcome) -> list[gpu_readings.GpuUser]:
    if view.mode != "gpu":
        return []
    seen = {one.get("uuid") for one in view.environment.get("devices") or [] if isinstance(one, dict)} - {None}
    device = outcome.details.get("device")
    blamed = {str(device)} if device else set(outcome.details.get("gpus") or ())
    everybody = [user for user in gpu_readings.users(view) if not seen or user.uuid in seen]
    return [user for user in everybody if not blamed or user.uuid in blamed]


def _hung_with_p2p(outcome: Outcome, of: Evidence) -> Outcome:
    """Return the outcome of a group that hung until peer-to-peer was switched off: it has not passed."""
    hung = of.details.get("hung")
    if not hung:
        return outcome
    if outcome.status in (FAIL, ERROR):
        return dataclasses.replace(outcome, summary=f"{outcome.summary}; with {_OFF_WORDS}, for without it: {hung}")
    summary = f"P2P broken: {hung}; with {_OFF_WORDS} it is a {outcome.status}: {outcome.summary}"
    broken = Outcome(FAIL, summary, remedy=_P2P_FIX, details=outcome.details, code="peer-to-peer.hung")
    return worst([broken, outcome], otherwise=broken) if outcome.status == WARN else broken


def _without_p2p(outcome: Outcome, of: Evidence) -> Outcome:
    """Return the outcome of a group that ran without peer-to-peer: a speed that fell short for that is not known."""
    ran_so = of.details.get("ran_with") == _OFF and not of.details.get("hung")
    if not ran_so or of.found.check.probe or outcome.status == SKIP:
        return outcome
    condition = f"measured with {_OFF_WORDS}, as peer-to-peer is broken"
    # What an outcome blames that is about one GPU by itself: its pace is its own, whatever groups talk over.
    excused = _excused(
        outcome,
        lambda finding: "" if any(word in finding.details for word in ("device", "devices", "rank")) else condition,
        _P2P_FIX,
        code="speed.peer-to-peer-off",
    )
    told = f"{outcome.summary}; with {_OFF_WORDS}"
    return dataclasses.replace(outcome, summary=told) if excused is outcome else excused


# By name: the reason that reports show, and what the rule makes of an outcome. They are applied in this order.
OUTCOME_RULES: Final[Mapping[str, tuple[str, Callable[[Any, Evidence], Outcome]]]] = {
    "contradiction": ("the check contradicts itself, or its value is not a finite number", _consistent),
    "busy-gpu": ("other processes used the GPU while its speed was measured", excuse_busy),
    "cpu-quota": ("a quota of CPU time held the ranks back while their speed was measured", _excuse_throttled),
    "p2p-hang": ("the ranks hung until NCCL_P2P_DISABLE=1 was set", _hung_with_p2p),
    "p2p-disabled": ("the speed was measured with NCCL_P2P_DISABLE=1, because peer-to-peer is broken", _without_p2p),
}
