"""What torchrun starts for the check `torchrun`: a rank as users write it. It ends by the interpreter's own exit.

_torchrun_rank.py DIRECTORY    DIRECTORY gets rankN.joined, .returned, and .left when exit handlers have run
"""

from __future__ import annotations

import atexit
import datetime as dt
import json
import os
import sys
from pathlib import Path
from typing import Any

COUNT = 100_003
JOIN_SECONDS = 120


def main(directory: Path) -> None:
    """Join the group that torchrun announces, add up what all ranks send, say what came, and leave."""
    import torch
    import torch.distributed as dist

    rank, world, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", local) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo", timeout=dt.timedelta(seconds=JOIN_SECONDS))
    tensor = (torch.arange(COUNT, dtype=torch.int32) % 1000 + rank).to(device)
    dist.all_reduce(tensor)
    expected = world * (torch.arange(COUNT, dtype=torch.int32) % 1000) + world * (world - 1) // 2
    wrong = int((tensor.cpu() != expected).sum())
    dist.barrier()
    _write(directory / f"rank{rank}.joined", {"wrong": wrong, "world": world, "backend": dist.get_backend()})
    dist.destroy_process_group()
    _write(directory / f"rank{rank}.returned", {})


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content), encoding="ascii")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    # The first to be registered is the last to be called, when torch's own have run.
    atexit.register(lambda: _write(target / f"rank{os.environ['RANK']}.left", {}))
    main(target)
