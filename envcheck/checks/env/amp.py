"""Mixed precision that is not mixed, or that trains nothing.

Seen in the wild: autocast that does nothing (wrong device type) while everything "passes", bf16 emulated on old GPUs, a
GradScaler that meets infinities at every step and so never takes one, a loss that goes NaN after a few steps. The dtype
is read off a real activation, the loss has to fall as far as fp32's does, and the scaler has to grow on good steps and
shrink, without touching the weights, on an overflow provoked on purpose.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided
from envcheck.checks.env import _group, _precision

CHECK = Check(
    promise="mixed-precision training computes in its dtype, stays finite and learns; the gradient scaler works",
    level="standard",
    seconds=2.0,
    timeout=120.0,
    ranks=0,
    imports=("torch._dynamo",),  # by the first optimizer
)

STEPS = 24
GROWTH_INTERVAL = 4
FALL = Limit(
    0.02,
    "of the first loss",
    "distance of the last loss from fp32's; ours: bf16 ends 0.00004 away on a CPU, so that 2 % leaves room for any "
    "rounding to 8 bits and none for a broken kernel",
    "at most",
)
_SCALER_FIX = "update torch; if it persists on this GPU alone, the GPU computes fp16 wrongly"


def required(entry: Measured) -> list[str]:
    """Return the dtypes to train in: bf16 on CPUs and from compute capability 8.0 on, fp16 on every GPU."""
    if not entry["is_cuda"]:
        return ["bfloat16"]
    native = tuple(entry.get("capability") or ()) >= _precision.BFLOAT16_SINCE
    return ["bfloat16", "float16"] if native else ["float16"]


def measure(rank: Rank) -> Measured:
    """Train the same small model in fp32 and in each autocast dtype."""
    import torch

    device = _group.device_of(rank)
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else ()
    activation, reference = train(torch, device, "float32")
    entry = {**_group.standing(rank, activation), "capability": list(capability)}
    runs = {"float32": reference, **{dtype: train(torch, device, dtype)[1] for dtype in required(entry)}}
    if device.type != "cuda":
        runs["float16"] = {"not_applicable": "GradScaler and fp16 autocast belong to GPUs"}
    return {**entry, "runs": runs}


class _Training(NamedTuple):
    model: Any
    optimizer: Any
    scaler: Any
    inputs: Any
    targets: Any


def _training(torch: Any, device: Any, dtype: str) -> _Training:
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    inputs = torch.randn(256, 64)
    targets = torch.tanh(inputs @ torch.randn(64, 8)).to(device)
    model = model.to(device)
    options = {"init_scale": 1024.0, "growth_interval": GROWTH_INTERVAL, "enabled": dtype == "float16"}
    # torch.amp.GradScaler came with 2.3, and the older name warns from 2.4 on.
    new = hasattr(torch.amp, "GradScaler")
    scaler = torch.amp.GradScaler(device.type, **options) if new else torch.cuda.amp.GradScaler(**options)
    return _Training(model, torch.optim.SGD(model.parameters(), lr=0.5), scaler, inputs.to(device), targets)


def train(torch: Any, device: Any, dtype: str) -> tuple[Any, Measured]:
    """Return an activation, which shows where and in which dtype the model computed, and how the training went."""
    training = _training(torch, device, dtype)
    seen: list[Any] = []
    hook = training.model[0].register_forward_hook(lambda _module, _inputs, output: seen.append(output.detach()))
    losses = [_step(torch, training, dtype)]
    hook.remove()
    scales = [training.scaler.get_scale()]
    for _ in range(STEPS - 1):
        losses.append(_step(torch, training, dtype))
        scales.append(training.scaler.get_scale())
    run: Measured = {"dtype": str(seen[0].dtype).replace("torch.", ""), "losses": [round(x, 6) for x in losses]}
    if dtype == "float16":
        run |= {"scales": scales, "overflow": _overflow(torch, training)}
    return seen[0], run


def _step(torch: Any, training: _Training, dtype: str, blow_up: float = 1.0) -> float:
    model, optimizer, scaler, inputs, targets = training
    optimizer.zero_grad()
    lower = torch.bfloat16 if dtype == "float32" else getattr(torch, dtype)
    with torch.autocast(inputs.device.type, dtype=lower, enabled=dtype != "float32"):
        loss = torch.nn.functional.mse_loss(model(inputs), targets) * blow_up
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return float(loss.detach())


def _overflow(torch: Any, training: _Training) -> Measured:
    before, weights = training.scaler.get_scale(), training.model[0].weight.detach().clone()
    _step(torch, training, "float16", blow_up=1e30)
    untouched = bool(torch.equal(weights, training.model[0].weight.detach()))
    return {"before": before, "after": training.scaler.get_scale(), "weights_untouched": untouched}


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on the first rank and dtype that was not computed in that dtype, did not learn, or whose scaler is stuck."""
    found = _group.problem(view, ranks, backend=False)
    if found is not None:
        return found
    worst = 0.0
    for entry in ranks:
        runs = entry.get("runs") or {}
        for dtype in ["float32", *required(entry)]:
            if not (runs.get(dtype) or {}).get("losses"):
                return undecided(f"rank {entry['rank']} did not train in {dtype}", fix="see the check's log")
            found = untrained(entry["rank"], dtype, runs)
            if found is not None:
                return found
            worst = max(worst, _distance(runs, dtype))
    dtypes = ", ".join(required(ranks[0]))
    return passed(
        f"{dtypes}: autocast computes in it, the loss falls as in fp32, on {len(ranks)} rank(s)",
        value=worst,
        unit=FALL.unit,
        limit=FALL,
        runs=ranks[0]["runs"],
    )


