"""Communication that DDP could hide behind backward, and does not, is paid for at every step.

Seen in the wild: buckets so large that the first is full when backward ends; CUDA_DEVICE_MAX_CONNECTIONS=1 left over
from Megatron; a hook that waits for each bucket; kernels that leave NCCL no SM to run on. Three times are taken of the
same model: a step that synchronises, one under `no_sync`, and the all-reduces of the same buckets with nothing to hide
behind. The hidden share is 1 - (synchronised - local) / communication: 1 when a step takes no longer for being in a
group, 0 when all communication comes on top (the copies into buckets count as such). It is reported, not judged: nobody
has published what it has to be, and on a CPU the same cores compute and communicate.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

from envcheck.checks import Check, Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided
from envcheck.checks.env import _group, _replicas

CHECK = Check(
    promise="DDP sends gradients when it should and not when not; how much of that it hides behind backward is told",
    level="standard",
    seconds=3.0,
    timeout=180.0,
    ranks=0,
    least_ranks=2,
    imports=("torch._dynamo",),  # by the first optimizer
)

# 512 MB of gradients on a GPU, 6 MB on a CPU; several buckets of each, as only the last one cannot be hidden.
WIDTH, DEPTH, BATCH = {"cuda": 4096, "cpu": 512}, {"cuda": 8, "cpu": 6}, {"cuda": 2048, "cpu": 64}
BUCKET_MB = {"cuda": 25, "cpu": 1}
WARMUP, STEPS = {"cuda": 4, "cpu": 2}, {"cuda": 15, "cpu": 6}
TIMES = ("synchronised", "local", "communication")
# A step cannot be much quicker for waiting on others as well.
PLAUSIBLE = 0.8
_SAMPLE = 4096


def measure(rank: Rank) -> Measured:
    """Time steps with and without synchronisation, and the all-reduces alone; medians, in seconds, of this rank."""
    import torch

    device = _group.device_of(rank)
    with _group.group(rank) as dist:
        buckets = _buckets(torch, rank, device) if rank.world > 1 else []
        model, step = _model(torch, rank, device)
        told = _times(torch, dist, device, model, step, buckets) if rank.world > 1 else {}
        where = _group.standing(rank, next(model.parameters()), dist.get_backend())
        return {**where, "buckets": buckets, **told}


def _times(
    torch: Any, dist: Any, device: Any, model: Any, step: Callable[[], None], buckets: list[int]
) -> dict[str, Any]:
    """Take the times in turn, so that what the machine does besides happens to all; ranks in step before each."""
    alone = _alone(torch, dist, buckets, device)
    timed = _events if device.type == "cuda" else _clocked
    times: dict[str, list[float]] = {name: [] for name in TIMES}
    digests = {}
    for _ in range(WARMUP[device.type] + STEPS[device.type]):
        for name in TIMES:
            dist.barrier()
            with model.no_sync() if name == "local" else contextlib.nullcontext():
                times[name].append(timed(torch, alone if name == "communication" else step))
            digests[name] = _digest(torch, model)
    taken = {name: statistics.median(values[WARMUP[device.type] :]) for name, values in times.items()}
    return {"seconds": taken, "digests": digests}


def _model(torch: Any, rank: Rank, device: Any) -> tuple[Any, Callable[[], None]]:
    """Return a model under DDP, the same on every rank, and a step on data of this rank's own."""
    kind = device.type
    torch.manual_seed(7)
    layers = [torch.nn.Linear(WIDTH[kind], WIDTH[kind], bias=False) for _ in range(DEPTH[kind])]
    model = _replicas.wrap(rank, torch.nn.Sequential(*layers).to(device), bucket_cap_mb=BUCKET_MB[kind])
    torch.manual_seed(1000 + rank.rank)
    inputs = torch.randn(BATCH[kind], WIDTH[kind], device=device)

    def step() -> None:
        model.zero_grad()
        model(inputs).square().mean().backward()

    return model, step


