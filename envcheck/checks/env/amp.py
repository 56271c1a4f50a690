"""Mixed precision that is not mixed, or that trains nothing.

The dtype of each operation is read off its result, the loss has to follow the curve that plain Python computes, and the
scaler has to skip an overflow.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, worst
from envcheck.checks.support import process_group, training
from envcheck.counting import counted

CHECK = Check(
    promise="autocast gives products 16 bits and losses 32, training in it follows fp32's, the scaler skips overflows",
    level="standard",
    seconds=3.0,
    cpu_seconds=0.4,
    timeout=120.0,
    ranks=0,
    imports=("torch._dynamo",),  # by the first optimizer
)

DTYPES = ("bfloat16", "float16")
# pytorch.org/docs/stable/amp.html: what autocasts to the lower dtype, and what to float32.
LOWER, FULL = ("matmul", "conv2d"), ("softmax", "cross_entropy")
STEPS, BATCH, WIDTH = 12, 24, 21
RATE, SCALE = 0.4, 1024.0
TRAINING = Limit(
    0.02,
    "of the first loss",
    "largest distance of a step's loss from the curve in plain Python; bf16 is seen 0.002 away (ours)",
    "at most",
)
EXACT = Limit(0, "wrong", "pytorch.org/docs/stable/amp.html: dtypes and powers of two are exact", "at most")
# What spoils a gradient of the scaler's step.
SCALER = {"scaler: shrinks on inf": math.inf, "scaler: shrinks on nan": math.nan, "scaler: scales a loss": None}
_FIX = "reinstall torch; where another machine's is right with the same wheel, run the kernels check on this device"


class AbsentFeature(Exception):  # noqa: N818 (an answer, no error)
    """This torch or device does not have it; the text is the evidence: a capability query, a signature, a message."""


def measure(rank: Rank) -> Measured:
    """Try the operations in each dtype, train in each, and try the gradient scaler."""
    import torch

    device, seed = process_group.device_of(rank), training.seed_of(rank)
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else ()
    cases: dict[str, Callable[[], str | float]] = {}
    for dtype in DTYPES:
        lower = getattr(torch, dtype)
        cases |= {f"{name}, {dtype}": partial(_unlike, torch, device, lower, name) for name in (*LOWER, *FULL)}
        cases[f"training, {dtype}"] = partial(_distance, torch, device, lower, seed)
        if dtype == "bfloat16" and capability and capability < training.BFLOAT16_SINCE:
            cases = {name: partial(_emulated, capability) for name in cases}
    cases |= {name: partial(_overflow, torch, device, spoil) for name, spoil in SCALER.items()}
    where = {**process_group.standing(rank, torch.zeros(1, device=device)), "capability": list(capability)}
    return {**where, "seed": seed, "cases": {name: _tried(case) for name, case in cases.items()}}


def _tried(case: Callable[[], str | float]) -> Measured:
    try:
        result = case()
    except AbsentFeature as absent:
        return {"absent": str(absent)}
    except Exception as error:  # noqa: BLE001 (whatever it is, it is this case's finding, and a failure)
        return {"raised": process_group.quoted(error)}
    return {"wrong": result} if isinstance(result, str) else {"off": result}


def names() -> list[str]:
    """Return the name of every case."""
    return [*(f"{name}, {dtype}" for dtype in DTYPES for name in (*LOWER, *FULL, "training")), *SCALER]


def _emulated(capability: tuple[int, ...]) -> float:
    message = f"bf16 is emulated at compute capability {capability} (8.0 has it)"
    raise AbsentFeature(message)


def _autocast(torch: Any, device: Any, dtype: Any) -> Any:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        context = torch.autocast(device.type, dtype=dtype)
    refused = [str(w.message) for w in warned if "target dtype is not supported. Disabling" in str(w.message)]
    if refused:
        raise AbsentFeature(refused[0].replace("\n", " "))
    return context


def _unlike(torch: Any, device: Any, lower: Any, name: str) -> str | float:
    single = torch.ones(16, 16, device=device)
    functional, due = torch.nn.functional, lower if name in LOWER else torch.float32
    with _autocast(torch, device, lower):
        if name == "matmul":
            result = single @ single
        elif name == "conv2d":
            result = functional.conv2d(single.reshape(1, 1, 16, 16), single[:3, :3].reshape(1, 1, 3, 3))
        elif name == "softmax":
            # A CPU's autocast leaves softmax as it finds it (pytorch.org/docs/stable/amp.html, CPU ops).
            result = functional.softmax(single.to(lower) if single.is_cuda else single, dim=1)
        else:
            result = functional.cross_entropy(single.to(lower), torch.zeros(16, dtype=torch.long, device=device))
    return 0.0 if result.dtype == due else f"gives {result.dtype} under autocast, not {due}"


def _distance(torch: Any, device: Any, lower: Any, seed: int) -> float:
    model, batch = training.model(torch, WIDTH, seed, device), training.batch(torch, seed, BATCH, WIDTH, device)
    weights, losses, right = training.weights(model), list[float](), list[float]()
    inputs, targets = batch.tensors
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    scaler = _scaler(torch, device) if lower is torch.float16 else None
    for _ in range(STEPS):
        optimizer.zero_grad()
        with _autocast(torch, device, lower):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
        (scaler.scale(loss) if scaler else loss).backward()
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        losses.append(float(loss.detach()))
        due, gradients = training.two_layers(weights, *batch.rows)
        right.append(due)
        weights = training.stepped(weights, gradients, RATE)
    return training.off(losses, right, right[0])


def _scaler(torch: Any, device: Any) -> Any:
    # torch.amp.GradScaler, which takes a device, came with 2.3; the older one is for CUDA alone.
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(device.type, init_scale=SCALE)
    if device.type != "cuda":
        message = f"the GradScaler of torch {torch.__version__} is for CUDA alone (2.3 has torch.amp.GradScaler)"
        raise AbsentFeature(message)
    return torch.cuda.amp.GradScaler(init_scale=SCALE)


def _overflow(torch: Any, device: Any, spoil: float | None) -> str | float:
    scaler = _scaler(torch, device)
    weight = torch.nn.Parameter(torch.ones(3, device=device))
    optimizer = torch.optim.SGD([weight], lr=0.25)
    scaler.scale((weight * torch.tensor([0.5, -0.25, 2.0], device=device)).sum()).backward()
    if spoil is not None:
        weight.grad[-1] = spoil
    scaler.step(optimizer)
    scaler.update()
    actual = [*training.numbers(weight), float(scaler.get_scale())]
    right = [0.875, 1.0625, 0.5, SCALE] if spoil is None else [1.0, 1.0, 1.0, SCALE / 2]
    return 0.0 if actual == right else f"weights and scale are {actual}, not {right}"


@process_group.sound(backend=False)
def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail naming each operation of the wrong dtype, each training that goes another way, each fault of the scaler."""
    gpu = view.mode == "gpu"
    old = gpu and all(tuple(entry.get("capability") or ()) < training.BFLOAT16_SINCE for entry in ranks)
    # Older CPU builds have neither fp16 autocast nor a scaler, and say so.
    may_lack = {name for name in names() if (old if name.endswith("bfloat16") else not gpu)}
    findings = [finding for entry in ranks for finding in _findings(entry, may_lack)]
    return worst(findings, findings[0]) if findings else _right(ranks)


