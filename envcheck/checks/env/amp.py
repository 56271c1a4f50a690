"""Mixed precision that is not mixed, or that trains nothing.

Seen in the wild: autocast that does nothing (wrong device type) while everything "passes", one operation that keeps
its dtype, bf16 emulated on old GPUs, a GradScaler that meets infinities at every step and so never takes one, a loss
that goes NaN after a few steps. The dtype of each operation is read off its result, the loss has to follow the curve
that plain Python computes, and the scaler has to grow, shrink, skip and go on as documented.
"""

from __future__ import annotations

import contextlib
import re
from functools import partial
from typing import Any, NamedTuple

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View
from envcheck.checks.env.support.collectives import process_group
from envcheck.checks.env.support.training import (
    autocast_rules,
    dtype_precision,
    gradient_scaler,
    plain_math,
    promise_cases,
)

CHECK = Check(
    promise="autocast gives each operation its dtype, training in it follows fp32's, and the gradient scaler works",
    level="standard",
    seconds=2.0,
    cpu_seconds=0.4,
    timeout=120.0,
    ranks=0,
    imports=("torch._dynamo",),  # by the first optimizer
)

DTYPES = ("bfloat16", "float16")
# Seen: 2.1 casts transposed convolutions on a CPU, 1.13 does not; torch.amp.custom_fwd came with 2.4 (release notes).
CONVOLUTION_ON_CPU_SINCE, CUSTOM_SINCE = (2, 0), (2, 4)
STEPS, BATCH, WIDTH, HIDDEN, OUTPUTS = 12, 24, 13, 21, 5
RATE = 0.4
_CURVE = "largest distance of a step's loss from the curve in plain Python, as a share of the first loss"
LIMITS = {
    "float32": Limit(1e-4, "of the first loss", f"{_CURVE}; fp32 is seen 4e-7 away (ours)", "at most"),
    "lower": Limit(0.02, "of the first loss", f"{_CURVE}; bf16 is seen 0.002 away (ours)", "at most"),
    "exact": Limit(0, "wrong", "pytorch.org/docs/stable/amp.html: dtypes and powers of two are exact", "at most"),
}
_FIX = "reinstall torch; where another machine's is right with the same wheel, run the matmul check on this device"


def measure(rank: Rank) -> Measured:
    """Try every operation and context in each dtype, train in each, and try the gradient scaler."""
    import torch

    device = process_group.device_of(rank)
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else ()
    seed = plain_math.seed_of(rank)
    cases = _every(torch, device, seed, tuple(capability))
    where = process_group.standing(rank, torch.zeros(1, device=device))
    return {**where, "capability": list(capability), "seed": seed, "cases": promise_cases.run(cases)}


def names(*, gpu: bool) -> list[str]:
    """Return the name of every case."""
    tried = (*autocast_rules.operations(gpu=gpu), *autocast_rules.CONTEXTS, "training")
    scaler = [f"scaler: {name}" for name in gradient_scaler.NAMES]
    return ["training, float32", *(f"{name}, {dtype}" for dtype in DTYPES for name in tried), *scaler]


def _every(torch: Any, device: Any, seed: int, capability: tuple[int, ...]) -> dict[str, promise_cases.Case]:
    task = _task(seed)
    cases: dict[str, promise_cases.Case] = {"training, float32": partial(_distance, torch, device, task, None)}
    for dtype in DTYPES:
        if dtype == "bfloat16" and device.type == "cuda" and capability < dtype_precision.BFLOAT16_SINCE:
            absent = partial(_emulated, capability)
            cases |= {name: absent for name in names(gpu=True) if name.endswith(dtype)}
            continue
        tries = autocast_rules.AutocastTrials(torch, device, dtype)
        cases |= {f"{name}, {dtype}": case for name, case in tries.cases().items()}
        cases[f"training, {dtype}"] = partial(_distance, torch, device, task, tries)
    return {
        **cases,
        **{f"scaler: {name}": case for name, case in gradient_scaler.ScalerTrials(torch, device).cases().items()},
    }


