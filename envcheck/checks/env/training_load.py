"""A training that leaves the GPU idle, or fills its memory to the last byte, is found out on the bill.

Seen in the wild: GPUs at 30 % because one process feeds eight, memory that is full before the first long batch comes, a
node that trains at two thirds of the power of its neighbours. A few seconds of data-parallel training in mixed
precision, on all GPUs at once, with NVML asked four times a second. What it comes to depends on the model that is
trained, so it is only reported; a GPU that slows itself down for heat or power meanwhile is. The first step and
the one after the last timed one are verified part by part, and replicas have to have the same weights at the end: a GPU
that computes something else is no GPU at work.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from envcheck.checks import Check, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, warned, worst
from envcheck.checks.hardware import gpu_speed
from envcheck.checks.hardware import sampler as hardware_sampler
from envcheck.checks.support import process_group, verified_products
from envcheck.checks.training import model_replicas, plain_math
from envcheck.counting import counted

CHECK = Check(
    promise="training keeps the GPUs busy: no wrong step, no slowdown by heat or power",
    level="standard",
    seconds=12.0,
    timeout=120.0,
    gpus=1,
    ranks=0,
    imports=("torch._dynamo",),  # by the first optimizer
)

SECONDS, INTERVAL = 5.0, 0.25
WIDTH, LAYERS, BATCH = 2048, 8, 8192
WARMUP, FEWEST = 5, 10
_FIX = "look at fans, inlet air, power cables and supplies (nvidia-smi -q -d PERFORMANCE,POWER)"


def measure(rank: Rank) -> Measured:
    """Train for SECONDS; return what NVML saw, the memory that was needed, the loss, and how right the steps were."""
    import torch

    device, seed = process_group.device_of(rank), plain_math.seed_of(rank)
    with process_group.group(rank) as dist:
        sizes = Sizes(WIDTH, LAYERS, BATCH)
        training = VerifiedTraining(torch, rank, device, sizes, seed)
        step, verified = training.step, [training.verified_step()]
        losses = [step() for _ in range(WARMUP)]
        steps = _steps(torch, dist, device, step)
        torch.cuda.reset_peak_memory_stats(device)
        identity = process_group.standing(rank, losses[0], dist.get_backend())
        with hardware_sampler.Sampler(identity["device"], rank.local_rank, INTERVAL) as sampler:
            began = time.monotonic()
            losses += [step() for _ in range(steps)]
            torch.cuda.synchronize()
            lasted = time.monotonic() - began
        memory = _memory(torch, device)
        verified.append(training.verified_step())
        return {
            **identity,
            "seed": seed,
            "verified": verified,
            "weights": training.weights(),
            "name": torch.cuda.get_device_name(device),
            "steps_per_second": steps / lasted,
            "lasted": lasted,
            "interval": INTERVAL,
            "losses": [float(losses[0]), float(losses[-1])],
            **memory,
            "load": sampler.measured(),
        }


def _steps(torch: Any, dist: Any, device: Any, step: Any) -> int:
    """Return how many steps the slowest rank takes in SECONDS: every rank has to take as many."""
    torch.cuda.synchronize()
    began = time.monotonic()
    step()
    torch.cuda.synchronize()
    took = torch.tensor(time.monotonic() - began, dtype=torch.float64, device=device)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return max(FEWEST, int(SECONDS / float(took)))


def _memory(torch: Any, device: Any) -> Measured:
    """Return the bytes that the training needed at most, and those there are.

    An allocator that caches nothing counts nothing either; then it is what is not free on the GPU.
    """
    free, total = torch.cuda.mem_get_info(device)
    return {"peak": torch.cuda.max_memory_allocated(device) or total - free, "total": total}


def judge(view: View, ranks: Ranks) -> Outcome:
    """Tell what the training took of each GPU; warn of one that slows itself down, and believe no idle one."""
    problem = process_group.problem(view, ranks)
    if problem is not None:
        return problem
    untold = {entry["rank"]: _untold(entry) for entry in ranks}
    findings = [finding for finding in untold.values() if finding is not None]
    for entry in ranks:
        if untold[entry["rank"]] is None:
            findings += [finding for finding in (_idle(entry), _faulty(entry)) if finding is not None]
    findings += [finding for entry in ranks for finding in _wrong(entry)] + _apart(ranks)
    return worst(findings, otherwise=findings[0]) if findings else _summary(ranks)


def _untold(entry: Measured) -> process_group.Problem:
    """Return why this rank's numbers are none, or None."""
    losses, where = entry.get("losses") or [], f"rank {entry['rank']} on {entry['device']}"
    lacking = [name for name in ("steps_per_second", "lasted", "peak", "total") if not _positive(entry.get(name))]
    if lacking or len(losses) != 2 or entry["peak"] > entry["total"]:  # noqa: PLR2004 (before and after)
        return undecided(
            f"{where} reported no {', '.join(lacking) or 'loss, or memory that cannot be'}",
            fix="see the log",
            code="training.unmeasured",
            culprit=where,
        )
    if not all(process_group.finite(loss) for loss in losses):
        fix = "run the amp and kernels checks on this GPU"
        return failed(f"{where}: the loss is not finite", fix=fix, code="training.loss", culprit=where)
    return gpu_speed.unseen(entry, float(entry["lasted"]), float(entry.get("interval") or INTERVAL))


