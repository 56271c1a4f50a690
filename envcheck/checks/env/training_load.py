"""A training that leaves the GPU idle, or fills its memory to the last byte, is found out on the bill.

Seen in the wild: GPUs at 30 % because one process feeds eight, memory that is full before the first long batch comes, a
node that trains at two thirds of the power of its neighbours. A few seconds of data-parallel training in mixed
precision, on all GPUs at once, with NVML asked four times a second. What it comes to depends on the model that is
trained, so it is told and not judged; a GPU that slows itself down for heat or power meanwhile is.
"""

from __future__ import annotations

import time
from typing import Any

from envcheck.checks import Check, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, warned, worst
from envcheck.checks.env.support.collectives import process_group
from envcheck.checks.env.support.hardware import load_samples
from envcheck.checks.env.support.hardware import sampler as hardware_sampler
from envcheck.checks.env.support.training import dtype_precision, model_replicas

CHECK = Check(
    promise="training keeps the GPUs at work without a fault of heat or power; utilisation, memory and power are told",
    level="standard",
    seconds=9.0,
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
    """Train for SECONDS; return what NVML saw, the memory that was needed, and the loss before and after."""
    import torch

    device = process_group.device_of(rank)
    with process_group.group(rank) as dist:
        step = _training(torch, rank, device)
        losses = [step() for _ in range(WARMUP)]
        steps = _steps(torch, dist, device, step)
        torch.cuda.reset_peak_memory_stats(device)
        identity = process_group.standing(rank, losses[0], dist.get_backend())
        with hardware_sampler.Sampler(identity["device"], rank.local_rank, INTERVAL) as sampler:
            began = time.monotonic()
            losses += [step() for _ in range(steps)]
            torch.cuda.synchronize()
            lasted = time.monotonic() - began
        return {
            **identity,
            "name": torch.cuda.get_device_name(device),
            "steps_per_second": steps / lasted,
            "lasted": lasted,
            "interval": INTERVAL,
            "losses": [float(losses[0]), float(losses[-1])],
            **_memory(torch, device),
            "load": sampler.told(),
        }


def _training(torch: Any, rank: Rank, device: Any) -> Any:
    """Return a step of a training: a call that gives its loss, which is not waited for."""
    torch.manual_seed(5)
    layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    model = model_replicas.wrap(rank, torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, WIDTH)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs, targets = (torch.randn(BATCH, WIDTH, device=device) for _ in range(2))
    native = torch.cuda.get_device_capability(device) >= dtype_precision.BFLOAT16_SINCE
    dtype = torch.bfloat16 if native else torch.float16

    def step() -> Any:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=dtype):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


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
    found = process_group.problem(view, ranks)
    if found is not None:
        return found
    known = {entry["rank"]: _untold(entry) for entry in ranks}
    findings = [finding for finding in known.values() if finding is not None]
    for entry in ranks:
        if known[entry["rank"]] is None:
            findings += [finding for finding in (_idle(entry), _faulty(entry)) if finding is not None]
    return worst(findings, otherwise=findings[0]) if findings else _told(ranks)


def _untold(entry: Measured) -> process_group.Problem:
    """Return why this rank's numbers are none, or None."""
    losses, where = entry.get("losses") or [], f"rank {entry['rank']} on {entry['device']}"
    lacking = [name for name in ("steps_per_second", "lasted", "peak", "total") if not _positive(entry.get(name))]
    if lacking or len(losses) != 2 or entry["peak"] > entry["total"]:  # noqa: PLR2004 (before and after)
        return undecided(
            f"{where} told no {', '.join(lacking) or 'loss, or memory that cannot be'}",
            fix="see the log",
            code="training.unmeasured",
            culprit=where,
        )
    if not all(process_group.finite(loss) for loss in losses):
        fix = "run the amp and matmul checks on this GPU"
        return failed(f"{where}: the loss is not finite", fix=fix, code="training.loss", culprit=where)
    return load_samples.unseen(entry, float(entry["lasted"]), float(entry.get("interval") or INTERVAL))


def _positive(value: Any) -> bool:
    return process_group.finite(value) and bool(value > 0)


def _idle(entry: Measured) -> process_group.Problem:
    busy = load_samples.spread(entry["load"], "utilization")
    if busy is None or busy[2] > 0:
        return None
    return undecided(
        f"rank {entry['rank']} trained for {entry['lasted']:.0f} s and NVML saw {entry['device']} idle all the while",
        fix="compare `nvidia-smi -L` with CUDA_VISIBLE_DEVICES: another device may be doing the work",
        code="training.idle",
        culprit=_name(entry),
    )


def _faulty(entry: Measured) -> process_group.Problem:
    seen, load = load_samples.faults(entry["load"]), entry["load"]
    if not seen:
        return None
    return warned(
        f"rank {entry['rank']} on {entry['device']}: {', '.join(seen)} in training{load_samples.told(load)}",
        fix=_FIX,
        value=sum(seen.values()),
        unit=load_samples.NO_FAULT.unit,
        limit=load_samples.NO_FAULT,
        rank=entry["rank"],
        device=entry["device"],
        code="training.slowdown",
        culprit=_name(entry),
    )


def _name(entry: Measured) -> str:
    return f"rank {entry['rank']} on {entry['device']}"


def _told(ranks: Ranks) -> Outcome:
    gpus = {str(entry["rank"]): _one(entry) for entry in ranks}
    busy = [gpu["utilization"] for gpu in gpus.values() if gpu["utilization"] is not None]
    power = [gpu["power_max"] for gpu in gpus.values() if gpu["power_max"] is not None]
    fullest = max(ranks, key=lambda entry: float(entry["peak"] / entry["total"]))
    said = [
        f"utilisation {min(busy):.0f} % at least" if busy else "utilisation not told by this GPU",
        f"memory {fullest['peak'] / 2**30:.1f} of {fullest['total'] / 2**30:.1f} GiB at most",
        f"power up to {max(power):.0f} W" if power else "power not told by this GPU",
    ]
    return passed(
        f"training on {len(ranks)} GPU(s): {', '.join(said)}{load_samples.caps(fullest['load'])}: reported, not judged",
        value=float(min(busy)) if busy else None,
        unit="% utilisation" if busy else "",
        gpus=gpus,
    )


def _one(entry: Measured) -> Measured:
    """Return what one GPU's training came to: %, bytes, W, C, and steps a second."""
    load, none = entry["load"], (None, None, None)
    power, heat = load_samples.spread(load, "power") or none, load_samples.spread(load, "temperature") or none
    return {
        "device": entry["device"],
        "utilization": (load_samples.spread(load, "utilization") or none)[1],
        "peak": entry["peak"],
        "headroom": entry["total"] - entry["peak"],
        "power": power[1],
        "power_max": power[2],
        "temperature_max": heat[2],
        "steps_per_second": entry["steps_per_second"],
    }
