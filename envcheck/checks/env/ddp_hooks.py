"""Gradients that are compressed on their way, and arrive as something else.

Seen in the wild: the bf16 hook on a backend that has no bf16, PowerSGD so coarse that training stalls, hooks that leave
replicas apart because each rank rounds its own way. The bf16 and fp16 hooks may be off by their roundings; PowerSGD is
given gradients of a rank it can represent, so that it has to be right and not merely near.
"""

from __future__ import annotations

from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided
from envcheck.checks.env import _group, _replicas

CHECK = Check(
    promise="DDP's bf16, fp16 and PowerSGD hooks give the averaged gradient within their rounding, equal on every rank",
    level="standard",
    seconds=2.0,
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
WIDTH = 64
# The inputs span no more dimensions than this, and so does the gradient of the layer that they go into.
SUBSPACE = 4
UNIT_ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11}
POWERSGD_BOUND = 1e-4
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

    device = _group.device_of(rank)
    with _group.group(rank) as dist:
        runs = {hook: _run(torch, dist, rank, device, hook) for hook in HOOKS if rank.world > 1}
        probe = torch.zeros(1, device=device)
        return {**_group.standing(rank, probe, dist.get_backend()), "runs": runs}


def _run(torch: Any, dist: Any, rank: Rank, device: Any, hook: str) -> Measured:
    torch.manual_seed(3000 + rank.rank)
    module = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 8)).to(device)
    model = _replicas.wrap(rank, module)
    try:
        state = _register(torch, dist, model, hook, device)
    except (ImportError, RuntimeError, AttributeError, TypeError) as error:
        return {"unsupported": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
    errors = []
    for step in range(STEPS):
        optimizer.zero_grad()
        errors.append(_step(torch, rank, model, step, device))
        optimizer.step()
    run: Measured = {"errors": errors, "ended": _replicas.digest(torch, module.parameters())}
    return {**run, "compression": float(state.compression_stats()[0])} if state is not None else run


def _register(torch: Any, dist: Any, model: Any, hook: str, device: Any) -> Any:
    if hook in UNIT_ROUNDOFF:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        model.register_comm_hook(None, getattr(default_hooks, f"{hook}_compress_hook"))
        # Says now, and not in the middle of a backward pass, whether this backend adds in the dtype at all.
        dist.all_reduce(torch.zeros(1, dtype=getattr(torch, _DTYPES[hook]), device=device))
        return None
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=SUBSPACE, start_powerSGD_iter=WHOLE)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return state


def _step(torch: Any, rank: Rank, model: Any, step: int, device: Any) -> float:
    """Return the largest error of a parameter's gradient, relative to the mean norm of what the ranks sent."""
    generator = torch.Generator().manual_seed(60 + step)
    basis = torch.randn(SUBSPACE, WIDTH, generator=torch.Generator().manual_seed(59))
    inputs = (torch.randn(rank.world * PER_RANK, SUBSPACE, generator=generator) @ basis / 2).to(device)
    targets = torch.randn(rank.world * PER_RANK, 8, generator=generator).to(device)
    shares = [slice(r * PER_RANK, (r + 1) * PER_RANK) for r in range(rank.world)]
    sent = [_replicas.reference(torch, model.module, inputs[share], targets[share]) for share in shares]
    mine = shares[rank.rank]
    torch.nn.functional.mse_loss(model(inputs[mine]), targets[mine]).backward()
    return _replicas.worst(_off(p.grad, list(own)) for p, own in zip(model.module.parameters(), zip(*sent)))


def _off(gradient: Any, sent: list[Any]) -> float:
    average = sum(sent) / len(sent)
    scale = sum(float(grad.norm()) for grad in sent) / len(sent)
    return float((gradient - average).norm()) / scale


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on a rank whose compressed gradients are too far off, or whose replica is not the others'."""
    found = _group.problem(view, ranks)
    if found is not None:
        return found
    if len(ranks) == 1:
        return skipped("one rank sends no gradient")
    lacking = {}
    for hook in HOOKS:
        told = [(entry.get("runs") or {}).get(hook) or {} for entry in ranks]
        reasons = {run.get("unsupported") for run in told}
        if len(reasons) == 1 and None not in reasons:
            lacking[hook] = str(reasons.pop())
            continue
        found = _unlike(ranks, told, hook)
        if found is not None:
            return found
    if len(lacking) == len(HOOKS):
        return skipped("; ".join(f"no {hook} hook here: {why}" for hook, why in lacking.items()))
    return _passed(ranks, lacking)


def _unlike(ranks: Ranks, runs: list[Measured], hook: str) -> _group.Problem:
    limit = bound(hook, len(ranks))
    for entry, run in zip(ranks, runs):
        errors, rank = run.get("errors") or [], entry["rank"]
        if len(errors) != STEPS or not run.get("ended"):
            return undecided(f"rank {rank} took {len(errors)} of {STEPS} {hook} steps", fix="see the check's log")
        for step, error in enumerate(errors):
            if not _group.finite(error) or not 0 <= error <= limit.value:
                return failed(
                    f"rank {rank}, {hook} hook, step {step}: the gradient is off by {error}",
                    fix="run all-reduce and ddp: right there, train without this hook, or reinstall torch",
                    value=error if _group.finite(error) else None,
                    unit=limit.unit,
                    limit=limit,
                    rank=rank,
                )
        if hook == "powersgd" and not (_group.finite(run.get("compression")) and run["compression"] > 1):
            return failed(f"rank {rank}: PowerSGD compressed nothing", fix="reinstall torch", rank=rank)
    ended = [{"rank": entry["rank"], "ended": run["ended"]} for entry, run in zip(ranks, runs)]
    return _replicas.drifted(ended, "ended", f"after training under the {hook} hook")


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
