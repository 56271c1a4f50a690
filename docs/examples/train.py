"""Train a small model with DDP, AMP, gradient accumulation, TensorBoard and checkpoints; go on after a kill.

torchrun --standalone --nproc-per-node 2 train.py --steps 200 --folder run/
"""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.tensorboard import SummaryWriter

FEATURES, BATCH, ACCUMULATE = 32, 16, 4


def batch(step: int, part: int, device: torch.device) -> tuple[Any, Any]:
    """Return inputs and targets that follow from step, part and rank alone, so that a resumed run sees the same."""
    generator = torch.Generator().manual_seed(1_000_003 * step + 1009 * part + dist.get_rank())
    inputs = torch.randn(BATCH, FEATURES, generator=generator)
    return inputs.to(device), inputs.sum(1, keepdim=True).to(device)


def save(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint, whole or not at all."""
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as stream:
        torch.save(state, stream)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(path)


def train_step(model: Any, optimizer: Any, scaler: Any, step: int, device: torch.device) -> float:
    """Do one step of ACCUMULATE batches; gradients are exchanged with the last one only."""
    optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for part in range(ACCUMULATE):
        inputs, targets = batch(step, part, device)
        last = part == ACCUMULATE - 1
        with contextlib.nullcontext() if last else model.no_sync():
            with torch.autocast(device.type, dtype=torch.float16 if device.type == "cuda" else torch.bfloat16):
                loss = torch.nn.functional.mse_loss(model(inputs).float(), targets) / ACCUMULATE
            scaler.scale(loss).backward()
        total += loss.item()
    scaler.step(optimizer)
    scaler.update()
    return total


def main() -> None:
    """Train to the last step, from the newest checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=Path("run"))
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(FEATURES, 64), torch.nn.GELU(), torch.nn.Linear(64, 1)).to(device)
    model = DistributedDataParallel(layers, device_ids=[device.index] if gpu else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device.type, enabled=gpu)  # float16 needs it, bfloat16 does not
    options.folder.mkdir(parents=True, exist_ok=True)
    checkpoint, first = options.folder / "checkpoint.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        layers.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scaler.load_state_dict(state["scaler"])
        first = state["step"]
    lead = dist.get_rank() == 0
    writer = SummaryWriter(str(options.folder / "tensorboard"), purge_step=first) if lead else None
    for step in range(first, options.steps):
        loss = train_step(model, optimizer, scaler, step, device)
        if writer is not None:
            writer.add_scalar("loss", loss, step)
        if lead and ((step + 1) % options.save_every == 0 or step + 1 == options.steps):
            parts = {"model": layers.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
            save(checkpoint, {**parts, "step": step + 1})
            print(f"step {step + 1}: loss {loss:.4f}, from step {first}", flush=True)  # noqa: T201 (a script)
    if writer is not None:
        writer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
