"""Training in FP8 that trains something else.

A small model is trained with FP8 products forward and backward: weights and activations in E4M3, gradients in E5M2,
each scaled by its own largest element (Micikevicius et al. 2022, FP8 Formats for Deep Learning, arXiv 2209.05433), and
its loss has to fall as the same model's in bfloat16.
"""

from __future__ import annotations

import math
import re
from typing import Any

from envcheck import checks
from envcheck.checks import Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided, worst
from envcheck.checks.support import process_group, training
from envcheck.counting import counted, numbered

CHECK = checks.Check(
    promise="a training step in FP8 follows the loss of the same step in bfloat16, where the GPU and torch have FP8",
    level="full",
    seconds=3.0,
    cpu_seconds=0.2,
    timeout=120.0,
    ranks=0,
    imports=("torch._dynamo",),  # by the first optimizer
)

STEPS, BATCH, WIDTH, CLASSES = 30, 64, 64, 16
# FP8 units want sizes that are multiples of 16.
RATE = 0.2
# Numbers spread evenly this far have a standard deviation of 1.
_SPREAD = math.sqrt(3)
DISTANCE = checks.Limit(
    0.03,
    "of the first loss",
    "furthest that the FP8 loss is from bfloat16's; ours: at most 0.013 apart in 957 draws on a CPU: 3 % leaves "
    "room for any order of adding and none for a scale that is off",
    "at most",
)
FALLEN = checks.Limit(0.1, "of the first loss", "ours: the last loss; bfloat16 comes to 0.04", "at most")
_FIX = (
    "run the gemm-throughput check: FP8 wrong there too means this GPU or its cuBLASLt; else install torch and its "
    "CUDA again"
)


def measure(rank: Rank) -> Measured:
    """Train the same model in bfloat16 and in FP8; return the losses of both."""
    import torch

    device = process_group.device_of(rank)
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else ()
    entry: Measured = {**process_group.standing(rank, torch.zeros(1, device=device)), "capability": list(capability)}
    why = lacking(torch, device, capability)
    if why:
        return {**entry, "lacking": why}
    seed = training.seed_of(rank)
    task = _task(seed)
    kinds = {"float8": _linear(torch), "bfloat16": lambda inputs, weight: inputs @ weight.t()}
    losses = {name: _train(torch, device, task, linear) for name, linear in kinds.items()}
    return {**entry, "seed": seed, "losses": losses}


def _task(seed: int) -> list[training.Matrix]:
    """Return what is trained, as rows from Python's generator: inputs, targets, and the weights of both layers."""

    def matrix(name: str, rows: int, columns: int) -> training.Matrix:
        return training.rows(training.values(f"{seed} {name}", rows * columns, _SPREAD), columns)

    def narrow(name: str, rows: int) -> training.Matrix:
        return [[value / WIDTH**0.5 for value in row] for row in matrix(name, rows, WIDTH)]

    inputs = matrix("inputs", BATCH, WIDTH)
    outputs = training.affine(inputs, narrow("targets", CLASSES), [0.0] * CLASSES)
    targets = [[math.tanh(value) for value in row] for row in outputs]
    return [inputs, targets, narrow("first", WIDTH), narrow("second", CLASSES)]


def _linear(torch: Any) -> Any:
    def product(left: Any, left_dtype: Any, right: Any) -> Any:
        # Its rows become contiguous before they are FP8: not every torch copies FP8 across.
        a, b = (quantized(torch, x.contiguous(), d) for x, d in ((left, left_dtype), (right, torch.float8_e4m3fn)))
        return multiply(torch, *a, *b)

    class Linear(torch.autograd.Function):  # type: ignore[misc]
        """inputs @ weight.T, and its gradients."""

        @staticmethod
        def forward(ctx: Any, inputs: Any, weight: Any) -> Any:
            ctx.save_for_backward(inputs, weight)
            return product(inputs, torch.float8_e4m3fn, weight)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            inputs, weight = ctx.saved_tensors
            return product(grad, torch.float8_e5m2, weight.t()), product(grad.t(), torch.float8_e5m2, inputs.t())

    return Linear.apply


