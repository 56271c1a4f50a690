"""Data-parallel training that runs, and trains a different model on every rank.

The loss falls all the same. Ranks start from different weights, so that only DDP's broadcast can make them equal; the
reference is the same model in one process on the whole batch, in plain Python.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, worst
from envcheck.checks.support import process_group, training

CHECK = Check(
    promise="DDP's gradients equal one process's on the same batch, also under no_sync and hooks, on equal replicas",
    level="standard",
    seconds=3.0,
    cpu_seconds=0.6,
    timeout=120.0,
    ranks=0,
    least_ranks=2,
    imports=("torch._dynamo",),  # by the first optimizer
)

STEPS = 3
PER_RANK = 12
MICRO_BATCHES = 4
WIDTH = 43
RATE = 0.05
LIMIT = Limit(
    1.0,
    "of the tolerance",
    f"|gradient - reference| <= {training.TOLERANCE:g} of the reference's largest, fp32 against the chain rule "
    "in float64: rounding differs, seen at 0.1 of it; a gradient that was not averaged is off by thousands (ours)",
    "at most",
)
HOOKS = ("bf16", "powersgd")
# PowerSGD sends its first gradients whole; it may not compress earlier.
WHOLE, HOOK_STEPS = 2, 4
# Inputs span no more dimensions than this, so that the gradient of the layer they go into has this rank.
SUBSPACE = 4
# What DDP and gloo say of a dtype that they do not have on a CPU (torch/nn/parallel/distributed.py; gloo's own switch).
REFUSALS = ("BF16 all reduce communication hook required", "Invalid scalar type")


class AbsentHook(Exception):  # noqa: N818 (an answer, no error)
    """This torch or backend does not have the hook; the text is the evidence."""


def measure(rank: Rank) -> Measured:
    """Train plainly, under no_sync and under each hook; say how far gradients are from one process's."""
    import torch

    device, seed = process_group.device_of(rank), training.seed_of(rank)
    with process_group.group(rank) as dist:
        where = process_group.standing(rank, torch.zeros(1, device=device), dist.get_backend())
        plain = _plainly(torch, rank, device, seed)
        accumulated = _accumulated(torch, rank, device, seed)
        hooks = {hook: _hooked(torch, dist, rank, device, hook) for hook in HOOKS if rank.world > 1}
        return {**where, "seed": seed, **plain, **accumulated, "hooks": hooks}


def _replica(torch: Any, rank: Rank, device: Any, seed: int) -> Any:
    return training.model(torch, WIDTH, f"{seed} {rank.rank}", device)


def _plainly(torch: Any, rank: Rank, device: Any, seed: int) -> Measured:
    module = _replica(torch, rank, device, seed)
    own = training.digest(torch, module.parameters())
    model = training.wrap(rank, module)
    started = training.digest(torch, module.parameters())
    errors, steps = [], []
    for step in range(STEPS):
        batch = training.batch(torch, f"{seed} {step}", rank.world * PER_RANK, WIDTH, device)
        error, moved = _step(torch, rank, model, batch)
        errors.append(error)
        steps.append(moved)
    ended = training.digest(torch, module.parameters())
    return {"own": own, "started": started, "ended": ended, "errors": errors, "steps": steps}