def _wrong(entry: Measured) -> list[Outcome]:
    """Return a finding for each verified step with a part that is off, or the error that there is none."""
    steps: list[Any] = entry.get("verified") or []
    common: dict[str, Any] = {"culprit": _name(entry), "rank": entry["rank"]}
    findings = []
    for which, step in zip(("first", "last"), steps):
        off, most = step.get("off") or {}, limits(str(step.get("dtype")))
        bad = {n: off.get(n) for n in most if not process_group.finite(off.get(n)) or not 0 <= off[n] <= most[n]}
        if bad:
            summary = ", ".join(f"{name} off by {value} (limit {most[name]:g})" for name, value in bad.items())
            fix = "run the kernels, amp and fingerprint checks on this GPU; wrong there too, take it out"
            message = f"{_name(entry)}: the {which} step: {summary}"
            findings.append(failed(message, fix=fix, code="training.wrong", **common))
    if len(steps) != 2:  # noqa: PLR2004 (the first and the last)
        message = f"{_name(entry)} verified no step"
        findings.append(undecided(message, fix="see the check's log", code="training.unmeasured", **common))
    return findings


def limits(dtype: str) -> dict[str, float]:
    """Return how far each part of a verified step in that dtype may be off."""
    products = PRODUCTS.get(dtype, 0.0)
    names = ("forward", "weights' gradients", "inputs' gradients")
    bounds = {"loss": LOSS, "bends": 0.0, "update": UPDATE}
    return {**dict.fromkeys(names, products), **bounds}


def _apart(ranks: Ranks) -> list[Outcome]:
    """Return the finding that replicas on GPUs of one model have other weights, or that a rank reported none."""
    silent = [entry for entry in ranks if not isinstance(entry.get("weights"), str) or not entry["weights"]]
    if silent:
        message, fix = f"{_name(silent[0])} reported no weights", "see the check's log"
        return [undecided(message, fix=fix, code="training.unmeasured", culprit=_name(silent[0]))]
    models = {entry.get("name") for entry in ranks}
    findings = [
        model_replicas.drifted([e for e in ranks if e.get("name") == model], "weights", "after training")
        for model in models
    ]
    code, culprit = "training.replicas", "the replicas"
    return [dataclasses.replace(finding, code=code, culprit=culprit) for finding in findings if finding is not None]


def _positive(value: Any) -> bool:
    return process_group.finite(value) and bool(value > 0)


def _idle(entry: Measured) -> process_group.Problem:
    busy = gpu_speed.spread(entry["load"], "utilization")
    if busy is None or busy[2] > 0:
        return None
    return undecided(
        f"rank {entry['rank']} trained for {entry['lasted']:.0f} s and NVML saw {entry['device']} idle all the while",
        fix="compare `nvidia-smi -L` with CUDA_VISIBLE_DEVICES: another device may be doing the work",
        code="training.idle",
        culprit=_name(entry),
    )


def _faulty(entry: Measured) -> process_group.Problem:
    faults, load = gpu_speed.faults(entry["load"]), entry["load"]
    if not faults:
        return None
    return warned(
        f"rank {entry['rank']} on {entry['device']}: {', '.join(faults)} in training{gpu_speed.text(load)}",
        fix=_FIX,
        value=sum(faults.values()),
        unit=gpu_speed.NO_FAULT.unit,
        limit=gpu_speed.NO_FAULT,
        rank=entry["rank"],
        device=entry["device"],
        code="training.slowdown",
        culprit=_name(entry),
    )


def _name(entry: Measured) -> str:
    return f"rank {entry['rank']} on {entry['device']}"


