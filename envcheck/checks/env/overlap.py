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
import math
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
from envcheck.checks.env.support.collectives import exact_comparison, process_group
from envcheck.checks.env.support.operators import seeded_numbers, seeded_words, verified_products
from envcheck.checks.env.support.training import model_replicas, plain_math, verified_training
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

# 512 MB of gradients on a GPU, 6 MB on a CPU; several buckets of each, as only the last one cannot be hidden.
WIDTH, DEPTH, BATCH = {"cuda": 4096, "cpu": 512}, {"cuda": 8, "cpu": 6}, {"cuda": 2048, "cpu": 64}
BUCKET_MB = {"cuda": 25, "cpu": 1}
WARMUP, STEPS = {"cuda": 4, "cpu": 2}, {"cuda": 15, "cpu": 6}
# Steps in which buckets are counted.
COUNTING = 3
TIMES = ("synchronised", "local", "communication")
# A step cannot be much quicker for waiting on others as well.
PLAUSIBLE = 0.8
_SAMPLE = 4096
# The standard deviation of numbers between -2 and 2.
_SPREAD = 4 / math.sqrt(12)
# Integers up to here are exact in float32 (IEEE 754-2019, table 3.5). Elements at each end of a message.
_EXACT, _FACTORS, _ENDS = 1 << 24, 64, 64
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
        own = _OneProcess(torch, rank, device, seed)
        buckets, off = _buckets(torch, rank, own) if rank.world > 1 else ([], [])
        trained = _Trained(torch, rank, own)
        told = _times(torch, dist, device, trained, buckets) if rank.world > 1 else {}
        where = process_group.standing(rank, next(trained.model.parameters()), dist.get_backend())
        off += told.pop("off", [])
        return {**where, "seed": seed, "verified": own.verified, "buckets": buckets, "off": off, **told}


def _times(torch: Any, dist: Any, device: Any, trained: _Trained, buckets: list[int]) -> dict[str, Any]:
    """Take the times in turn, so that what the machine does besides happens to all; ranks in step before each."""
    alone = _Alone(torch, dist, buckets, trained.own)
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
    taken = {name: statistics.median(values[WARMUP[device.type] :]) for name, values in times.items()}
    return {"seconds": taken, "digests": digests, "sums": sums, "off": off, "wrong": wrong}


class _OneProcess:
    """What all ranks' data give one model alone: weights and data of plain Python, this rank's own share verified.

    Every rank verifies its own share, so the mean that DDP has to bring is made of shares that some rank verified.
    """

    def __init__(self, torch: Any, rank: Rank, device: Any, seed: int) -> None:
        kind, self.device, self.seed = device.type, device, seed
        width = WIDTH[kind]
        drawn = verified_products.data(torch, width, width, device, seed) * (math.sqrt(1 / width) / _SPREAD)
        self.weights = [drawn.roll((5 * number, 3 * number), (0, 1)) for number in range(DEPTH[kind])]
        layers = self.layers(torch)
        self.expected: list[Any] = [0.0] * len(layers)
        for other in range(rank.world):
            inputs = verified_products.data(torch, BATCH[kind], width, device, seed + 1 + other)
            layers.zero_grad()
            if other == rank.rank:
                self.inputs, self.verified = inputs, _verified(torch, layers, inputs)
            else:
                layers(inputs).square().mean().backward()
            shares = [parameter.grad / rank.world for parameter in layers.parameters()]
            self.expected = [mean + share for mean, share in zip(self.expected, shares)]

    def layers(self, torch: Any) -> Any:
        """Return a model of its own with the weights of the seed."""
        width = WIDTH[self.device.type]
        made = [torch.nn.Linear(width, width, bias=False, device=self.device) for _ in self.weights]
        with torch.no_grad():
            for layer, weight in zip(made, self.weights):
                layer.weight.copy_(weight)
        return torch.nn.Sequential(*made)


def _verified(torch: Any, layers: Any, inputs: Any) -> dict[str, Any]:
    """Go forward and backward; return how far each part is off: products, and the gradient of the loss."""
    with verified_training.watched(layers) as seen:
        made = layers(inputs)
        made.square().mean().backward()
    with torch.no_grad():
        found = verified_training.product_errors(torch, layers, seen, torch.float32)
        upstream, due = seen[-1].output.grad, made.double() * (2 / made.numel())
        found["loss's gradient"] = float((upstream.double() - due).abs().max() / due.abs().max())
        first = [2 * value / made.numel() for value in seeded_numbers.read(made[:1])]
        found["loss's gradient, in part"] = plain_math.off(seeded_numbers.read(upstream[:1]), first)
    return {name: error if math.isfinite(error) else None for name, error in found.items()}


