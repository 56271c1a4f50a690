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
from envcheck.checks.env.support.collectives import process_group, verified_buckets
from envcheck.checks.env.support.operators import verified_products
from envcheck.checks.env.support.training import model_replicas, overlapped_training, plain_math
from envcheck.counting import counted

CHECK = Check(
    promise="DDP sends gradients exactly when it should; measures how much of that time backward hides",
    level="standard",
    seconds=3.0,
    cpu_seconds=0.9,
    timeout=180.0,
    ranks=0,
    least_ranks=2,
    imports=("torch._dynamo",),  # by the first optimizer
)

WARMUP, STEPS = {"cuda": 4, "cpu": 2}, {"cuda": 15, "cpu": 6}
TIMES = ("synchronised", "local", "communication")
# A step cannot be much quicker for waiting on others as well.
PLAUSIBLE = 0.8
_SAMPLE = 4096
GRADIENT = Limit(
    1e-2,
    "of the largest gradient",
    "ours: the mean of what each rank's data gives this model alone, in any order and TF32; what was not sent is 1 off",
    "at most",
)
# By mode. An environment may choose TF32 for the products of a GPU; the matmul check says whether it does.
PRODUCT = {
    mode: Limit(
        2 * verified_products.TOLERANCE[dtype],
        "relative error",
        f"twice what a product in {dtype} may be off plain Python and sums in float64 (ours)",
        "at most",
    )
    for mode, dtype in (("gpu", "tf32"), ("cpu", "float32"))
}
VERIFIED = (
    "forward",
    "weights' gradients",
    "inputs' gradients",
    "loss's gradient",
    "loss's gradient, in part",
)
LIMIT = Limit(0, "wrong elements", "sums of small integers are exact in float32", "at most")


def measure(rank: Rank) -> Measured:
    """Time steps with and without synchronisation, and the all-reduces alone; medians, in seconds, of this rank."""
    import torch

    device, seed = process_group.device_of(rank), plain_math.seed_of(rank)
    with process_group.group(rank) as dist:
        own = overlapped_training.OneProcess(torch, rank, device, seed)
        buckets, off = overlapped_training.bucket_sizes(torch, rank, own) if rank.world > 1 else ([], [])
        trained = overlapped_training.OverlappedTraining(torch, rank, own)
        timed = _times(torch, dist, device, trained, buckets) if rank.world > 1 else {}
        where = process_group.standing(rank, next(trained.model.parameters()), dist.get_backend())
        off += timed.pop("off", [])
        return {**where, "seed": seed, "verified": own.verified, "buckets": buckets, "off": off, **timed}


def _times(
    torch: Any, dist: Any, device: Any, trained: overlapped_training.OverlappedTraining, buckets: list[int]
) -> dict[str, Any]:
    """Take the times in turn, so that what the machine does besides happens to all; ranks in step before each."""
    alone = verified_buckets.VerifiedBuckets(torch, dist, buckets, device, trained.own.seed)
    timed = _events if device.type == "cuda" else _clocked
    times: dict[str, list[float]] = {name: [] for name in TIMES}
    digests, sums, off, wrong, model = {}, [], [], 0, trained.model
    for turn in range(WARMUP[device.type] + STEPS[device.type]):
        for name in TIMES:
            alone.fill(turn)
            dist.barrier()
            with model.no_sync() if name == "local" else contextlib.nullcontext():
                times[name].append(timed(torch, alone.send if name == "communication" else trained.step))
            digests[name] = _digest(torch, model)
            if name == "synchronised":
                sums.append(_checksum(torch, model))
                off.append(trained.off())
            if name == "communication":
                wrong += alone.wrong(turn)
    medians = {name: statistics.median(values[WARMUP[device.type] :]) for name, values in times.items()}
    return {"seconds": medians, "digests": digests, "sums": sums, "off": off, "wrong": wrong}


def _checksum(torch: Any, model: Any) -> int:
    """Return the sum of the bits of every gradient, read as integers: ranks with the same gradients agree on it."""
    total = sum(p.grad.view(torch.int32).to(torch.int64).sum() for p in model.parameters())
    return int(total)


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
    return model_replicas.digest(torch, [next(model.parameters()).grad.flatten()[:_SAMPLE]])


def judge(view: View, ranks: Ranks) -> Outcome:
    """Report the hidden share, once times are times, gradients were sent when they should be, and not when not."""
    problem = process_group.problem(view, ranks)
    if problem is not None:
        return problem
    if len(ranks) == 1:
        return skipped("one rank has nothing to communicate", code="rank.not-enough")
    for entry in ranks:
        times: list[Any] = [(entry.get("seconds") or {}).get(name) for name in TIMES]
        if not all(process_group.finite(median) and median > 0 for median in times):
            return undecided(
                f"rank {entry['rank']} timed nothing",
                fix="see the check's log",
                code="speed.missing",
                culprit=f"rank {entry['rank']}",
            )
    untrue = _untrue(ranks)
    findings = [*(finding for entry in ranks for finding in _unverified(view, entry)), *_wrong(ranks)]
    findings += [untrue] if untrue else []
    return worst(findings, otherwise=findings[0]) if findings else _reported(view, ranks)