def _train(torch: Any, device: Any, task: list[training.Matrix], linear: Any) -> list[float]:
    data, targets, *weights = (torch.tensor(rows, device=device) for rows in task)
    data, weights = data.to(torch.bfloat16), [weight.requires_grad_() for weight in weights]
    optimizer = torch.optim.SGD(weights, lr=RATE, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        first, second = (weight.to(torch.bfloat16) for weight in weights)
        loss = torch.nn.functional.mse_loss(linear(torch.relu(linear(data, first)), second).float(), targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@process_group.sound(backend=False)
def judge(view: View, ranks: Ranks) -> Outcome:  # noqa: ARG001 (a judge's signature)
    """Fail on each rank whose FP8 is none, or whose loss is not bfloat16's; skip where no rank has FP8."""
    lacking = {str(entry["rank"]): str(entry["lacking"]) for entry in ranks if entry.get("lacking")}
    if len(lacking) == len(ranks):
        return skipped(f"no FP8: {' and '.join(sorted(set(lacking.values())))}", code="fp8.unsupported")
    trained = [entry for entry in ranks if not entry.get("lacking")]
    findings = [finding for entry in trained for finding in _findings(entry)]
    if findings:
        return worst(findings, otherwise=findings[0])
    also = f"; not on {numbered('rank', lacking)}: {next(iter(lacking.values()))}" if lacking else ""
    return passed(
        f"the FP8 loss follows bfloat16's on {counted(len(trained), 'rank')}{also}",
        value=max(map(_distance, trained)),
        limit=DISTANCE,
        losses=trained[0].get("losses"),
        lacking=lacking,
        seed=trained[0].get("seed"),
    )


def _findings(entry: Measured) -> list[Outcome]:
    where, losses = process_group.name(entry), entry.get("losses") or {}
    eight, sixteen = (losses.get(dtype) or [] for dtype in ("float8", "bfloat16"))
    if len(eight) != STEPS or len(sixteen) != STEPS:
        summary = f"{where} trained {len(eight)} steps, not {STEPS}"
        return [undecided(summary, code="fp8.missing", culprit=where)]
    if not all(process_group.finite(loss) for loss in eight + sixteen) or not sixteen[0] > 0:
        summary = f"{where}: the loss is not finite"
        return [failed(summary, fix=_FIX, losses=losses, code="fp8.not-finite", culprit=where)]
    what = "the FP8 loss is {:.3g} of the first loss away from bfloat16's"
    rows = [("fp8.distance", what, _distance(entry), DISTANCE)]
    for name, those in (("bfloat16", sixteen), ("FP8", eight)):
        what = f"the {name} loss comes to {{:.3g}} of the first"
        rows.append(("fp8.not-learning", what, those[-1] / sixteen[0], FALLEN))
    common: dict[str, Any] = {"fix": _FIX, "losses": losses, "culprit": where}
    return [
        failed(f"{where}: {what.format(value)}", code=code, value=value, limit=limit, **common)
        for code, what, value, limit in rows
        if not value <= limit.value
    ]


def _distance(entry: Measured) -> float:
    eight, sixteen = entry["losses"]["float8"], entry["losses"]["bfloat16"]
    return float(max(abs(a - b) for a, b in zip(eight, sixteen)) / sixteen[0])


# FP8 units came with Ada and Hopper; torch asked for 9.0 before 2.3.
# What ATen's dispatcher, a kernel's own test of its inputs, and a signature of another torch say.
NO_KERNEL = re.compile(
    r"Could not run 'aten::_scaled_mm|not implemented for '|(not|only) (yet )?supported|"
    r"unexpected keyword argument|missing \d+ required|required positional argument"
)
FLOAT8_SINCE, AT_FIRST, WIDER = (8, 9), (9, 0), (2, 3)


def lacking(torch: Any, device: Any, capability: tuple[int, ...]) -> str:
    """Return why this device or this torch has no FP8 product; "" where it has to have one."""
    if not hasattr(torch, "_scaled_mm") or not hasattr(torch, "float8_e4m3fn"):
        return f"torch {torch.__version__} has no torch._scaled_mm"
    if device.type != "cuda":
        return _refused(torch, device)
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if tuple(capability) < FLOAT8_SINCE:
        return "not in this GPU"
    return "torch before 2.3" if tuple(capability) < AT_FIRST and version < WIDER else ""


def _refused(torch: Any, device: Any) -> str:
    """Try: no table says which torch has FP8 for CPUs. Only what says that there is no kernel counts; others raise."""
    ones = torch.ones(16, 16, device=device)
    try:
        multiply(torch, *quantized(torch, ones, torch.float8_e5m2), *quantized(torch, ones, torch.float8_e4m3fn))
    except (RuntimeError, TypeError) as error:
        if not NO_KERNEL.search(str(error)):
            raise
        return f"torch {torch.__version__} on a CPU: {str(error).strip().splitlines()[0][:120]}"
    return ""


def quantized(torch: Any, tensor: Any, dtype: Any) -> tuple[Any, Any]:
    """Return the tensor in an FP8 dtype, its largest element at the dtype's largest, and the scale to undo that."""
    most = torch.finfo(dtype).max
    scale = tensor.abs().max().float().clamp(min=1e-12) / most
    return (tensor.float() / scale).clamp(-most, most).to(dtype), scale


def multiply(torch: Any, left: Any, left_scale: Any, right: Any, right_scale: Any) -> Any:
    """Return left @ right.T in bfloat16; both have their rows in memory one after the other, as FP8 units want them."""
    product = torch._scaled_mm(  # noqa: SLF001 (torch has no public name for it before 2.10)
        left, right.t(), scale_a=left_scale, scale_b=right_scale, out_dtype=torch.bfloat16
    )
    return product[0] if isinstance(product, tuple) else product
