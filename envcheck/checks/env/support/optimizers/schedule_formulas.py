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


def _plateau_of_maxima(epoch: int) -> float:
    """Return the rate where a metric should grow, with patience 1, a pause of 2 epochs and a least rate."""
    rate, best, bad, pause = RATE, -math.inf, 0, 0
    for metric in METRICS[:epoch]:
        better = metric > best + 1e-3
        best, bad = (metric, 0) if better else (best, bad + 1)
        if pause:
            pause, bad = pause - 1, 0
        if bad > 1:
            rate, bad, pause = max(rate * 0.5, RATE * 0.3), 0, 2
    return rate


def _triangle(epoch: int, scale: float = 1.0) -> float:
    along = abs((epoch % (2 * _HALF_CYCLE)) / _HALF_CYCLE - 1)
    return 0.01 + (RATE - 0.01) * (1 - along) * scale


def _one_straight_cycle(epoch: int) -> float:
    """Return the rate of one cycle in straight lines: up for half of the time from a tenth, down to a hundredth."""
    first, up = RATE / 10, 0.5 * EPOCHS - 1
    if epoch <= up:
        return first + (RATE - first) * epoch / up
    return RATE + (first / 100 - RATE) * (epoch - up) / (EPOCHS - 1 - up)


def momentum(name: str, epoch: int) -> float:
    """Return the momentum of a schedule that moves it against the rate, between 0.8 and 0.9."""
    if name == "CyclicLR":
        along = abs((epoch % (2 * _HALF_CYCLE)) / _HALF_CYCLE - 1)
        return 0.9 - 0.1 * (1 - along)
    up = 0.3 * EPOCHS - 1
    if epoch <= up:
        return 0.8 + 0.1 * (1 + math.cos(math.pi * epoch / up)) / 2
    return 0.9 - 0.1 * (1 + math.cos(math.pi * (epoch - up) / (EPOCHS - 1 - up))) / 2


MOVES_MOMENTUM: dict[str, dict[str, Any]] = {
    "CyclicLR": {
        "base_lr": 0.01,
        "max_lr": RATE,
        "step_size_up": _HALF_CYCLE,
        "base_momentum": 0.8,
        "max_momentum": 0.9,
    },
    "OneCycleLR": {"max_lr": RATE, "total_steps": EPOCHS, "base_momentum": 0.8, "max_momentum": 0.9},
}


def second(name: str, rate: float) -> float:
    """Return the rate of a second group that starts at a quarter of the first one's, where that has this one."""
    if name.startswith(("OneCycleLR", "CyclicLR")):
        return rate
    # Its least rate is not zero, and the same for all groups.
    if name == "CosineAnnealingLR":
        return 0.01 + (rate - 0.01) * (RATE / 4 - 0.01) / (RATE - 0.01)
    if name == "ReduceLROnPlateau, max":
        # Its start is below the least rate already.
        return RATE / 4
    return rate / 4


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
    "OneCycleLR, linear": _one_straight_cycle,
    "CyclicLR": _triangle,
    "CyclicLR, triangular2": lambda epoch: _triangle(epoch, 0.5 ** (epoch // (2 * _HALF_CYCLE))),
    "CyclicLR, exp_range": lambda epoch: _triangle(epoch, 0.9**epoch),
    "LinearLR, downwards": lambda epoch: RATE * (0.5 - 0.4 * min(epoch, 5) / 5),
    "ReduceLROnPlateau, max": _plateau_of_maxima,
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
    cycle = {"base_lr": 0.01, "max_lr": RATE, "step_size_up": _HALF_CYCLE, "cycle_momentum": False}
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
        "OneCycleLR, linear": {
            "max_lr": RATE,
            "total_steps": EPOCHS,
            "anneal_strategy": "linear",
            "pct_start": 0.5,
            "div_factor": 10.0,
            "final_div_factor": 100.0,
        },
        "CyclicLR": cycle,
        "CyclicLR, triangular2": {**cycle, "mode": "triangular2"},
        "CyclicLR, exp_range": {**cycle, "mode": "exp_range", "gamma": 0.9},
        "LinearLR, downwards": {"start_factor": 0.5, "end_factor": 0.1, "total_iters": 5},
        "ReduceLROnPlateau": {"factor": 0.5, "patience": 2},
        "ReduceLROnPlateau, max": {
            "mode": "max",
            "factor": 0.5,
            "patience": 1,
            "threshold": 1e-3,
            "threshold_mode": "abs",
            "cooldown": 2,
            "min_lr": RATE * 0.3,
        },
    }
    return getattr(schedules, name.split(",", maxsplit=1)[0])(optimizer, **options[name])
