"""Training that has to give the same bits again: switches, a model with every kind of state, and its fingerprints.

Weights and data come from Python's generator: torch's own draws nothing but the dropout, whose state is under test.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from envcheck.checks.training import model_replicas, plain_math

BATCH, WIDTH, OUTPUTS, RATE = 32, 64, 8, 0.01


def make(torch: Any) -> None:
    """Have every operation of this process give the same bits for the same inputs. Call it before CUDA is used."""
    # cuBLAS is deterministic with a workspace of its own only (NVIDIA cuBLAS documentation, Results reproducibility).
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)  # noqa: FBT003 (torch's signature)
    torch.backends.cudnn.benchmark = False


@functools.cache
def _batch(index: int) -> tuple[plain_math.Matrix, plain_math.Matrix]:
    """Return the rows of inputs and targets of the batch with that number."""
    inputs, targets = (plain_math.values(f"{index} {width}", BATCH * width) for width in (WIDTH, OUTPUTS))
    return plain_math.rows(inputs, WIDTH), plain_math.rows(targets, OUTPUTS)


class Training:
    """A model with parameters and buffers, an optimizer with state and a random number generator."""

    def __init__(self, torch: Any, device: Any, seed: int) -> None:
        nn = torch.nn
        torch.manual_seed(seed)
        self.torch, self.device = torch, device
        layers = (nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.2), nn.Linear(WIDTH, OUTPUTS))
        self.model = nn.Sequential(*layers)
        model_replicas.start(torch, self.model, seed)
        self.model.to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE)
        self.losses: list[float] = []

    def run(self, first: int, count: int) -> None:
        """Take `count` steps, the first of which is on batch `first`."""
        for index in range(first, first + count):
            inputs, targets = (self.torch.tensor(rows, device=self.device) for rows in _batch(index))
            self.optimizer.zero_grad()
            loss = self.torch.nn.functional.mse_loss(self.model(inputs), targets)
            loss.backward()
            self.optimizer.step()
            self.losses.append(float(loss.detach()))

    def fingerprints(self) -> dict[str, str]:
        """Return a digest of everything that training depends on, by name.

        Read off the objects themselves, not from a state_dict: that is what a checkpoint is made of.
        """
        torch, named = self.torch, {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        for index, parameter in enumerate(self.model.parameters()):
            state = self.optimizer.state.get(parameter, {})
            named |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in state.items()}
        named["random numbers"] = torch.random.default_generator.get_state()
        if self.device.type == "cuda":
            named["random numbers of the GPU"] = torch.cuda.get_rng_state(self.device)
        return {name: model_replicas.digest(torch, [tensor])[:16] for name, tensor in named.items()}
