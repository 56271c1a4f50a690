"""Gradients that are compressed on their way, and arrive as something else.

Seen in the wild: the bf16 hook on a backend that has no bf16, PowerSGD so coarse that training stalls, hooks that leave
replicas apart because each rank rounds its own way. The bf16 and fp16 hooks may be off by their roundings; PowerSGD is
given gradients of a rank it can represent, so that it has to be right and not merely near.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any

from envcheck.checks import (
    Check,
    Limit,
    Measured,
    Outcome,
    Rank,
    Ranks,
    View,
    failed,
    passed,
    skipped,
    undecided,
    worst,
)
from envcheck.checks.env.support.collectives import process_group
from envcheck.checks.env.support.training import model_replicas, plain_math, promise_cases

CHECK = Check(
    promise="DDP's bf16, fp16 and PowerSGD hooks give the averaged gradient within their rounding, equal on every rank",
    level="standard",
    seconds=2.0,
    cpu_seconds=0.3,
    timeout=120.0,
    ranks=0,
    least_ranks=2,
    imports=("torch._dynamo",),  # by the first optimizer
)

HOOKS = ("bf16", "fp16", "powersgd")
STEPS = 5
# PowerSGD sends its first gradients whole; it may not compress earlier.
WHOLE = 2
PER_RANK = 8
WIDTH = 32
# The inputs span no more dimensions than this, and so does the gradient of the layer that they go into.
SUBSPACE = 4
UNIT_ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11}
POWERSGD_BOUND = 1e-4
# What DDP and gloo say of a dtype that they do not have on a CPU (torch/nn/parallel/distributed.py; gloo's own switch).
REFUSALS = ("BF16 all reduce communication hook required", "Invalid scalar type")
_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


def bound(hook: str, world: int) -> Limit:
    """Return how far from the average a gradient may be, relative to the mean norm of the ranks' own."""
    if hook in UNIT_ROUNDOFF:
        source = f"one rounding to {hook} when a gradient is sent and one each time another is added to it (ours)"
        return Limit(world * UNIT_ROUNDOFF[hook], "relative error", source, "at most")
    source = (
        f"a gradient of rank {SUBSPACE} is represented exactly by PowerSGD of that rank (Vogels et al. 2019, "
        "arXiv 1905.13727); what is left is fp32 rounding, seen at 3e-7 on a CPU (0.0001: ours)"
    )
    return Limit(POWERSGD_BOUND, "relative error", source, "at most")


def measure(rank: Rank) -> Measured:
    """Train a few steps under each hook; say how far its gradients are from the average, and digest the replica."""
    import torch

    device, seed = process_group.device_of(rank), plain_math.seed_of(rank)
    with process_group.group(rank) as dist:
        runs = {hook: _tried(torch, dist, rank, device, hook) for hook in HOOKS if rank.world > 1}
        probe = torch.zeros(1, device=device)
        return {**process_group.standing(rank, probe, dist.get_backend()), "seed": seed, "runs": runs}


def _tried(torch: Any, dist: Any, rank: Rank, device: Any, hook: str) -> Measured:
    try:
        return _run(torch, dist, rank, device, hook)
    except promise_cases.AbsentFeature as absent:
        return {"unsupported": str(absent)}
    except Exception as error:  # noqa: BLE001 (an error of NCCL's or CUDA's is a failure that is quoted, no absence)
        return {"raised": promise_cases.quoted(error)}


def _run(torch: Any, dist: Any, rank: Rank, device: Any, hook: str) -> Measured:
    seed = plain_math.seed_of(rank)
    module = model_replicas.model(torch, WIDTH).to(device)
    model_replicas.start(torch, module, f"{seed} {rank.rank}")
    model = model_replicas.wrap(rank, module)
    state = _register(torch, dist, model, hook, device)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
    errors = []
    for step in range(STEPS):
        optimizer.zero_grad()
        errors.append(_step(torch, rank, model, f"{seed} {step}", device))
        optimizer.step()
    run: Measured = {"errors": errors, "ended": model_replicas.digest(torch, module.parameters())}
    return {**run, "compression": float(state.compression_stats()[0])} if state is not None else run


def _register(torch: Any, dist: Any, model: Any, hook: str, device: Any) -> Any:
    if hook in UNIT_ROUNDOFF:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        try:
            model.register_comm_hook(None, getattr(default_hooks, f"{hook}_compress_hook"))
            # Says now, and not in the middle of a backward pass, whether this backend adds in the dtype at all.
            dist.all_reduce(torch.zeros(1, dtype=getattr(torch, _DTYPES[hook]), device=device))
        except (TypeError, RuntimeError) as error:
            refused = next((refusal for refusal in REFUSALS if refusal in str(error)), None)
            if refused is None or device.type != "cpu":
                raise
            raise promise_cases.AbsentFeature(promise_cases.quoted(error)) from error
        return None
    if importlib.util.find_spec("numpy") is None:
        message = "torch's PowerSGD hook imports NumPy, which is not installed"
        raise promise_cases.AbsentFeature(message)
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=SUBSPACE, start_powerSGD_iter=WHOLE)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return state


def _step(torch: Any, rank: Rank, model: Any, seed: str, device: Any) -> float:
    """Return the largest error of a parameter's gradient, relative to the mean norm of what the ranks sent."""
    batch = _batch(torch, seed, rank.world * PER_RANK, device)
    shares = [batch.share(r * PER_RANK, PER_RANK) for r in range(rank.world)]
    sent = [model_replicas.reference(model.module, share) for share in shares]
    inputs, targets = shares[rank.rank].tensors
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    actual = [model_replicas.numbers(p.grad) for p in model.module.parameters()]
    return model_replicas.worst(_off(gradient, list(own)) for gradient, own in zip(actual, zip(*sent)))


