"""What sharded training is given, and the weights that one process ends with, for the check `fsdp`."""

from __future__ import annotations

import math
from typing import Any

from envcheck.checks import Rank
from envcheck.checks.env.support.training import model_replicas, plain_math

STEPS = 4
PER_RANK, WIDTH = 8, 51
RATE = 0.05


class ShardedTask:
    """A model, its batches, and the weights that plain gradient descent ends with, computed in plain Python."""

    def __init__(self, torch: Any, rank: Rank, device: Any, seed: int) -> None:
        self.torch, self.rank, self.device, self.seed = torch, rank, device, seed
        count = rank.world * PER_RANK
        self.batches = [model_replicas.batch(torch, f"{seed} {step}", count, WIDTH, device) for step in range(STEPS)]
        self.start = [plain_math.flat(part) for part in model_replicas.weights(self.model())]
        self.right = self.trained()

    def model(self) -> Any:
        """Return the model with the weights of the seed."""
        module = model_replicas.model(self.torch, WIDTH).to(self.device)
        model_replicas.start(self.torch, module, self.seed)
        return module

    def trained(self, most: float = math.inf) -> list[list[float]]:
        """Return the weights after all steps; gradients are clipped to a norm of `most`."""
        now = self.start
        for batch in self.batches:
            shaped = [plain_math.rows(now[0], WIDTH), now[1], plain_math.rows(now[2], WIDTH), now[3]]
            gradients = plain_math.two_layers(shaped, *batch.rows)[1]
            norm = math.sqrt(sum(plain_math.dot(part, part) for part in gradients))
            share = min(1.0, most / (norm + 1e-6))
            now = [[x - RATE * share * g for x, g in zip(part, grad)] for part, grad in zip(now, gradients)]
        return now

    def accumulated(self, sharded: Any, step: int, *, sends: bool) -> None:
        """Take one step on this rank's share of a batch, a half at a time; send gradients each time, or at the end."""
        optimizer, half = self.torch.optim.SGD(sharded.parameters(), lr=RATE), PER_RANK // 2
        optimizer.zero_grad()
        for part in range(2):
            inputs, targets = self.batches[step].share(self.rank.rank * PER_RANK + part * half, half).tensors
            sharded.set_requires_gradient_sync(sends or part == 1)
            (self.torch.nn.functional.mse_loss(sharded(inputs), targets) / 2).backward()
        optimizer.step()

    def step(self, sharded: Any, step: int, clip: float = 0.0) -> float:
        """Take one step on this rank's share of a batch; return the loss there."""
        inputs, targets = self.batches[step].share(self.rank.rank * PER_RANK, PER_RANK).tensors
        optimizer = self.torch.optim.SGD(sharded.parameters(), lr=RATE)
        optimizer.zero_grad()
        loss = self.torch.nn.functional.mse_loss(sharded(inputs).float(), targets)
        loss.backward()
        if clip:
            self.torch.nn.utils.clip_grad_norm_(sharded.parameters(), clip)
        optimizer.step()
        return float(loss.detach())

    def off(self, whole: list[list[float]], right: list[list[float]]) -> float:
        """Return how far weights are from where they should be, as a share of the longest way."""
        way = max(abs(end - begin) for part, old in zip(right, self.start) for end, begin in zip(part, old))
        return model_replicas.worst(plain_math.off(actual, part, way) for actual, part in zip(whole, right))


def rows_of(rank: Rank, whole: list[float], rows: int, width: int) -> list[float]:
    """Return the rows of a parameter that this rank holds; the last ranks may hold fewer, or none."""
    each = math.ceil(rows / rank.world) * width
    return whole[rank.rank * each : (rank.rank + 1) * each]


def sharded(dist: Any, model: Any, fully_shard: Any, device: Any, **options: Any) -> Any:
    """Return the model, each layer and then the whole sharded over all ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model