def _unverified(view: View, entry: Measured) -> list[Outcome]:
    """Return a finding for each part of a rank's own gradients that is wrong without any communication."""
    verified, where = entry.get("verified"), f"rank {entry['rank']} on {entry['device']}"
    if not isinstance(verified, dict) or set(verified) != set(VERIFIED):
        summary = f"rank {entry['rank']} verified no gradients of its own"
        return [undecided(summary, fix="see the check's log", code="overlap.gradients-unmeasured", culprit=where)]
    limit = PRODUCT["gpu" if view.mode == "gpu" else "cpu"]
    bad = {n: e for n, e in verified.items() if not process_group.finite(e) or not 0 <= e <= limit.value}
    if not bad:
        return []
    parts = ", ".join(f"{name} off by {error}" for name, error in bad.items())
    summary = f"{where}: gradients are wrong without any communication: {parts}"
    fix = "run the matmul and operators checks on this device; right there, the fingerprint check"
    worst_one = next((error for error in bad.values() if process_group.finite(error)), None)
    common: dict[str, Any] = {"culprit": where, "ranks": [entry["rank"]], "seed": entry.get("seed")}
    return [
        failed(
            summary, fix=fix, value=worst_one, unit=limit.unit, limit=limit, code="overlap.gradients-wrong", **common
        )
    ]


def _wrong(ranks: Ranks) -> list[Outcome]:
    """Return a finding for each rank whose messages were wrong, and one for gradients that differ in some step."""
    findings = [finding for entry in ranks for finding in _off(entry)]
    for entry in ranks:
        rank, wrong, sums = entry["rank"], entry.get("wrong"), entry.get("sums")
        common: dict[str, Any] = {"culprit": f"rank {rank}", "ranks": [rank]}
        if not process_group.counts(wrong) or not isinstance(sums, list) or not sums:
            findings.append(
                undecided(f"rank {rank} verified no message", fix="see the check's log", code="data.missing", **common)
            )
        elif wrong:
            summary = (
                f"rank {rank}: {wrong} elements of DDP's all-reduces without backward are not the sum of the ranks'"
            )
            fix = "run the all-reduce and collectives checks: they say which elements are wrong, and by which bits"
            findings.append(
                failed(summary, fix=fix, value=wrong, unit="wrong elements", limit=LIMIT, code="data.wrong", **common)
            )
    steps = [step for step, sums in enumerate(zip(*(entry.get("sums") or [] for entry in ranks))) if len(set(sums)) > 1]
    if steps:
        summary = (
            f"in {counted(len(steps), 'synchronised step')} gradients differ between ranks, first in step {steps[0]}"
        )
        findings.append(failed(summary, fix="run the ddp check", code="ddp.gradients", culprit=f"step {steps[0]}"))
    return findings


def _off(entry: Measured) -> list[Outcome]:
    """Return the finding that gradients of a rank are not the mean of all ranks', or were not compared."""
    rank, off = entry["rank"], entry.get("off") or []
    culprit = f"rank {rank}"
    if len(off) != overlapped_training.COUNTING + len(entry.get("sums") or []):
        summary = f"rank {rank} compared {len(off)} steps' gradients"
        return [undecided(summary, fix="see the check's log", code="overlap.gradients-unmeasured", culprit=culprit)]
    sound = [process_group.finite(value) and 0 <= value <= GRADIENT.value for value in off]
    steps = [step for step, right in enumerate(sound) if not right]
    if not steps:
        return []
    when = "which count buckets" if steps[0] < overlapped_training.COUNTING else "which are timed"
    summary = (
        f"rank {rank}: in {len(steps)} of {counted(len(off), 'step')} gradients are not "
        "the mean of the ranks', first in those "
    )
    value = off[steps[0]] if process_group.finite(off[steps[0]]) else None
    fix = "run the ddp and ddp-hooks checks"
    summary = f"{summary}{when}"
    code, limit = "ddp.gradients", GRADIENT
    return [failed(summary, fix=fix, value=value, unit=limit.unit, limit=limit, code=code, culprit=culprit)]


def _untrue(ranks: Ranks) -> process_group.Problem:
    """Return the failure where the gradients show that something else was timed; None where they agree."""
    digests = [entry.get("digests") or {} for entry in ranks]
    if not all(isinstance(digest.get(name), str) for digest in digests for name in ("synchronised", "local")):
        return undecided("a rank reported no gradients", fix="see the check's log", code="overlap.gradients-unmeasured")
    buckets: list[Any] = [entry.get("buckets") or [None] for entry in ranks]
    measured = all(process_group.finite(count) and count > 0 for bucket in buckets for count in bucket)
    if not measured or buckets.count(buckets[0]) != len(ranks):
        return undecided(
            "the ranks do not tell the same buckets", fix="see the check's log", code="overlap.buckets-unmeasured"
        )
    if len({digest["synchronised"] for digest in digests}) > 1:
        return failed(
            "after a synchronised step gradients differ between ranks", fix="run the ddp check", code="ddp.gradients"
        )
    if len({digest["local"] for digest in digests}) < len(digests):
        return failed(
            "under no_sync two ranks have the same gradients: they were sent",
            fix="run ddp-no-sync",
            code="ddp.no-sync-gradients",
        )
    return None


def _reported(view: View, ranks: Ranks) -> Outcome:
    seconds = {name: statistics.fmean(entry["seconds"][name] for entry in ranks) for name in TIMES}
    share = 1 - (seconds["synchronised"] - seconds["local"]) / seconds["communication"]
    details: dict[str, Any] = {
        "seconds": seconds,
        "share": share,
        "buckets": ranks[0].get("buckets"),
        "seed": ranks[0].get("seed"),
        "ranks": {str(entry["rank"]): entry["seconds"] for entry in ranks},
    }
    if view.mode == "gpu" and seconds["synchronised"] < PLAUSIBLE * seconds["local"]:
        return undecided(
            "a step that synchronises was timed far quicker than one that does not: mismeasured",
            fix="see that nothing else uses the GPUs, and run it again",
            code="speed.impossible",
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
