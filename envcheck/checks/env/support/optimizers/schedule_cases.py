"""Learning rates and momenta that schedules move, followed from the start and from a saved state."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

from envcheck.checks.env.support.optimizers import schedule_formulas, seeded_parameters
from envcheck.checks.support import promise_cases
from envcheck.checks.training import plain_math

NAMES = [f"schedule {name}" for name in schedule_formulas.FORMULAS]
MOMENTA = [f"momentum of {name}" for name in schedule_formulas.MOVES_MOMENTUM]


def cases(seeded: seeded_parameters.SeededParameters) -> dict[str, promise_cases.Case]:
    """Return each case by its name."""
    rates: list[promise_cases.Case] = [partial(_off, seeded, name) for name in schedule_formulas.FORMULAS]
    momenta = [partial(_momenta_off, seeded, name) for name in schedule_formulas.MOVES_MOMENTUM]
    return dict(zip([*NAMES, *MOMENTA], [*rates, *momenta]))


def _off(seeded: seeded_parameters.SeededParameters, name: str) -> float:
    """Follow a schedule of two groups, whole and from its state half-way on; return how far its rates are off."""
    if not hasattr(seeded.torch.optim.lr_scheduler, name.split(",", maxsplit=1)[0]):
        message = f"torch {seeded.torch.__version__} has no {name}"
        raise promise_cases.AbsentFeature(message)
    epochs = schedule_formulas.EPOCHS
    right = [schedule_formulas.FORMULAS[name](epoch) for epoch in range(epochs)]
    right += [schedule_formulas.second(name, rate) for rate in right]
    rates, resumed = _rates(seeded, name), _rates(seeded, name, epochs // 2)
    return max(plain_math.off([*one, *other], right) for one, other in (zip(*rates), zip(*resumed)))


def _rates(seeded: seeded_parameters.SeededParameters, name: str, reloaded_at: int = 0) -> list[tuple[float, float]]:
    """Return the rates of both groups at each epoch; at `reloaded_at` new objects load the states."""

    def made() -> tuple[Any, Any]:
        parameters, rate = seeded.parameters(), schedule_formulas.RATE
        groups = [{"params": parameters[:-1]}, {"params": parameters[-1:], "lr": rate / 4}]
        optimizer = seeded.torch.optim.SGD(groups, lr=rate)
        return optimizer, schedule_formulas.build(seeded.torch, name, optimizer)

    (optimizer, schedule), rates = made(), []
    for epoch in range(schedule_formulas.EPOCHS):
        if reloaded_at and epoch == reloaded_at:
            old = copy.deepcopy((optimizer.state_dict(), schedule.state_dict()))
            optimizer, schedule = made()
            optimizer.load_state_dict(old[0])
            schedule.load_state_dict(old[1])
        rates.append((float(optimizer.param_groups[0]["lr"]), float(optimizer.param_groups[1]["lr"])))
        optimizer.step()
        if epoch + 1 < schedule_formulas.EPOCHS:
            schedule.step(*([schedule_formulas.METRICS[epoch]] if name.startswith("ReduceLROnPlateau") else []))
    return rates


def _momenta_off(seeded: seeded_parameters.SeededParameters, name: str) -> float:
    """Follow the momentum that a schedule moves against the rate."""
    optimizer = seeded.torch.optim.SGD(seeded.parameters(), lr=schedule_formulas.RATE, momentum=0.5)
    made = getattr(seeded.torch.optim.lr_scheduler, name)
    schedule, actual = made(optimizer, **schedule_formulas.MOVES_MOMENTUM[name]), []
    for epoch in range(schedule_formulas.EPOCHS):
        actual.append(float(optimizer.param_groups[0]["momentum"]))
        optimizer.step()
        if epoch + 1 < schedule_formulas.EPOCHS:
            schedule.step()
    return plain_math.off(actual, [schedule_formulas.momentum(name, epoch) for epoch in range(len(actual))])
