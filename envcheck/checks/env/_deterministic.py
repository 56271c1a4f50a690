"""Training that has to give the same bits again: switches, a model with every kind of state, and its fingerprints."""

from __future__ import annotations

import os
from typing import Any

from envcheck.checks.env import _replicas

BATCH, WIDTH = 32, 64


def make(torch: Any) -> None:
    """Have every operation of this process give the same bits for the same inputs. Call it before CUDA is used."""
    # cuBLAS is deterministic with a workspace of its own only (NVIDIA cuBLAS documentation, Results reproducibility).
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)  # noqa: FBT003 (torch's signature)
    torch.backends.cudnn.benchmark = False


class Training:
    """A model with parameters and buffers, an optimizer with state, a schedule and a random number generator."""

    def __init__(self, torch: Any, device: Any, seed: int) -> None:
        nn = torch.nn
        torch.manual_seed(seed)
        self.torch, self.device = torch, device
        layers = (nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.2), nn.Linear(WIDTH, 8))
        self.model = nn.Sequential(*layers).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2, gamma=0.5)
        self.losses: list[float] = []

    def run(self, first: int, count: int) -> None:
        """Take `count` steps, the first of which is on batch `first`."""
        for index in range(first, first + count):
            generator = self.torch.Generator().manual_seed(index)
            inputs = self.torch.randn(BATCH, WIDTH, generator=generator).to(self.device)
            targets = self.torch.randn(BATCH, 8, generator=generator).to(self.device)
            self.optimizer.zero_grad()
            loss = self.torch.nn.functional.mse_loss(self.model(inputs), targets)
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            self.losses.append(float(loss.detach()))

    def fingerprints(self) -> dict[str, str]:
        """Return a digest of every tensor that training leaves behind, by name."""
        named = dict(self.model.state_dict())
        for index, state in self.optimizer.state_dict()["state"].items():
            named |= {f"optimizer.{index}.{name}": self.torch.as_tensor(value) for name, value in state.items()}
        return {name: _replicas.digest(self.torch, [tensor])[:16] for name, tensor in named.items()}
