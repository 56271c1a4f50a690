"""From measurements to outcomes, and from outcomes to one verdict. Pure, and fails closed."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, Outcome, Ranks, View, failed, skipped, undecided
from envcheck.counting import counted
from envcheck.runner.judging import findings, status_rules
from envcheck.runner.planning.discover import CheckModule
from envcheck.runner.schema import Mode, OutcomeRow, RunVerdict, VerdictStatus

_STATUSES: Final = (PASS, WARN, FAIL, SKIP, ERROR)
_VERDICTS: Final[dict[int, VerdictStatus]] = {0: "pass", 1: "fail", 3: "error"}
_WORDS: Final = {1: "FAIL", 3: "UNDETERMINED"}
_WHERE: Final[dict[Mode, str]] = {
    "gpu": "on the GPUs of this node",
    "cpu": "on CPU{gloo}; no GPU was tested",
    "unknown": "without an answer from torch; no GPU was tested",
}
GPU_FIX: Final = "check `nvidia-smi`, the torch variant (`envcheck resolve`) and, in a container, `--gpus all`"


def decide(
    module: CheckModule, view: View, ranks: Ranks | None = None, details: Mapping[str, Any] | None = None
) -> Outcome:
    """Judge one check, then apply the rules of status_rules.py to its outcome.

    `details` say how the ranks ran (see p2p_effects.KEPT). What is unknown, and a judge that breaks or contradicts
    itself, is an error.
    """
    outcome = status_rules.apply(_judged(module, view, ranks), status_rules.Evidence(module, view, details or {}))
    return findings.named(module.id, outcome)


def _judged(module: CheckModule, view: View, ranks: Ranks | None) -> Any:
    unread = [(n, view.snapshot.signal(n).reason) for n in module.check.signals if view.snapshot.signal(n).reason]
    if unread:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in unread)
        return undecided(
            f"undetermined: cannot read {reasons}",
            fix="run where they are readable, or pass --skip",
            code="signal.unread",
        )
    shapeless = [f"rank {number} reported {str(entry)[:60]}" for number, entry in _shapeless(ranks)]
    if shapeless:
        return undecided(
            f"{shapeless[0]}, not what it measured",
            fix="run the check again; look at its log",
            code="rank.no-measurement",
        )
    try:
        return module.judge(view) if module.kind == "node" else module.judge(view, ranks)
    except Exception as error:  # noqa: BLE001 (whatever a judge raises, its check came to no pass)
        reasons = f"bug in this check: {type(error).__name__}: {error}"
        return undecided(reasons, fix=f"report it, with {module.path.name}", code="envcheck.bug")


def _shapeless(ranks: Sequence[Any] | None) -> list[tuple[int, Any]]:
    """Return what is no measurement of a rank: a report is a file, and `measure` always gives an object."""
    return [(number, entry) for number, entry in enumerate(ranks or []) if not isinstance(entry, dict)]


def without_gpu(module: CheckModule, available: int, why: str, *, require_gpu: bool) -> Outcome | None:
    """Return the outcome of a check that needs more GPUs than there are, or None when it can run."""
    needed = module.check.gpus
    if needed <= available:
        return None
    reason = f"needs {counted(needed, 'GPU')}, found {available or 'none'}"
    if available == 0 and require_gpu:
        return failed(f"{reason}: {why}", fix=GPU_FIX, value=0, unit="GPUs", code="gpu.required")
    return skipped(f"{reason}: {why}" if available == 0 else reason, code="gpu.not-enough")


def alone(module: CheckModule, ranks: int) -> Outcome | None:
    """Return the outcome of a check of several ranks where there is one, or None when there are enough."""
    needed = module.check.least_ranks
    return (
        skipped(f"needs {counted(needed, 'rank')}, found {ranks}", code="rank.not-enough")
        if module.check.ranks == 0 and ranks < needed
        else None
    )


def exit_code(statuses: Sequence[str]) -> int:
    """Return 1 when anything failed, else 3 when something could not be checked or nothing passed, else 0."""
    if FAIL in statuses:
        return 1
    return 3 if ERROR in statuses or PASS not in statuses else 0


def verdict(outcomes: Sequence[OutcomeRow], mode: Mode, *, complete: bool = True) -> RunVerdict:
    """Say what a run came to; one that was cut short is never a pass."""
    code = exit_code([o.status for o in outcomes])
    code = code or (0 if complete else 3)
    counts = collections.Counter(str(o.status) for o in outcomes)
    culprits = [o.id for o in outcomes if o.status == (FAIL if code == 1 else ERROR)]
    return RunVerdict(
        status=_VERDICTS[code],
        exit_code=code,
        sentence=_sentence(
            code,
            counts[PASS],
            _WHERE[mode].format(gloo=" and gloo" if group_size(outcomes) else ""),
            culprits if complete or code == 1 else [*culprits, "cut short"],
        )
        + _extent(outcomes),
        counts={status: counts[status] for status in _STATUSES},
    )


def _extent(outcomes: Sequence[OutcomeRow]) -> str:
    """Say how often it was done, and how much of it was not."""
    times = max([o.spread.rounds for o in outcomes if o.spread], default=0)
    left = sum(o.left_out for o in outcomes)
    repetition = f"; {counted(times, 'round')}" if times else ""
    return repetition + (f"; {counted(left, 'check')} left out by the budget" if left else "")


def group_size(outcomes: Iterable[OutcomeRow]) -> int:
    """Return how many ranks the largest group had of those that measured something; 0 where each was alone."""
    return max((len(o.ranks) for o in outcomes if len(o.ranks) > 1 and any(r is not None for r in o.ranks)), default=0)


def _sentence(code: int, passes: int, where: str, culprits: list[str]) -> str:
    """Say in every sentence of a CPU run that it is one, so that none of them is taken for a GPU's."""
    if code == 0:
        return f"PASS: {counted(passes, 'promise')} proved {where}"
    return f"{_WORDS[code]}: {', '.join(culprits) or 'nothing passed'}{'' if where == _WHERE['gpu'] else f' ({where})'}"