def _step(torch: Any, rank: Rank, model: Any, batch: training.Batch) -> tuple[float, float]:
    module = model.module
    reference = training.reference(module, batch)
    before = training.weights(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    optimizer.zero_grad()
    _backward(torch, model, batch.share(rank.rank * PER_RANK, PER_RANK))
    error = _off(module, reference)
    optimizer.step()
    return error, training.in_tolerances(module.parameters(), training.stepped(before, reference, RATE))


def _backward(torch: Any, model: Any, batch: training.Batch, parts: int = 1) -> None:
    inputs, targets = batch.tensors
    (torch.nn.functional.mse_loss(model(inputs), targets) / parts).backward()


def _off(module: Any, reference: list[list[float]]) -> float:
    return training.in_tolerances([p.grad for p in module.parameters()], reference)


def _accumulated(torch: Any, rank: Rank, device: Any, seed: int) -> Measured:
    model = training.wrap(rank, _replica(torch, rank, device, seed), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.module.parameters(), lr=RATE)
    local, synchronised = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        batch = training.batch(torch, f"{seed} {step}", rank.world * PER_RANK, WIDTH, device)
        unsplit = training.reference(model.module, batch)
        own, each = batch.share(rank.rank * PER_RANK, PER_RANK), PER_RANK // MICRO_BATCHES
        last = PER_RANK - each
        expected = training.reference(model.module, own.share(0, last))
        with model.no_sync():
            for first in range(0, last, each):
                _backward(torch, model, own.share(first, each), MICRO_BATCHES)
        local.append(_off(model.module, [[x * last / PER_RANK for x in grad] for grad in expected]))
        _backward(torch, model, own.share(last, each), MICRO_BATCHES)
        synchronised.append(_off(model.module, unsplit))
        optimizer.step()
    accumulated = training.digest(torch, model.module.parameters())
    return {"local": local, "synchronised": synchronised, "accumulated": accumulated}


def _hooked(torch: Any, dist: Any, rank: Rank, device: Any, hook: str) -> Measured:
    seed = training.seed_of(rank)
    try:
        model = training.wrap(rank, _replica(torch, rank, device, seed))
        state = _register(torch, dist, model, hook, device)
        optimizer, errors = torch.optim.SGD(model.module.parameters(), lr=RATE), []
        for step in range(HOOK_STEPS):
            optimizer.zero_grad()
            errors.append(_hooked_step(torch, rank, model, f"{seed} {step}", device))
            optimizer.step()
    except AbsentHook as absent:
        return {"unsupported": str(absent)}
    except Exception as error:  # noqa: BLE001 (an error of NCCL's or CUDA's is a failure that is quoted, no absence)
        return {"raised": process_group.quoted(error)}
    run: Measured = {"errors": errors, "ended": training.digest(torch, model.module.parameters())}
    return {**run, "compression": float(state.compression_stats()[0])} if state is not None else run


def _register(torch: Any, dist: Any, model: Any, hook: str, device: Any) -> Any:
    if hook == "bf16":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        try:
            model.register_comm_hook(None, default_hooks.bf16_compress_hook)
            # Says now, and not in the middle of a backward pass, whether this backend adds in the dtype at all.
            dist.all_reduce(torch.zeros(1, dtype=torch.bfloat16, device=device))
        except (TypeError, RuntimeError) as error:
            if device.type != "cpu" or not any(refusal in str(error) for refusal in REFUSALS):
                raise
            raise AbsentHook(process_group.quoted(error)) from error
        return None
    if importlib.util.find_spec("numpy") is None:
        message = "torch's PowerSGD hook imports NumPy, which is not installed"
        raise AbsentHook(message)
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=SUBSPACE, start_powerSGD_iter=WHOLE)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return state


def _hooked_step(torch: Any, rank: Rank, model: Any, seed: str, device: Any) -> float:
    batch = _of_low_rank(torch, seed, rank.world * PER_RANK, device)
    shares = [batch.share(r * PER_RANK, PER_RANK) for r in range(rank.world)]
    sent = [training.reference(model.module, share) for share in shares]
    _backward(torch, model, shares[rank.rank])
    actual = [training.numbers(p.grad) for p in model.module.parameters()]
    return max(_from_average(gradient, list(own)) for gradient, own in zip(actual, zip(*sent)))


def _of_low_rank(torch: Any, seed: str, count: int, device: Any) -> training.Batch:
    columns = [*zip(*training.rows(training.values("basis", SUBSPACE * WIDTH), WIDTH))]
    places = training.rows(training.values(f"{seed} places", count * SUBSPACE), SUBSPACE)
    inputs = [[training.dot(place, column) for column in columns] for place in places]
    return training.targeted(torch, seed, inputs, device)


def _from_average(gradient: list[float], sent: list[list[float]]) -> float:
    """Return the distance; infinite where a gradient is not there or no number, which max() would lose."""
    if any(len(own) != len(gradient) for own in sent) or not all(map(math.isfinite, gradient)):
        return math.inf
    average = [sum(parts) / len(sent) for parts in zip(*sent)]
    scale = sum(math.sqrt(training.dot(own, own)) for own in sent) / len(sent)
    gap = [actual - right for actual, right in zip(gradient, average)]
    return math.sqrt(training.dot(gap, gap)) / scale


OFF = {
    "errors": ("ddp.gradients", "the gradients are not those of one process on the whole batch"),
    "steps": ("ddp.weights", "the weights after the step are not one process's"),
    "local": (
        "ddp.no-sync-gradients",
        "gradients under no_sync are not the rank's own sum: they were sent, or a micro-batch is lost",
    ),
    "synchronised": (
        "ddp.accumulated-gradients",
        "the accumulated gradients are not those of one process on the whole batch",
    ),
}
MOMENTS = {
    "started": "when training started",
    "ended": "when training ended",
    "accumulated": "after accumulating under no_sync",
}
_FIX = "run the all-reduce check: wrong there too, the link or NCCL is broken; right there, reinstall torch"


def bound(hook: str, world: int) -> Limit:
    """Return how far from the average a hook's gradient may be, relative to the mean norm of the ranks' own."""
    if hook == "bf16":
        source = "one rounding to bf16 when a gradient is sent and one each time another is added to it (ours)"
        return Limit(world * 2.0**-8, "relative error", source, "at most")
    source = (
        f"a gradient of rank {SUBSPACE} is represented exactly by PowerSGD of that rank (Vogels et al. 2019, "
        "arXiv 1905.13727); what is left is fp32 rounding, at most 6e-7 in 300 draws on a CPU (0.0001: ours)"
    )
    return Limit(1e-4, "relative error", source, "at most")