class _Trained:
    """A model under DDP, the same on every rank, data of this rank's own, and the gradients that all data give."""

    def __init__(self, torch: Any, rank: Rank, own: _OneProcess) -> None:
        self.own, self.expected = own, own.expected
        self.model = model_replicas.wrap(rank, own.layers(torch), bucket_cap_mb=BUCKET_MB[own.device.type])

    def step(self) -> None:
        """Go forward and backward."""
        self.model.zero_grad()
        self.model(self.own.inputs).square().mean().backward()

    def off(self) -> float:
        """Return how far the gradients are from the mean of all ranks', as a share of the largest; -1 for no number.

        All of them by torch, and the first row of each by plain Python.
        """
        found = []
        for parameter, mean in zip(self.model.parameters(), self.expected):
            found.append(float((parameter.grad - mean).abs().max() / mean.abs().max()))
            found.append(plain_math.off(seeded_numbers.read(parameter.grad[:1]), seeded_numbers.read(mean[:1])))
        return max(found) if all(map(math.isfinite, found)) else -1.0


def _buckets(torch: Any, rank: Rank, own: _OneProcess) -> tuple[list[int], list[float]]:
    """Return how many elements DDP sends at once (it sorts its buckets after a step), and how far each step is off."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    trained = _Trained(torch, rank, own)
    seen: list[int] = []
    off = []

    def send(bucket: Any) -> Any:
        seen.append(int(bucket.buffer().numel()))
        return default_hooks.allreduce_hook(None, bucket)

    # DDP refuses a hook whose annotations are not its own; a lambda has none.
    trained.model.register_comm_hook(None, lambda _state, bucket: send(bucket))
    for _ in range(COUNTING):
        seen.clear()
        trained.step()
        off.append(trained.off())
    return seen, off


class _Alone:
    """The all-reduces of DDP's buckets with nothing beside them; each message is verified after it was timed.

    Each bucket holds seeded integers whose sum is exact in float32; no block of them is like another one, so that one
    which is shifted, swapped or sent twice is seen. Each turn and each rank multiplies them by a number of its own.
    """

    def __init__(self, torch: Any, dist: Any, buckets: list[int], own: _OneProcess) -> None:
        self.torch, self.dist, self.world = torch, dist, dist.get_world_size()
        words = seeded_words.Words(torch, own.seed)
        # As many bits as keep the sum exact.
        kept = (_EXACT // self.total(1)).bit_length() - 1
        whole = words.tensor(max([0, *buckets]) + len(buckets), own.device).bitwise_and_((1 << kept) - 1)
        self.sent = [whole[number : number + count].to(torch.float32) for number, count in enumerate(buckets)]
        self.tensors = [torch.zeros_like(one) for one in self.sent]

    def factor(self, rank: int, turn: int) -> int:
        """Return by what a rank multiplies the integers in a turn."""
        return rank % _FACTORS + 1 + turn % 2

    def total(self, turn: int) -> int:
        """Return by what the sum over the ranks is larger than the integers."""
        return sum(self.factor(rank, turn) for rank in range(self.world))

    def fill(self, turn: int) -> None:
        """Write what this rank sends in this turn."""
        for tensor, sent in zip(self.tensors, self.sent):
            self.torch.mul(sent, self.factor(self.dist.get_rank(), turn), out=tensor)

    def send(self) -> None:
        """Start every all-reduce, and wait for all of them."""
        for work in [self.dist.all_reduce(tensor, async_op=True) for tensor in self.tensors]:
            work.wait()

    def wrong(self, turn: int) -> int:
        """Return how many elements are not the sum of what the ranks sent."""
        total, found = self.total(turn), 0
        for tensor, sent in zip(self.tensors, self.sent):
            # A torch that sees no difference would hide all of them: plain Python looks at the ends.
            ends = [(tensor[end], sent[end]) for end in (slice(0, _ENDS), slice(-_ENDS, None))]
            seen = sum(seeded_numbers.read(got) != [total * x for x in seeded_numbers.read(one)] for got, one in ends)
            found += max(seen, int(exact_comparison.compared(self.torch, tensor, sent * total)))
        return found


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
    found = process_group.problem(view, ranks)
    if found is not None:
        return found
    if len(ranks) == 1:
        return skipped("one rank has nothing to communicate", code="rank.not-enough")
    for entry in ranks:
        times: list[Any] = [(entry.get("seconds") or {}).get(name) for name in TIMES]
        if not all(process_group.finite(taken) and taken > 0 for taken in times):
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
        said = f"rank {entry['rank']} verified no gradients of its own"
        return [undecided(said, fix="see the check's log", code="overlap.gradients-unmeasured", culprit=where)]
    limit = PRODUCT["gpu" if view.mode == "gpu" else "cpu"]
    bad = {n: e for n, e in verified.items() if not process_group.finite(e) or not 0 <= e <= limit.value}
    if not bad:
        return []
    parts = ", ".join(f"{name} off by {error}" for name, error in bad.items())
    said = f"{where}: gradients are wrong without any communication: {parts}"
    fix = "run the matmul and operators checks on this device; right there, the fingerprint check"
    worst_one = next((error for error in bad.values() if process_group.finite(error)), None)
    about: dict[str, Any] = {"culprit": where, "ranks": [entry["rank"]], "seed": entry.get("seed")}
    return [
        failed(said, fix=fix, value=worst_one, unit=limit.unit, limit=limit, code="overlap.gradients-wrong", **about)
    ]


def _wrong(ranks: Ranks) -> list[Outcome]:
    """Return a finding for each rank whose messages were wrong, and one for gradients that differ in some step."""
    found = [finding for entry in ranks for finding in _off(entry)]
    for entry in ranks:
        rank, wrong, sums = entry["rank"], entry.get("wrong"), entry.get("sums")
        about: dict[str, Any] = {"culprit": f"rank {rank}", "ranks": [rank]}
        if not process_group.counts(wrong) or not isinstance(sums, list) or not sums:
            found.append(
                undecided(f"rank {rank} verified no message", fix="see the check's log", code="data.missing", **about)
            )
        elif wrong:
            said = f"rank {rank}: {wrong} elements of DDP's all-reduces without backward are not the sum of the ranks'"
            fix = "run the all-reduce and collectives checks: they say which elements are wrong, and by which bits"
            found.append(
                failed(said, fix=fix, value=wrong, unit="wrong elements", limit=LIMIT, code="data.wrong", **about)
            )
    steps = [step for step, sums in enumerate(zip(*(entry.get("sums") or [] for entry in ranks))) if len(set(sums)) > 1]
    if steps:
        said = f"in {counted(len(steps), 'synchronised step')} gradients differ between ranks, first in step {steps[0]}"
        found.append(failed(said, fix="run the ddp check", code="ddp.gradients", culprit=f"step {steps[0]}"))
    return found


def _off(entry: Measured) -> list[Outcome]:
    """Return the finding that gradients of a rank are not the mean of all ranks', or were not compared."""
    rank, off = entry["rank"], entry.get("off") or []
    culprit = f"rank {rank}"
    if len(off) != COUNTING + len(entry.get("sums") or []):
        said = f"rank {rank} compared {len(off)} steps' gradients"
        return [undecided(said, fix="see the check's log", code="overlap.gradients-unmeasured", culprit=culprit)]
    sound = [process_group.finite(value) and 0 <= value <= GRADIENT.value for value in off]
    steps = [step for step, right in enumerate(sound) if not right]
    if not steps:
        return []
    when = "which count buckets" if steps[0] < COUNTING else "which are timed"
    said = (
        f"rank {rank}: in {len(steps)} of {counted(len(off), 'step')} gradients are not "
        "the mean of the ranks', first in those "
    )
    value = off[steps[0]] if process_group.finite(off[steps[0]]) else None
    fix = "run the ddp and ddp-hooks checks"
    said = f"{said}{when}"
    code, limit = "ddp.gradients", GRADIENT
    return [failed(said, fix=fix, value=value, unit=limit.unit, limit=limit, code=code, culprit=culprit)]


def _untrue(ranks: Ranks) -> process_group.Problem:
    """Return the failure where the gradients show that something else was timed; None where they agree."""
    said = [entry.get("digests") or {} for entry in ranks]
    if not all(isinstance(digests.get(name), str) for digests in said for name in ("synchronised", "local")):
        return undecided(
            "a rank told nothing of its gradients", fix="see the check's log", code="overlap.gradients-unmeasured"
        )
    buckets: list[Any] = [entry.get("buckets") or [None] for entry in ranks]
    known = all(process_group.finite(count) and count > 0 for held in buckets for count in held)
    if not known or buckets.count(buckets[0]) != len(ranks):
        return undecided(
            "the ranks do not tell the same buckets", fix="see the check's log", code="overlap.buckets-unmeasured"
        )
    if len({digests["synchronised"] for digests in said}) > 1:
        return failed(
            "after a synchronised step gradients differ between ranks", fix="run the ddp check", code="ddp.gradients"
        )
    if len({digests["local"] for digests in said}) < len(said):
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
