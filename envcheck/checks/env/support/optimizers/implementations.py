"""Each optimizer's options and implementations, and which of them this torch has on a device."""

from __future__ import annotations

import inspect
from typing import Any

from envcheck.checks.env.support.optimizers import optimizer_formulas
from envcheck.checks.support import promise_cases

# Seen: 2.1 is off by 0.002 of the way, 2.4 is right; no implementation is foreach by default on a CPU.
ASGD_FOREACH_SINCE = (2, 4)
OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "SGD": {
        "momentum": {"lr": 0.03, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.05},
        "nesterov": {"lr": 0.03, "momentum": 0.8, "nesterov": True, "maximize": True},
    },
    "Adam": {"options": {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1, "amsgrad": True}},
    "AdamW": {
        "options": {"lr": 0.02, "betas": (0.85, 0.97), "eps": 1e-3, "weight_decay": 0.3},
        "amsgrad": {"lr": 0.02, "weight_decay": 0.2, "amsgrad": True, "maximize": True},
    },
    "Adagrad": {"options": {"lr": 0.1, "lr_decay": 0.2, "weight_decay": 0.1, "initial_accumulator_value": 0.3}},
    "RMSprop": {"options": {"lr": 0.01, "alpha": 0.9, "weight_decay": 0.1, "momentum": 0.5, "centered": True}},
    "Adadelta": {"options": {"lr": 0.5, "rho": 0.8, "eps": 1e-4, "weight_decay": 0.1}},
    "Adamax": {"options": {"lr": 0.02, "betas": (0.8, 0.95), "weight_decay": 0.1}},
    "NAdam": {"options": {"lr": 0.02, "betas": (0.8, 0.95), "weight_decay": 0.1, "momentum_decay": 0.01}},
    "RAdam": {"options": {"lr": 0.02, "betas": (0.8, 0.95), "weight_decay": 0.1}},
    "ASGD": {"options": {"lr": 0.05, "lambd": 0.1, "alpha": 0.5, "t0": 3.0, "weight_decay": 0.1}},
    "Rprop": {"options": {"lr": 0.02, "etas": (0.4, 1.3), "step_sizes": (1e-3, 0.05)}},
    "SparseAdam": {
        "options": {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3},
        "maximize": {"lr": 0.02, "maximize": True},
    },
    "Adafactor": {
        "options": {"lr": 0.5, "beta2_decay": -0.6, "eps": (0.3, 0.01), "d": 1.5, "weight_decay": 0.1},
        "maximize": {"lr": 0.03, "eps": (1e-6, 2.0), "maximize": True},
    },
}
KINDS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "one by one": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True},
}
# The others have one implementation, or two of the three.
HAVE = {"SparseAdam": ("as it comes",), "Adafactor": ("as it comes", "one by one", "foreach")}
ADAFACTOR_SINCE = (2, 5)
# Beside the kinds that have no float32 of their own to try.
NARROW = tuple(kind for kind in KINDS if kind != "capturable")
_FUSED_ELSEWHERE = ("`fused=True` requires all the params to be", "requires all the params to be CUDA")


def of(name: str, kinds: tuple[str, ...] = tuple(KINDS)) -> tuple[str, ...]:
    """Return which of these kinds an optimizer comes in."""
    return HAVE.get(name, kinds)


def optimizer(torch: Any, device: Any, name: str, parameters: Any, options: dict[str, Any], kind: str) -> Any:
    """Return torch's optimizer; Absent where this one is not made in that way here."""
    lacking = _lacking(torch, device, name, options, kind)
    if lacking is not None:
        raise promise_cases.AbsentFeature(lacking)
    least = {"lr": optimizer_formulas.DEFAULTS["SGD"]["lr"]} if name == "SGD" and "lr" not in options else {}
    try:
        return getattr(torch.optim, name)(parameters, **options, **KINDS[kind], **least)
    except RuntimeError as error:
        # The documented refusal of a fused kernel for a device that has none; anything else is a failure.
        if "fused" in KINDS[kind] and any(words in str(error) for words in _FUSED_ELSEWHERE):
            raise promise_cases.AbsentFeature(str(error)) from error
        raise


def _lacking(torch: Any, device: Any, name: str, options: dict[str, Any], kind: str) -> str | None:
    """Return why an optimizer is not made in that way here; None where it is, or has to be."""
    release = f"torch {torch.__version__}"
    if not hasattr(torch.optim, name):
        return f"{release} has no {name}"
    if name == "NAdam" and torch.__version__.startswith("1."):
        # Its source multiplies the product of the momenta by the step's momentum twice; 2.x does so once.
        return f"the NAdam of {release} is another one than documented"
    taken = inspect.signature(getattr(torch.optim, name).__init__).parameters
    unknown = [flag for flag in {**options, **KINDS[kind]} if flag not in taken]
    if unknown:
        return f"{name} of {release} takes no {unknown[0]}"
    if "capturable" in KINDS[kind] and device.type == "cpu":
        return "capturable is for CUDA graphs"
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if name == "ASGD" and kind == "foreach" and version < ASGD_FOREACH_SINCE:
        return f"the foreach ASGD of {release} walks another way than its formula"
    return None