def _summary(ranks: Ranks) -> Outcome:
    gpus = {str(entry["rank"]): _one(entry) for entry in ranks}
    busy = [gpu["utilization"] for gpu in gpus.values() if gpu["utilization"] is not None]
    power = [gpu["power_max"] for gpu in gpus.values() if gpu["power_max"] is not None]
    fullest = max(ranks, key=lambda entry: float(entry["peak"] / entry["total"]))
    lines = [
        f"utilisation {min(busy):.0f} % at least" if busy else "utilisation not reported by this GPU",
        f"memory {fullest['peak'] / 2**30:.1f} of {fullest['total'] / 2**30:.1f} GiB at most",
        f"power up to {max(power):.0f} W" if power else "power not reported by this GPU",
    ]
    return passed(
        f"training on {counted(len(ranks), 'GPU')}: {', '.join(lines)}{gpu_speed.caps(fullest['load'])}: "
        "reported, not judged",
        value=float(min(busy)) if busy else None,
        unit="% utilisation" if busy else "",
        gpus=gpus,
    )


def _one(entry: Measured) -> Measured:
    """Return what one GPU's training came to: %, bytes, W, C, and steps a second."""
    load, none = entry["load"], (None, None, None)
    power, heat = gpu_speed.spread(load, "power") or none, gpu_speed.spread(load, "temperature") or none
    return {
        "device": entry["device"],
        "utilization": (gpu_speed.spread(load, "utilization") or none)[1],
        "peak": entry["peak"],
        "headroom": entry["total"] - entry["peak"],
        "power": power[1],
        "power_max": power[2],
        "temperature_max": heat[2],
        "steps_per_second": entry["steps_per_second"],
    }


RATE, MOMENTUM = 0.01, 0.9
# A kernel may add up parts that it has rounded: twice what one product by itself may be off.
PRODUCTS = {dtype: 2 * most for dtype, most in verified_products.TOLERANCE.items()}
LOSS = 1e-4
# Units in the last place of the largest weight; a step that is not taken is off by hundreds of them.
UPDATE = 2.0
_ULP = 2.0**-23
# The standard deviation of numbers between -2 and 2.
_SPREAD = 4 / math.sqrt(12)


class Sizes(NamedTuple):
    """How wide the layers are, how many there are, and how many samples a batch has."""

    width: int
    layers: int
    batch: int


