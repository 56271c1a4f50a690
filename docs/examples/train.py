"""Train a causal language model with DDP, AMP, gradient accumulation, TensorBoard and checkpoints; resume after a kill.

torchrun --standalone --nproc-per-node 2 train.py --model org/name@COMMIT --steps 200 --output run/
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
from transformers import AutoModelForCausalLM

BATCH, LENGTH, ACCUMULATE = 4, 16, 4


def batch(step: int, part: int, words: int, device: torch.device) -> Any:
    """Return token ids that follow from step, part and rank alone, so that a resumed run sees the same.

    Each row counts upwards from a random token, which is what the model learns. A real run reads a dataset here.
    """
    generator = torch.Generator().manual_seed(1_000_003 * step + 1009 * part + dist.get_rank())
    first = torch.randint(words, (BATCH, 1), generator=generator)
    return ((first + torch.arange(LENGTH)) % words).to(device)


def save(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint in one step: a kill leaves the old one or the new one."""
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as stream:
        torch.save(state, stream)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(path)


def train_step(model: Any, optimizer: Any, scaler: Any, step: int, device: torch.device) -> float:
    """Do one step of ACCUMULATE batches; ranks exchange gradients with the last batch only."""
    torch.manual_seed(step * dist.get_world_size() + dist.get_rank())  # dropout of a resumed run is that of the first
    optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for part in range(ACCUMULATE):
        tokens = batch(step, part, model.module.config.vocab_size, device)
        last = part == ACCUMULATE - 1
        with contextlib.nullcontext() if last else model.no_sync():
            with torch.autocast(device.type, dtype=torch.float16 if device.type == "cuda" else torch.bfloat16):
                loss = model(input_ids=tokens, labels=tokens).loss / ACCUMULATE
            scaler.scale(loss).backward()
        total += loss.item()
    scaler.step(optimizer)
    scaler.update()
    return total


def main() -> None:
    """Train to the last step, from the newest checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="REPO@REV as `envcheck fetch` took it, or a directory")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--output", type=Path, default=Path("run"))
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    name, _, revision = options.model.partition("@")
    language_model = AutoModelForCausalLM.from_pretrained(name, revision=revision or "main").to(device).train()
    model = DistributedDataParallel(language_model, device_ids=[device.index] if gpu else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler(device.type, enabled=gpu)  # float16 needs it, bfloat16 does not
    parts = {"model": language_model, "optimizer": optimizer, "scaler": scaler}
    options.output.mkdir(parents=True, exist_ok=True)
    checkpoint, first = options.output / "checkpoint.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        first = state["step"]
    lead = dist.get_rank() == 0
    writer = SummaryWriter(str(options.output / "tensorboard"), purge_step=first) if lead else None
    for step in range(first, options.steps):
        loss = train_step(model, optimizer, scaler, step, device)
        if writer is not None:
            writer.add_scalar("loss", loss, step)
        if lead and ((step + 1) % options.save_every == 0 or step + 1 == options.steps):
            save(checkpoint, {**{name: part.state_dict() for name, part in parts.items()}, "step": step + 1})
            print(f"step {step + 1}: loss {loss:.4f}, started at step {first}", flush=True)  # noqa: T201 (a script)
    if writer is not None:
        writer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
