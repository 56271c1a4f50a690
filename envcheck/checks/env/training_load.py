"""A training that leaves the GPU idle, or fills its memory to the last byte, is found out on the bill.

A few seconds of data-parallel training run on all GPUs, with NVML asked four times a second, then a second in which
each GPU trains by itself. What it comes to depends on the model, so tokens (rows of a batch) and TFLOP/s are only
reported; a GPU that slows itself down for heat or power meanwhile is a finding, as are a loss that is no number,
replicas that have other weights at the end, and GPUs behind NVLink that are much slower together than each by itself.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

from envcheck import checks
from envcheck.checks import Check, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, warned, worst
from envcheck.checks.collectives import transports
from envcheck.checks.support import exact_data, gpu_speed, process_group, training
from envcheck.checks.support import sampler as hardware_sampler
from envcheck.counting import counted

CHECK = Check(
    promise="training keeps the GPUs busy: finite losses, equal replicas, no slowdown by heat or power",
    level="standard",
    seconds=14.0,
    timeout=120.0,
    gpus=1,
    ranks=0,
    imports=("torch._dynamo",),  # by the first optimizer
)

SECONDS, INTERVAL = 5.0, 0.25
WIDTH, LAYERS, BATCH = 2048, 8, 8192
RATE, MOMENTUM = 0.01, 0.9
WARMUP, FEWEST = 5, 10
# Of the steps, how many each rank takes by itself.
ALONE = 0.2
# Two for each weight and token forward, four backward; the first layer gives no gradient to its inputs.
FLOP = (6 * (LAYERS + 1) - 2) * WIDTH**2
# The standard deviation of numbers between -2 and 2.
_SPREAD = 4 / math.sqrt(12)


def measure(rank: Rank) -> Measured:
    """Train for SECONDS; return what NVML saw, the memory that was needed, the losses, and a digest of the weights."""
    import torch

    device, seed = process_group.device_of(rank), training.seed_of(rank)
    with process_group.group(rank) as dist:
        load = Training(torch, rank, device, (WIDTH, LAYERS, BATCH), seed)
        losses = [load.step() for _ in range(WARMUP)]
        steps = _steps(torch, dist, device, load.step)
        torch.cuda.reset_peak_memory_stats(device)
        identity = process_group.standing(rank, losses[0], dist.get_backend())
        with hardware_sampler.Sampler(identity["device"], rank.local_rank, INTERVAL) as sampler:
            began = time.monotonic()
            losses += [load.step() for _ in range(steps)]
            torch.cuda.synchronize()
            lasted = time.monotonic() - began
        free, total = torch.cuda.mem_get_info(device)
        measured = {
            **identity,
            "seed": seed,
            "weights": load.weights(),
            "name": torch.cuda.get_device_name(device),
            "steps_per_second": steps / lasted,
            "lasted": lasted,
            "interval": INTERVAL,
            "losses": [float(losses[0]), float(losses[-1])],
            # An allocator that caches nothing counts nothing either; then it is what is not free on the GPU.
            "peak": torch.cuda.max_memory_allocated(device) or total - free,
            "total": total,
            "load": sampler.measured(),
        }
        single = Training(torch, None, device, (WIDTH, LAYERS, BATCH), seed)
        return {**measured, "alone": _alone(torch, single.step, int(steps * ALONE) if rank.world > 1 else 0)}


class Training:
    """Layers without bias, bent between, in mixed precision, under DDP with a rank; the same batch at every step."""

    def __init__(self, torch: Any, rank: Any, device: Any, sizes: tuple[int, int, int], seed: int) -> None:
        self.torch, self.device, nn = torch, device, torch.nn
        width, layers, batch = sizes
        self.layers = [nn.Linear(width, width, bias=False, device=device) for _ in range(layers + 1)]
        # A spread that keeps the size of what goes through (He et al. 2015, arXiv 1502.01852).
        drawn = exact_data.data(torch, width, width, device, seed) * (math.sqrt(2 / width) / _SPREAD)
        with torch.no_grad():
            for number, layer in enumerate(self.layers):
                layer.weight.copy_(drawn.roll((5 * number, 3 * number), (0, 1)))
        self.inputs, self.targets = (exact_data.data(torch, batch, width, device, seed + n) for n in (1, 2))
        bent = [part for layer in self.layers[:-1] for part in (layer, nn.ReLU())]
        model = nn.Sequential(*bent, self.layers[-1])
        self.model = training.wrap(rank, model) if rank else model
        # float16 loses gradients as small as a mean's: they are scaled, and the rate is scaled back.
        self.scale = 2.0 ** round(math.log2(batch * width / 256))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE / self.scale, momentum=MOMENTUM)
        native = torch.cuda.get_device_capability(device) >= training.BFLOAT16_SINCE
        self.dtype = torch.bfloat16 if native else torch.float16

    def step(self) -> Any:
        """Take a step; return its loss, which is not waited for."""
        self.optimizer.zero_grad()
        with self.torch.autocast(self.device.type, dtype=self.dtype):
            loss = self.torch.nn.functional.mse_loss(self.model(self.inputs), self.targets)
        (loss * self.scale).backward()
        self.optimizer.step()
        return loss.detach()

    def weights(self) -> str:
        """Return a digest of all weights: sums of their bits, by row and weighted by their row's number."""
        sums = []
        for layer in self.layers:
            rows = layer.weight.detach().view(self.torch.int32).sum(1, dtype=self.torch.int64)
            sums += [rows.sum(), (rows * self.torch.arange(1, len(rows) + 1, device=rows.device)).sum()]
        return " ".join(f"{int(checksum) & 0xFFFFFFFFFFFFFFFF:x}" for checksum in sums)


