"""Training in FP8 that trains something else.

Seen in the wild: a cuBLASLt that is older than the wheel asks for, scales applied twice or not at all, gradients that
vanish because they were put into the format meant for weights. A small model is trained with FP8 products forward and
backward: weights and activations in E4M3, gradients in E5M2, each scaled by its own largest element (Micikevicius et
al. 2022, FP8 Formats for Deep Learning, arXiv 2209.05433), and its loss has to fall as the same model's in bfloat16.
"""

from __future__ import annotations

from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided
from envcheck.checks.env import _fp8, _group

CHECK = Check(
    promise="a training step in FP8 follows the loss of the same step in bfloat16, where the GPU and torch have FP8",
    level="full",
    seconds=3.0,
    timeout=120.0,
    ranks=0,
    imports=("torch._dynamo",),  # by the first optimizer
)

STEPS, BATCH, WIDTH, CLASSES = 30, 64, 64, 16
# FP8 units want sizes that are multiples of 16.
RATE = 0.2
# What a training in FP8 has to have multiplied.
FORMATS = ("float8_e4m3fn x float8_e4m3fn", "float8_e5m2 x float8_e4m3fn")
DISTANCE = Limit(
    0.03,
    "of the first loss",
    "furthest that the FP8 loss is from bfloat16's; ours: 0.002 to 0.006 apart on a CPU, at learning rates from 0.05 "
    "to 0.5, so that 3 % leaves room for any order of adding and none for a scale that is off",
    "at most",
)
FALLEN = Limit(0.1, "of the first loss", "ours: the last loss; bfloat16 comes to 0.04", "at most")
_FIX = "run the matmul check: FP8 wrong there too means this GPU or its cuBLASLt; else install torch and its CUDA again"


def measure(rank: Rank) -> Measured:
    """Train the same model in bfloat16 and in FP8; return the losses of both."""
    import torch

    device = _group.device_of(rank)
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else ()
    probe = torch.zeros(1, device=device)
    entry: Measured = {**_group.standing(rank, probe), "capability": list(capability)}
    why = _fp8.lacking(torch, device, capability)
    if why:
        return {**entry, "lacking": why}
    made: list[str] = []
    losses = {"float8": _train(torch, device, _linear(torch, made)), "bfloat16": _train(torch, device, _plain)}
    return {**entry, "losses": losses, "formats": sorted(set(made))}


def _plain(inputs: Any, weight: Any) -> Any:
    return inputs @ weight.t()


def _linear(torch: Any, made: list[str]) -> Any:
    """Return a product by a weight whose forward and backward are FP8; `made` hears of the dtypes of each."""

    def product(left: Any, left_dtype: Any, right: Any) -> Any:
        # Its rows become contiguous before they are FP8: not every torch copies FP8 across.
        a, b = (_fp8.quantized(torch, x.contiguous(), d) for x, d in ((left, left_dtype), (right, torch.float8_e4m3fn)))
        made.append(" x ".join(str(x[0].dtype).replace("torch.", "") for x in (a, b)))
        return _fp8.multiply(torch, *a, *b)

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


def _train(torch: Any, device: Any, linear: Any) -> list[float]:
    """Train from the same weights on the same batch, products by `linear`, weights kept in fp32."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(BATCH, WIDTH, generator=generator)
    targets = torch.tanh(inputs @ torch.randn(WIDTH, CLASSES, generator=generator) / WIDTH**0.5).to(device)
    shapes = ((WIDTH, WIDTH), (CLASSES, WIDTH))
    weights = [torch.randn(*shape, generator=generator) / WIDTH**0.5 for shape in shapes]
    weights = [weight.to(device).requires_grad_() for weight in weights]
    optimizer, data = torch.optim.SGD(weights, lr=RATE, momentum=0.9), inputs.to(device, torch.bfloat16)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        first, second = (weight.to(torch.bfloat16) for weight in weights)
        loss = torch.nn.functional.mse_loss(linear(torch.relu(linear(data, first)), second).float(), targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on the first rank whose FP8 is none, or whose loss is not bfloat16's; skip where no rank has FP8."""
    found = _group.problem(view, ranks, backend=False)
    if found is not None:
        return found
    lacking = {str(entry["rank"]): str(entry["lacking"]) for entry in ranks if entry.get("lacking")}
    if len(lacking) == len(ranks):
        return skipped(f"no FP8: {' and '.join(sorted(set(lacking.values())))}")
    worst = 0.0
    for entry in (one for one in ranks if not one.get("lacking")):
        found = _untrained(entry)
        if found is not None:
            return found
        worst = max(worst, _distance(entry))
    also = f"; not on rank(s) {', '.join(lacking)}: {next(iter(lacking.values()))}" if lacking else ""
    return passed(
        f"the FP8 loss follows bfloat16's on {len(ranks) - len(lacking)} rank(s){also}",
        value=worst,
        unit=DISTANCE.unit,
        limit=DISTANCE,
        losses=ranks[0].get("losses"),
        lacking=lacking,
    )


def _untrained(entry: Measured) -> _group.Problem:
    """Return what is wrong with one rank's training, or None."""
    where, losses = f"rank {entry['rank']} on {entry['device']}", entry.get("losses") or {}
    eight, sixteen = (losses.get(dtype) or [] for dtype in ("float8", "bfloat16"))
    if len(eight) != STEPS or len(sixteen) != STEPS:
        return undecided(f"{where} trained {len(eight)} steps, not {STEPS}", fix="see the check's log")
    if not all(_group.finite(loss) for loss in eight + sixteen) or not sixteen[0] > 0:
        return failed(f"{where}: the loss is not finite", fix=_FIX, losses=losses)
    if sorted(entry.get("formats") or []) != sorted(FORMATS):
        said = ", ".join(entry.get("formats") or []) or "nothing"
        return failed(f"{where} multiplied {said}, not in FP8", fix=_FIX)
    for dtype, last in (("bfloat16", sixteen[-1]), ("FP8", eight[-1])):
        if last / sixteen[0] > FALLEN.value:
            said = f"{where}: the {dtype} loss comes to {last / sixteen[0]:.3g} of the first"
            return failed(said, fix=_FIX, value=last / sixteen[0], unit=FALLEN.unit, limit=FALLEN, losses=losses)
    if _distance(entry) > DISTANCE.value:
        said = f"{where}: the FP8 loss is {_distance(entry):.3g} of the first loss away from bfloat16's"
        return failed(said, fix=_FIX, value=_distance(entry), unit=DISTANCE.unit, limit=DISTANCE, losses=losses)
    return None


def _distance(entry: Measured) -> float:
    eight, sixteen = entry["losses"]["float8"], entry["losses"]["bfloat16"]
    return float(max(abs(a - b) for a, b in zip(eight, sixteen)) / sixteen[0])