def _batch(torch: Any, seed: str, count: int, device: Any) -> model_replicas.Batch:
    """Return a batch whose inputs span SUBSPACE dimensions and no more."""
    basis = plain_math.rows(plain_math.values("basis", SUBSPACE * WIDTH), WIDTH)
    places = plain_math.rows(plain_math.values(f"{seed} places", count * SUBSPACE), SUBSPACE)
    columns = plain_math.transposed(basis)
    inputs = [[plain_math.dot(place, column) for column in columns] for place in places]
    targets = plain_math.rows(
        plain_math.values(f"{seed} targets", count * model_replicas.OUTPUTS), model_replicas.OUTPUTS
    )
    tensors = (torch.tensor(inputs, device=device), torch.tensor(targets, device=device))
    return model_replicas.Batch((inputs, targets), tensors)


def _off(gradient: list[float], sent: list[list[float]]) -> float:
    if any(len(own) != len(gradient) for own in sent):
        return math.inf
    average = [sum(parts) / len(sent) for parts in zip(*sent)]
    scale = sum(math.sqrt(plain_math.dot(own, own)) for own in sent) / len(sent)
    gap = [actual - right for actual, right in zip(gradient, average)]
    return math.sqrt(plain_math.dot(gap, gap)) / scale


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on a rank whose compressed gradients are too far off, or whose replica is not the others'."""
    problem = process_group.problem(view, ranks)
    if problem is not None:
        return problem
    if len(ranks) == 1:
        return skipped("one rank sends no gradient", code="rank.not-enough")
    lacking, findings = {}, []
    for hook in HOOKS:
        runs = [(entry.get("runs") or {}).get(hook) or {} for entry in ranks]
        reasons = {run.get("unsupported") for run in runs}
        if len(reasons) == 1 and None not in reasons:
            lacking[hook] = str(reasons.pop())
        elif any("raised" in run for run in runs):
            findings += [_raised(entry, run, hook) for entry, run in zip(ranks, runs) if "raised" in run]
        else:
            unlike = _unlike(ranks, runs, hook)
            findings += [unlike] if unlike else []
    if findings:
        return worst(findings, passed(""))
    if len(lacking) == len(HOOKS):
        return skipped(
            "; ".join(f"no {hook} hook here: {why}" for hook, why in lacking.items()), code="ddp-hooks.unsupported"
        )
    return _passed(ranks, lacking)


def _raised(entry: Measured, run: Measured, hook: str) -> Outcome:
    where = f"rank {entry['rank']} on {entry['device']}"
    summary = f"{where}: the {hook} hook raised {run['raised']}"
    fix = "run the collectives check: wrong there too, look at NCCL and the driver; right there, reinstall torch"
    return failed(summary, fix=fix, code="ddp-hooks.raised", culprit=where, rank=entry["rank"])


def _unlike(ranks: Ranks, runs: list[Measured], hook: str) -> process_group.Problem:
    limit = bound(hook, len(ranks))
    for entry, run in zip(ranks, runs):
        errors, rank = run.get("errors") or [], entry["rank"]
        if len(errors) != STEPS or not run.get("ended"):
            return undecided(
                f"rank {rank} took {len(errors)} of {STEPS} {hook} steps",
                fix="see the check's log",
                code="ddp-hooks.unmeasured",
                culprit=f"rank {rank}, {hook}",
            )
        for step, error in enumerate(errors):
            if not process_group.finite(error) or not 0 <= error <= limit.value:
                return failed(
                    f"rank {rank}, {hook} hook, step {step}: the gradient is off by {error}",
                    fix="run all-reduce and ddp: right there, train without this hook, or reinstall torch",
                    value=error if process_group.finite(error) else None,
                    unit=limit.unit,
                    limit=limit,
                    rank=rank,
                    code="ddp-hooks.gradients",
                    culprit=f"rank {rank}, {hook}",
                )
        if hook == "powersgd" and not (process_group.finite(run.get("compression")) and run["compression"] > 1):
            return failed(
                f"rank {rank}: PowerSGD compressed nothing",
                fix="reinstall torch",
                rank=rank,
                code="ddp-hooks.not-compressed",
                culprit=f"rank {rank}, {hook}",
            )
    ended = [{"rank": entry["rank"], "ended": run["ended"]} for entry, run in zip(ranks, runs)]
    return model_replicas.drifted(ended, "ended", f"after training under the {hook} hook")


def _passed(ranks: Ranks, lacking: dict[str, str]) -> Outcome:
    runs = {hook: run for hook, run in ranks[0]["runs"].items() if hook not in lacking}
    worst = {hook: max(max(entry["runs"][hook]["errors"]) for entry in ranks) for hook in runs}
    hook = max(worst, key=lambda name: worst[name] / float(bound(name, len(ranks)).value))
    without = "".join(f"; no {name} hook: {why}" for name, why in lacking.items())
    limit = bound(hook, len(ranks))
    return passed(
        f"{', '.join(runs)}: gradients within rounding and replicas equal on {len(ranks)} ranks over "
        f"{ranks[0]['backend']}{without}",
        value=worst[hook],
        unit=limit.unit,
        limit=limit,
        runs=runs,
    )