def _steps(torch: Any, dist: Any, device: Any, step: Any) -> int:
    """Return how many steps the slowest rank takes in SECONDS: every rank has to take as many."""
    torch.cuda.synchronize()
    began = time.monotonic()
    step()
    torch.cuda.synchronize()
    took = torch.tensor(time.monotonic() - began, dtype=torch.float64, device=device)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return max(FEWEST, int(SECONDS / float(took)))


def _alone(torch: Any, step: Any, steps: int) -> float | None:
    """Return the steps per second of this GPU alone, as warm as it is from the training; None without steps."""
    if not steps:
        return None
    for _ in range(WARMUP):
        step()
    torch.cuda.synchronize()
    began = time.monotonic()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return steps / (time.monotonic() - began)


@process_group.sound()
def judge(view: View, ranks: Ranks) -> Outcome:
    """Tell what the training took of each GPU; warn of one that slows itself down, and believe no idle one."""
    from envcheck.checks import limits

    findings = []
    for entry in ranks:
        unmeasured = _untold(entry) or _idle(entry)
        findings += [unmeasured] if unmeasured else gpu_speed.slows_down(entry, "training.slowdown")
    findings += _apart(ranks)
    findings += [] if findings else _scaling(view, ranks, limits.limit("training-load", "warn"))
    return worst(findings, otherwise=findings[0]) if findings else _summary(ranks)


def _untold(entry: Measured) -> process_group.Problem:
    losses, who = entry.get("losses") or [], process_group.name(entry)
    numbers = ("steps_per_second", "lasted", "peak", "total")
    lacking = [name for name in numbers if not process_group.positive(entry.get(name))]
    if lacking or len(losses) != 2 or entry["peak"] > entry["total"]:  # noqa: PLR2004 (before and after)
        summary = f"{who} reported no {', '.join(lacking) or 'loss, or memory that cannot be'}"
        return undecided(summary, code="training.unmeasured", culprit=who)
    if not all(process_group.finite(loss) for loss in losses):
        fix = "run the amp and kernels checks on this GPU"
        return failed(f"{who}: the loss is not finite", fix=fix, code="training.loss", culprit=who)
    if losses[1] >= losses[0]:
        summary = f"{who}: the loss did not fall, from {losses[0]:.4g} to {losses[1]:.4g}: nothing was trained"
        return undecided(summary, code="training.unmeasured", culprit=who)
    return gpu_speed.unseen(entry, float(entry["lasted"]), float(entry.get("interval") or INTERVAL))