def _distance(runs: Measured, dtype: str) -> float:
    reference = runs["float32"]["losses"]
    return float(abs(runs[dtype]["losses"][-1] - reference[-1]) / reference[0])


def untrained(rank: int, dtype: str, runs: Measured) -> _group.Problem:
    """Return what is wrong with one dtype's training, or None."""
    run = runs[dtype]
    losses, where = run["losses"], f"rank {rank}, {dtype}"
    if run.get("dtype") != dtype:
        return failed(f"{where}: the activation is {run.get('dtype')}", fix="autocast does nothing: reinstall torch")
    if not all(_group.finite(loss) for loss in losses):
        return failed(f"{where}: the loss is not finite", fix="run the matmul check on this GPU", losses=losses)
    if losses[-1] >= losses[0]:
        return failed(f"{where}: the loss does not fall", fix="run the matmul check on this GPU", losses=losses)
    if _distance(runs, dtype) > FALL.value:
        return failed(
            f"{where}: the loss does not fall as fp32's does",
            fix="run the matmul check on this GPU: this dtype is computed wrongly",
            value=_distance(runs, dtype),
            unit=FALL.unit,
            limit=FALL,
        )
    return _stuck_scaler(where, run) if dtype == "float16" else None


def _stuck_scaler(where: str, run: Measured) -> _group.Problem:
    scales, overflow = run.get("scales") or [], run.get("overflow") or {}
    if not scales or not all(_group.finite(scale) for scale in scales):
        return failed(f"{where}: the gradient scale is no number", fix=_SCALER_FIX, scales=scales)
    skips = sum(later < earlier for earlier, later in zip(scales, scales[1:]))
    if skips * 2 > STEPS:
        return failed(f"{where}: {skips} of {STEPS} steps were skipped as overflows", fix=_SCALER_FIX, scales=scales)
    if max(scales) <= scales[0]:
        return failed(f"{where}: the gradient scaler never grew", fix=_SCALER_FIX, scales=scales)
    before: Any = overflow.get("before")
    after: Any = overflow.get("after")
    halved = _group.finite(before) and _group.finite(after) and 0 <= after < before
    if overflow.get("weights_untouched") is not True or not halved:
        return failed(f"{where}: an overflow was not skipped", fix=_SCALER_FIX, overflow=overflow)
    return None