class VerifiedTraining:
    """Layers without bias, bent between, under DDP; the same batch at every step."""

    def __init__(self, torch: Any, rank: Any, device: Any, sizes: Sizes, seed: int) -> None:
        self.torch, self.device = torch, device
        width, nn = sizes.width, torch.nn
        self.layers = [nn.Linear(width, width, bias=False, device=device) for _ in range(sizes.layers + 1)]
        # A spread that keeps the size of what goes through (He et al. 2015, arXiv 1502.01852).
        drawn = verified_products.data(torch, width, width, device, seed) * (math.sqrt(2 / width) / _SPREAD)
        with torch.no_grad():
            for number, layer in enumerate(self.layers):
                layer.weight.copy_(drawn.roll((5 * number, 3 * number), (0, 1)))
        self.inputs, self.targets = (
            verified_products.data(torch, sizes.batch, width, device, seed + more) for more in (1, 2)
        )
        bent = [part for layer in self.layers[:-1] for part in (layer, nn.ReLU())]
        self.model = model_replicas.wrap(rank, nn.Sequential(*bent, self.layers[-1]))
        # float16 loses gradients as small as a mean's: they are scaled, and the rate is scaled back.
        self.scale = 2.0 ** round(math.log2(sizes.batch * width / 256))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE / self.scale, momentum=MOMENTUM)
        native = torch.cuda.get_device_capability(device) >= plain_math.BFLOAT16_SINCE
        self.dtype = torch.bfloat16 if native else torch.float16

    def step(self) -> Any:
        """Take a step; return its loss, which is not waited for."""
        return self._step()[0].detach()

    def _step(self) -> tuple[Any, Any]:
        self.optimizer.zero_grad()
        with self.torch.autocast(self.device.type, dtype=self.dtype):
            made = self.model(self.inputs)
            loss = self.torch.nn.functional.mse_loss(made, self.targets)
        (loss * self.scale).backward()
        self.optimizer.step()
        return loss, made

    def weights(self) -> str:
        """Return a digest of all weights: sums of their bits, by row and weighted by their row's number."""
        sums = []
        for layer in self.layers:
            rows = layer.weight.detach().view(self.torch.int32).sum(1, dtype=self.torch.int64)
            numbers = self.torch.arange(1, len(rows) + 1, device=rows.device)
            sums += [rows.sum(), (rows * numbers).sum()]
        return " ".join(f"{int(checksum) & 0xFFFFFFFFFFFFFFFF:x}" for checksum in sums)

    def verified_step(self) -> Measured:
        """Take a step as any other; return what it came to: the dtype, and how far each part of it is off."""
        moved = [self._moved(layer.weight) for layer in self.layers]
        with watched(self.layers) as seen:
            loss, made = self._step()
        with self.torch.no_grad():
            errors = {"loss": self._loss(loss, made, seen[-1].output.grad)}
            errors |= product_errors(self.torch, self.layers, seen, self.dtype)
            errors["bends"] = verified_products.worst([_bend(self.torch, *two) for two in zip(seen, seen[1:])])
            steps = zip(self.layers, seen, moved)
            errors["update"] = verified_products.worst([self._update(layer.weight, *old) for layer, *old in steps])
        finite = {name: error if math.isfinite(error) else None for name, error in errors.items()}
        return {"dtype": str(self.dtype)[6:], "off": finite}

    def _moved(self, weight: Any) -> Any:
        moved = self.optimizer.state.get(weight, {}).get("momentum_buffer")
        return 0.0 if moved is None else moved.clone()

    def _loss(self, loss: Any, made: Any, gradient: Any) -> float:
        """Return how far the loss and its gradient are off, the latter by what its dtype may be off."""
        gaps = made.float().double() - self.targets.double()
        right = float(gaps.square().sum()) / gaps.numel()
        due = gaps * (2 * self.scale / gaps.numel())
        apart = (gradient.float().double() - due).square().sum().sqrt() / due.square().sum().sqrt()
        share = float(apart) / PRODUCTS[str(self.dtype)[6:]]
        return verified_products.worst([abs(float(loss) - right) / right, LOSS * share])

    def _update(self, weight: Any, seen: LayerTensors, moved: Any) -> float:
        """Return how far the new weight is from the formula's, in units in the last place of the largest one."""
        due = MOMENTUM * moved + weight.grad.double()
        right = seen.weight.double() - RATE / self.scale * due
        return float((weight.double() - right).abs().max() / (_ULP * right.abs().max()))


class LayerTensors(NamedTuple):
    """What went into a layer, the weight that it met, and what came out; both ends keep their gradients."""

    input: Any
    weight: Any
    output: Any


@contextlib.contextmanager
def watched(layers: Sequence[Any]) -> Iterator[list[LayerTensors]]:
    """Record what each of the layers does meanwhile, in the order in which they are called."""
    seen: list[LayerTensors] = []
    hooks = [layer.register_forward_hook(lambda *given: seen.append(_seen(*given))) for layer in layers]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def product_errors(torch: Any, layers: Sequence[Any], seen: Sequence[LayerTensors], dtype: Any) -> dict[str, float]:
    """Return how far the products of linear layers without bias are off, in the forward and the backward pass."""

    def error(name: str, layer: Any, one: LayerTensors) -> float:
        made, upstream = one.output, one.output.grad
        given, weight = one.input.to(dtype), one.weight.to(dtype)
        if name == "forward":
            return verified_products.error(torch, given, weight, made)
        if name == "weights' gradients":
            return verified_products.error(torch, upstream.t(), given.t(), layer.weight.grad)
        # The first layer's input has no gradient.
        return 0.0 if layer is layers[0] else verified_products.error(torch, upstream, weight.t(), one.input.grad)

    names = ("forward", "weights' gradients", "inputs' gradients")
    return {name: verified_products.worst([error(name, *pair) for pair in zip(layers, seen)]) for name in names}


def _seen(layer: Any, given: Any, made: Any) -> LayerTensors:
    for tensor in (given[0], made):
        if tensor.requires_grad:
            tensor.retain_grad()
    return LayerTensors(given[0], layer.weight.detach().clone(), made)


def _bend(torch: Any, below: LayerTensors, above: LayerTensors) -> float:
    """Return how many elements are not bent at zero, on the way there and back."""
    flat, passed = below.output.detach(), above.input.grad
    differing = above.input.detach().ne(torch.where(flat > 0, flat, 0 * flat))
    back = below.output.grad.ne(torch.where(flat > 0, passed, 0 * passed))
    return float(differing.sum() + back.sum())