def _idle(entry: Measured) -> process_group.Problem:
    busy = gpu_speed.spread(entry["load"], "utilization")
    if busy is None or busy[2] > 0:
        return None
    return undecided(
        f"rank {entry['rank']} trained for {entry['lasted']:.0f} s and NVML saw {entry['device']} idle all the while",
        fix="compare `nvidia-smi -L` with CUDA_VISIBLE_DEVICES: another device may be doing the work",
        code="training.idle",
        culprit=process_group.name(entry),
    )


def _apart(ranks: Ranks) -> list[Outcome]:
    for who, weights in ((process_group.name(entry), entry.get("weights")) for entry in ranks):
        if not isinstance(weights, str) or not weights:
            return [undecided(f"{who} reported no weights", code="training.unmeasured", culprit=who)]
    alike = [[entry for entry in ranks if entry.get("name") == model] for model in {e.get("name") for e in ranks}]
    drifts = [training.drifted(peers, "weights", "after training") for peers in alike]
    common: dict[str, Any] = {"code": "training.replicas", "culprit": "the replicas"}
    return [dataclasses.replace(drift, **common) for drift in drifts if drift is not None]


def _kept(ranks: Ranks) -> float | None:
    """Return the smallest share of its own speed that a GPU keeps when all train together."""
    if not all(process_group.positive(entry.get("alone")) for entry in ranks):
        return None
    return min(float(entry["steps_per_second"] / entry["alone"]) for entry in ranks)


def _scaling(view: View, ranks: Ranks, limit: checks.Limit) -> list[Outcome]:
    """Warn where NVLink joins all GPUs: gradients that go through PCIe take longer than this model's arithmetic."""
    kept, one_host = _kept(ranks), len({entry.get("host") for entry in ranks}) == 1
    if kept is None or kept >= limit.value or not (one_host and transports.linked(view) and transports.meshed(view)):
        return []
    summary = f"{counted(len(ranks), 'GPU')} keep {kept:.0%} of their own speed when they train together"
    fix = "see all-reduce-bandwidth, straggler and transport: what slows the collectives down slows every step"
    about: dict[str, Any] = {"code": "training.scaling", "culprit": "the GPUs together"}
    return [warned(summary, fix=fix, value=round(kept, 3), limit=limit, **about)]


def _summary(ranks: Ranks) -> Outcome:
    gpus = {str(entry["rank"]): _one(entry) for entry in ranks}
    busy = [gpu["utilization"] for gpu in gpus.values() if gpu["utilization"] is not None]
    power = [gpu["power_max"] for gpu in gpus.values() if gpu["power_max"] is not None]
    fullest = max(ranks, key=lambda entry: float(entry["peak"] / entry["total"]))
    slowest, kept = min(gpu["tokens_per_second"] for gpu in gpus.values()), _kept(ranks)
    lines = [
        f"{slowest:.0f} tokens/s and {slowest * FLOP / 1e12:.0f} TFLOP/s a GPU",
        *([f"{kept:.0%} of the speed of each by itself"] if kept else []),
        f"utilisation {min(busy):.0f} % at least" if busy else "utilisation not reported by this GPU",
        f"memory {fullest['peak'] / 2**30:.1f} of {fullest['total'] / 2**30:.1f} GiB at most",
        f"power up to {max(power):.0f} W" if power else "power not reported by this GPU",
    ]
    return passed(
        f"training on {counted(len(ranks), 'GPU')}: {', '.join(lines)}{gpu_speed.caps(fullest['load'])}: "
        "reported, not judged",
        value=slowest,
        unit="tokens/s",
        gpus=gpus,
    )


def _one(entry: Measured) -> Measured:
    none = (None, None, None)
    busy, power, heat = (
        gpu_speed.spread(entry["load"], name) or none for name in ("utilization", "power", "temperature")
    )
    return {
        "device": entry["device"],
        "utilization": busy[1],
        "peak": entry["peak"],
        "headroom": entry["total"] - entry["peak"],
        "power": power[1],
        "power_max": power[2],
        "temperature_max": heat[2],
        "steps_per_second": entry["steps_per_second"],
        "tokens_per_second": BATCH * entry["steps_per_second"],
    }