def _buckets(torch: Any, rank: Rank, device: Any) -> list[int]:
    """Return how many elements DDP sends at once, by its own account, in its third step: it sorts them after one."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model, step = _model(torch, rank, device)
    seen: list[int] = []

    def send(bucket: Any) -> Any:
        seen.append(int(bucket.buffer().numel()))
        return default_hooks.allreduce_hook(None, bucket)

    # DDP refuses a hook whose annotations are not its own; a lambda has none.
    model.register_comm_hook(None, lambda _state, bucket: send(bucket))
    for _ in range(3):
        seen.clear()
        step()
    return seen


def _alone(torch: Any, dist: Any, buckets: list[int], device: Any) -> Callable[[], None]:
    tensors = [torch.zeros(count, device=device) for count in buckets]

    def send() -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()

    return send


def _events(torch: Any, work: Callable[[], None]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1000


def _clocked(_torch: Any, work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _digest(torch: Any, model: Any) -> str:
    return _replicas.digest(torch, [next(model.parameters()).grad.flatten()[:_SAMPLE]])


def judge(view: View, ranks: Ranks) -> Outcome:
    """Report the hidden share, once times are times, gradients were sent when they should be, and not when not."""
    found = _group.problem(view, ranks)
    if found is not None:
        return found
    if len(ranks) == 1:
        return skipped("one rank has nothing to communicate")
    for entry in ranks:
        times: list[Any] = [(entry.get("seconds") or {}).get(name) for name in TIMES]
        if not all(_group.finite(taken) and taken > 0 for taken in times):
            return undecided(f"rank {entry['rank']} timed nothing", fix="see the check's log")
    return _untrue(ranks) or _reported(view, ranks)


def _untrue(ranks: Ranks) -> _group.Problem:
    """Return the failure of gradients that say something else was timed than is told; None where they agree."""
    said = [entry.get("digests") or {} for entry in ranks]
    if not all(isinstance(digests.get(name), str) for digests in said for name in ("synchronised", "local")):
        return undecided("a rank told nothing of its gradients", fix="see the check's log")
    buckets: list[Any] = [entry.get("buckets") or [None] for entry in ranks]
    known = all(_group.finite(count) and count > 0 for held in buckets for count in held)
    if not known or buckets.count(buckets[0]) != len(ranks):
        return undecided("the ranks do not tell the same buckets", fix="see the check's log")
    if len({digests["synchronised"] for digests in said}) > 1:
        return failed("after a synchronised step gradients differ between ranks", fix="run the ddp check")
    if len({digests["local"] for digests in said}) < len(said):
        return failed("under no_sync two ranks have the same gradients: they were sent", fix="run ddp-no-sync")
    return None


def _reported(view: View, ranks: Ranks) -> Outcome:
    seconds = {name: statistics.fmean(entry["seconds"][name] for entry in ranks) for name in TIMES}
    share = 1 - (seconds["synchronised"] - seconds["local"]) / seconds["communication"]
    details: dict[str, Any] = {
        "seconds": seconds,
        "share": share,
        "buckets": ranks[0].get("buckets"),
        "ranks": {str(entry["rank"]): entry["seconds"] for entry in ranks},
    }
    if view.mode == "gpu" and seconds["synchronised"] < PLAUSIBLE * seconds["local"]:
        return undecided(
            "a step that synchronises was timed far quicker than one that does not: mismeasured",
            fix="see that nothing else uses the GPUs, and run it again",
            **details,
        )
    hidden = min(max(share, 0.0), 1.0)
    took = ", ".join(f"{name} {1000 * seconds[name]:.3g} ms" for name in TIMES)
    return passed(
        f"{hidden:.0%} of DDP's communication is hidden behind backward over {ranks[0]['backend']} ({took}): reported, "
        "not judged (no limit known)",
        value=round(hidden, 3),
        unit="of communication hidden",
        **details,
    )
