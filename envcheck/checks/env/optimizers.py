"""An optimizer that steps, and not by its own formula: the loss still falls, and the run is another one.

Seen in the wild: betas that were swapped by a patched image, weight decay that is coupled where it should not be, a
fused kernel that skips a parameter, a schedule that restarts on resume, gradients clipped by each rank's own norm. Each
algorithm walks a few steps on given gradients, in each of its implementations, and has to end where the documented
formula ends, computed here in plain Python; so have schedules, clipping, accumulation, restored state and averages.
"""

from __future__ import annotations

import re

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View
from envcheck.checks.env.support.optimizers import (
    clipping_cases,
    gradient_cases,
    implementations,
    optimizer_cases,
    optimizer_walks,
    schedule_cases,
)
from envcheck.checks.support import process_group, promise_cases
from envcheck.checks.training import plain_math

CHECK = Check(
    promise="optimizers, schedules and gradient clipping follow their documented formulas, in every implementation",
    level="standard",
    seconds=2.0,
    cpu_seconds=0.9,
    timeout=120.0,
    imports=("torch._dynamo",),  # by the first optimizer
)

NAMES = [
    *optimizer_walks.NAMES,
    *schedule_cases.NAMES,
    *optimizer_walks.OTHERS,
    *clipping_cases.NAMES,
    *schedule_cases.MOMENTA,
    *optimizer_cases.NAMES,
    *gradient_cases.NAMES,
    *optimizer_cases.AVERAGES,
    optimizer_walks.LBFGS,
]
_SOURCE = "distance to the documented formula's end in plain Python, as a share of the way walked; ours, "
LIMITS = {
    "float64": Limit(1e-7, "of the way", f"{_SOURCE}seen at 3e-9 (NAdam keeps one factor in float32)", "at most"),
    "float32": Limit(1e-3, "of the way", f"{_SOURCE}float32 parameters or step counts, seen at 2e-5", "at most"),
    # torch/optim/lbfgs.py learns nothing from a step whose curvature is below 1e-10: the last steps use an old one.
    "minimum": Limit(1e-4, "of the way", f"{_SOURCE}LBFGS, seen at 1.2e-6 in 2000 seeds", "at most"),
}
_FIX = "reinstall torch: its optimizers do not follow their documentation; compare them with the wheel's own files"


def limit_of(name: str) -> Limit:
    """Return what a case may be off by: capturable steps count in float32, and ASGD keeps its rate in float32."""
    if name == optimizer_walks.LBFGS:
        return LIMITS["minimum"]
    narrow = " in float32" in name or name.endswith("capturable") or name.startswith("ASGD")
    return LIMITS["float32" if narrow else "float64"]


def measure(rank: Rank) -> Measured:
    """Walk each algorithm in each implementation; return how far from the formula's end each is."""
    import torch

    device = process_group.device_of(rank)
    seed = plain_math.seed_of(rank)
    walks = optimizer_walks.Walks(torch, device, seed)
    where = process_group.standing(rank, torch.zeros(1, device=device))
    cases = {
        **walks.cases(),
        **schedule_cases.cases(walks),
        **clipping_cases.Clipping(torch, walks.gradients[0], walks.with_gradients).cases(),
        **optimizer_cases.LargeProblemCases(torch, device, seed, walks.make).cases(),
        **gradient_cases.cases(walks),
        **optimizer_cases.averages(walks),
    }
    return {**where, "seed": seed, "cases": promise_cases.run(cases)}


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail naming each algorithm, schedule or helper that does not follow its formula."""
    release = re.match(r"(\d+)\.(\d+)", str(view.environment.get("torch") or ""))
    version = tuple(map(int, release.groups())) if release else implementations.ADAFACTOR_SINCE

    def may_lack(name: str) -> bool:
        lacking = (version < (2,) and name.startswith("NAdam")) or (
            version < implementations.ADAFACTOR_SINCE and name.startswith("Adafactor")
        )
        return _may_lack(name) or lacking

    return promise_cases.judge(view, ranks, promise_cases.Terms(NAMES, limit_of, "optimizers.formula", _FIX, may_lack))


def _may_lack(name: str) -> bool:
    later = name in optimizer_cases.LATER or name.endswith((", foreach", ", fused", ", capturable"))
    return later or ", nesterov," in name or ", amsgrad," in name