def _findings(entry: Measured, may_lack: set[str]) -> Iterator[Outcome]:
    for name in names():
        result: Any = (entry.get("cases") or {}).get(name) or {}
        value, absent = result.get("off"), result.get("absent")
        limit = TRAINING if name.startswith("training") else EXACT
        if "raised" in result:
            yield _failed(entry, name, f"{name} raised {result['raised']}")
        elif "wrong" in result:
            yield _failed(entry, name, f"{name}: {result['wrong']}")
        elif absent:
            if name not in may_lack:
                yield _failed(entry, name, f"{name} is missing: {absent}")
        elif "off" not in result:
            yield undecided(f"{process_group.name(entry)}: {name} was not tried", code="cases.not-tried", culprit=name)
        elif not (process_group.finite(value) and 0 <= value <= limit.value):
            yield _failed(entry, name, f"{name} is off by {value}", value=value, limit=limit)


def _failed(entry: Measured, name: str, subject: str, **more: Any) -> Outcome:
    where = process_group.name(entry)
    about = {"culprit": f"{where}: {name}", "rank": entry["rank"], "seed": entry.get("seed")}
    return failed(f"{where}: {subject}", fix=_FIX, code="amp.wrong", **about, **more)


def _right(ranks: Ranks) -> Outcome:
    cases: Measured = ranks[0]["cases"]
    absent = {name: result["absent"] for name, result in cases.items() if "absent" in result}
    tried = [name for name in names() if name not in absent]
    furthest = max((float(cases[name]["off"]) for name in tried if name.startswith("training")), default=0.0)
    without = f"; not here: {len(absent)}, see the details" if absent else ""
    right = f"{counted(len(tried), 'case')} right on {counted(len(ranks), 'rank')}, seed {ranks[0].get('seed')}"
    about: dict[str, Any] = {"seed": ranks[0].get("seed"), "absent": absent}
    return passed(f"{right}{without}", value=furthest, limit=TRAINING, **about)
