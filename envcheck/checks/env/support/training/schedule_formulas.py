"""Learning rates of each schedule by the documented formula. Plain floats; no torch.

Sources: pytorch.org/docs/stable/optim.html, "How to adjust learning rate", each schedule's own page; SGDR arXiv
1608.03983 (cosine), super-convergence 1708.07120 (one cycle). `EPOCHS` rates each, the first before any step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

RATE = 0.1
EPOCHS = 12
# Metrics for ReduceLROnPlateau: two good ones, then none better.
METRICS = [1.0, 0.8, *[0.9] * (EPOCHS - 2)]
_HALF_CYCLE = 4


def _cosine(epoch: float, length: float, least: float = 0.0) -> float:
    return least + (RATE - least) * (1 + math.cos(math.pi * epoch / length)) / 2


def _linear(epoch: int, start: float, count: int) -> float:
    return RATE * (start + (1 - start) * min(epoch, count) / count)


def _one_cycle(epoch: int) -> float:
    first, last, up = RATE / 25, RATE / 25 / 1e4, 0.3 * EPOCHS - 1
    if epoch <= up:
        return RATE + (first - RATE) * (1 + math.cos(math.pi * epoch / up)) / 2
    share = (epoch - up) / (EPOCHS - 1 - up)
    return last + (RATE - last) * (1 + math.cos(math.pi * share)) / 2


def _plateau(epoch: int) -> float:
    """Return the rate with patience 2 and factor 0.5: the third epoch that is no better halves it."""
    rate, best, bad = RATE, math.inf, 0
    for metric in METRICS[:epoch]:
        better = metric < best * (1 - 1e-4)
        best, bad = (metric, 0) if better else (best, bad + 1)
        if bad > 2:  # noqa: PLR2004 (the patience that the schedule below is given)
            rate, bad = rate * 0.5, 0
    return rate


def _triangle(epoch: int) -> float:
    along = abs((epoch % (2 * _HALF_CYCLE)) / _HALF_CYCLE - 1)
    return 0.01 + (RATE - 0.01) * (1 - along)


FORMULAS: dict[str, Callable[[int], float]] = {
    "StepLR": lambda epoch: RATE * 0.5 ** (epoch // 3),
    "MultiStepLR": lambda epoch: RATE * 0.1 ** ((epoch >= 2) + (epoch >= 7)),  # noqa: PLR2004 (its milestones)
    "ExponentialLR": lambda epoch: RATE * 0.9**epoch,
    "LambdaLR": lambda epoch: RATE / (1 + epoch),
    "MultiplicativeLR": lambda epoch: RATE * 0.95**epoch,
    "ConstantLR": lambda epoch: RATE * (0.25 if epoch < 4 else 1.0),  # noqa: PLR2004 (its length)
    "PolynomialLR": lambda epoch: RATE * (1 - min(epoch, 10) / 10) ** 2,
    "LinearLR": lambda epoch: _linear(epoch, 0.2, 5),
    "CosineAnnealingLR": lambda epoch: _cosine(epoch, EPOCHS, 0.01),
    "CosineAnnealingWarmRestarts": lambda epoch: _cosine(epoch, 4) if epoch < 4 else _cosine(epoch - 4, 8),  # noqa: PLR2004
    "OneCycleLR": _one_cycle,
    "CyclicLR": _triangle,
    "ReduceLROnPlateau": _plateau,
    "SequentialLR": lambda epoch: _linear(epoch, 0.1, 4) if epoch < 4 else _cosine(epoch - 4, 8),  # noqa: PLR2004
    "ChainedScheduler": lambda epoch: _linear(epoch, 0.2, 5) * 0.9**epoch,
}


def build(torch: Any, name: str, optimizer: Any) -> Any:
    """Return torch's schedule of that name, with the options that its formula is written for."""
    schedules = torch.optim.lr_scheduler
    if name == "SequentialLR":
        parts = [schedules.LinearLR(optimizer, 0.1, total_iters=4), schedules.CosineAnnealingLR(optimizer, 8)]
        return schedules.SequentialLR(optimizer, parts, milestones=[4])
    if name == "ChainedScheduler":
        parts = [schedules.LinearLR(optimizer, 0.2, total_iters=5), schedules.ExponentialLR(optimizer, 0.9)]
        return schedules.ChainedScheduler(parts)
    options: dict[str, dict[str, Any]] = {
        "StepLR": {"step_size": 3, "gamma": 0.5},
        "MultiStepLR": {"milestones": [2, 7]},
        "ExponentialLR": {"gamma": 0.9},
        "LambdaLR": {"lr_lambda": lambda epoch: 1 / (1 + epoch)},
        "MultiplicativeLR": {"lr_lambda": lambda _epoch: 0.95},
        "ConstantLR": {"factor": 0.25, "total_iters": 4},
        "PolynomialLR": {"total_iters": 10, "power": 2.0},
        "LinearLR": {"start_factor": 0.2, "total_iters": 5},
        "CosineAnnealingLR": {"T_max": EPOCHS, "eta_min": 0.01},
        "CosineAnnealingWarmRestarts": {"T_0": 4, "T_mult": 2},
        "OneCycleLR": {"max_lr": RATE, "total_steps": EPOCHS},
        "CyclicLR": {"base_lr": 0.01, "max_lr": RATE, "step_size_up": _HALF_CYCLE, "cycle_momentum": False},
        "ReduceLROnPlateau": {"factor": 0.5, "patience": 2},
    }
    return getattr(schedules, name)(optimizer, **options[name])