@process_group.sound(alone="one rank averages with nobody")
def judge(view: View, ranks: Ranks) -> Outcome:  # noqa: ARG001 (a judge's signature)
    """Fail on a rank whose gradients or steps are off, or whose replica is not the others', naming it."""
    for entry in ranks:
        taken = min(len(values) if isinstance(values := entry.get(kind), list) else 0 for kind in OFF)
        if taken != STEPS or not entry.get("ended"):
            summary, who = f"rank {entry['rank']} took {taken} of {STEPS} steps", f"rank {entry['rank']}"
            return undecided(summary, code="ddp.unmeasured", culprit=who)
    findings = _off_gradients(ranks)
    findings += [drift for moment, when in MOMENTS.items() if (drift := training.drifted(ranks, moment, when))]
    findings += _unsent(ranks)
    lacking: dict[str, str] = {}
    for hook in HOOKS:
        runs = [(entry.get("hooks") or {}).get(hook) or {} for entry in ranks]
        reasons = {run.get("unsupported") for run in runs}
        if len(reasons) == 1 and None not in reasons:
            lacking[hook] = str(reasons.pop())
        else:
            findings += _hook_findings(ranks, runs, hook)
    without = "".join(f"; no {hook} hook: {why}" for hook, why in lacking.items())
    summary = f"gradients equal one process's and replicas are equal on {len(ranks)} ranks over {ranks[0]['backend']}"
    value = None if findings else max(error for entry in ranks for kind in OFF for error in entry[kind])
    about = {"digest": ranks[0]["ended"], "seed": ranks[0].get("seed")}
    return worst(
        findings,
        passed(f"{summary}{without}", value=value, limit=LIMIT, **about),
    )


def _off_gradients(ranks: Ranks) -> list[Outcome]:
    """Return the failure of the first step's first error: a rank that is off spoils the others' next step."""
    off = [
        (step, entry["rank"], place, value)
        for entry in ranks
        for place, kind in enumerate(OFF)
        for step, value in enumerate(entry[kind])
        if not _within(value, LIMIT)
    ]
    if not off:
        return []
    step, rank, place, value = min(off, key=lambda error: error[:3])
    code, summary = list(OFF.values())[place]
    about: dict[str, Any] = {"culprit": f"rank {rank}", "rank": rank, "step": step, "limit": LIMIT}
    return [failed(f"rank {rank}, step {step}: {summary}", fix=_FIX, code=code, value=value, **about)]


def _unsent(ranks: Ranks) -> list[Outcome]:
    if ranks[0].get("own") == ranks[0].get("started"):
        return []
    summary = "training started with other weights than rank 0 was given"
    return [failed(summary, fix="run the collectives check: broadcast is wrong", code="ddp.start", culprit="rank 0")]


def _hook_findings(ranks: Ranks, runs: list[Measured], hook: str) -> list[Outcome]:
    found = [finding for entry, run in zip(ranks, runs) if (finding := _hook_finding(entry, run, hook, len(ranks)))]
    ended = [{"rank": entry["rank"], "ended": run.get("ended")} for entry, run in zip(ranks, runs)]
    drift = None if found else training.drifted(ended, "ended", f"after training under the {hook} hook")
    return [drift] if drift else found


def _hook_finding(entry: Measured, run: Measured, hook: str, world: int) -> Outcome | None:
    where, limit = f"{process_group.name(entry)}, {hook} hook", bound(hook, world)
    about: dict[str, Any] = {"culprit": where, "rank": entry["rank"]}
    if "raised" in run:
        return failed(f"{where}: it raised {run['raised']}", fix=_FIX, code="ddp.hook-raised", **about)
    errors = run.get("errors")
    if not isinstance(errors, list) or len(errors) != HOOK_STEPS or not run.get("ended"):
        return undecided(f"{where}: not every step was taken", code="ddp.unmeasured", **about)
    off = [(step, error) for step, error in enumerate(errors) if not _within(error, limit)]
    if off:
        step, error = off[0]
        fix = "run all-reduce: right there, train without this hook, or reinstall torch"
        summary = f"{where}, step {step}: the gradient is off by {error}"
        return failed(summary, fix=fix, value=error, limit=limit, code="ddp.hook-gradients", **about)
    if hook == "powersgd" and not (process_group.finite(run.get("compression")) and run["compression"] > 1):
        return failed(f"{where}: it compressed nothing", fix="reinstall torch", code="ddp.hook-compression", **about)
    return None


def _within(value: Any, limit: Limit) -> bool:
    return process_group.finite(value) and bool(0 <= value <= limit.value)