def _emulated(capability: tuple[int, ...]) -> None:
    message = f"bf16 is emulated at compute capability {capability} (8.0 has it)"
    raise promise_cases.AbsentFeature(message)


class _AutocastTask(NamedTuple):
    """A small training: parameters to begin with, a batch, and the losses that plain Python computes for it."""

    start: list[list[float]]
    inputs: plain_math.Matrix
    targets: plain_math.Matrix
    right: list[float]


def _task(seed: int) -> _AutocastTask:
    sizes = (HIDDEN * WIDTH, HIDDEN, OUTPUTS * HIDDEN, OUTPUTS)
    start = [plain_math.values(f"{seed} {size}", size, 0.5) for size in sizes]
    inputs = plain_math.rows(plain_math.values(f"{seed} inputs", BATCH * WIDTH), WIDTH)
    targets = plain_math.rows(plain_math.values(f"{seed} targets", BATCH * OUTPUTS), OUTPUTS)
    return _AutocastTask(start, inputs, targets, curve(start, inputs, targets))


def _distance(torch: Any, device: Any, task: _AutocastTask, tries: autocast_rules.AutocastTrials | None) -> float:
    """Train a small model; return the largest distance of its losses from those that plain Python computes."""
    return plain_math.off(_trained(torch, device, task, tries), task.right, task.right[0])


def curve(parameters: list[list[float]], inputs: plain_math.Matrix, targets: plain_math.Matrix) -> list[float]:
    """Return the loss of each step of plain gradient descent, by the chain rule in float64."""
    now, losses = [list(part) for part in parameters], []
    for _ in range(STEPS):
        shaped = [plain_math.rows(now[0], WIDTH), now[1], plain_math.rows(now[2], HIDDEN), now[3]]
        loss, gradients = plain_math.two_layers(shaped, inputs, targets)
        losses.append(loss)
        now = [[x - RATE * g for x, g in zip(part, gradient)] for part, gradient in zip(now, gradients)]
    return losses


def _trained(torch: Any, device: Any, task: _AutocastTask, tries: autocast_rules.AutocastTrials | None) -> list[float]:
    layers = torch.nn
    model = layers.Sequential(layers.Linear(WIDTH, HIDDEN), layers.Tanh(), layers.Linear(HIDDEN, OUTPUTS)).to(device)
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), task.start):
            parameter.copy_(torch.tensor(values).reshape(parameter.shape))
    inputs, targets = (torch.tensor(part, device=device) for part in (task.inputs, task.targets))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    scaled = tries is not None and tries.dtype == torch.float16
    scaler = gradient_scaler.ScalerTrials(torch, device).scaler() if scaled else None
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with tries.autocast() if tries else contextlib.nullcontext():
            loss = layers.functional.mse_loss(model(inputs), targets)
        (scaler.scale(loss) if scaler else loss).backward()
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail naming each operation of the wrong dtype, each training that goes another way, each fault of the scaler."""
    gpu = view.mode == "gpu"
    old = gpu and all(tuple(entry.get("capability") or ()) < dtype_precision.BFLOAT16_SINCE for entry in ranks)

    release = tuple(int(part) for part in re.findall(r"\d+", str(view.environment.get("torch") or "99.0"))[:2])

    def may_lack(name: str) -> bool:
        if release < CUSTOM_SINCE and name.startswith("custom_fwd"):
            return True
        if release < CONVOLUTION_ON_CPU_SINCE and not gpu and name.startswith("conv_transpose"):
            return True
        if name.endswith("bfloat16"):
            return old or name.startswith(("attention", "custom_fwd"))
        # Older CPU builds have neither fp16 autocast nor a scaler, and say so.
        return name.startswith(("attention", "custom_fwd")) or not gpu

    return promise_cases.judge(view, ranks, promise_cases.Terms(names(gpu=gpu), _limit, "amp.wrong", _FIX, may_lack))


def _limit(name: str) -> Limit:
    if not name.startswith("training"):
        return LIMITS["exact"]
    return LIMITS["float32" if name.endswith("float32") else "lower"]
