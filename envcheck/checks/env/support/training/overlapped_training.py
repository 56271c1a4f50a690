"""A model of linear layers under DDP whose gradients are known: what one process makes of all ranks' data.

Large enough that DDP sends several buckets, for the check `overlap`.
"""

from __future__ import annotations

import math
from typing import Any

from envcheck.checks import Rank
from envcheck.checks.env.support.operators import seeded_numbers, verified_products
from envcheck.checks.env.support.training import model_replicas, plain_math, verified_training

# 512 MB of gradients on a GPU, 6 MB on a CPU; several buckets of each, as only the last one cannot be hidden.
WIDTH, DEPTH, BATCH = {"cuda": 4096, "cpu": 512}, {"cuda": 8, "cpu": 6}, {"cuda": 2048, "cpu": 64}
BUCKET_MB = {"cuda": 25, "cpu": 1}
# Steps in which buckets are counted.
COUNTING = 3
# The standard deviation of numbers between -2 and 2.
_SPREAD = 4 / math.sqrt(12)


class OneProcess:
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
        errors = verified_training.product_errors(torch, layers, seen, torch.float32)
        upstream, due = seen[-1].output.grad, made.double() * (2 / made.numel())
        errors["loss's gradient"] = float((upstream.double() - due).abs().max() / due.abs().max())
        first = [2 * value / made.numel() for value in seeded_numbers.read(made[:1])]
        errors["loss's gradient, in part"] = plain_math.off(seeded_numbers.read(upstream[:1]), first)
    return {name: error if math.isfinite(error) else None for name, error in errors.items()}


class OverlappedTraining:
    """A model under DDP, the same on every rank, data of this rank's own, and the gradients that all data give."""

    def __init__(self, torch: Any, rank: Rank, own: OneProcess) -> None:
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
        differences = []
        for parameter, mean in zip(self.model.parameters(), self.expected):
            differences.append(float((parameter.grad - mean).abs().max() / mean.abs().max()))
            differences.append(plain_math.off(seeded_numbers.read(parameter.grad[:1]), seeded_numbers.read(mean[:1])))
        return max(differences) if all(map(math.isfinite, differences)) else -1.0


def bucket_sizes(torch: Any, rank: Rank, own: OneProcess) -> tuple[list[int], list[float]]:
    """Return how many elements DDP sends at once (it sorts its buckets after a step), and how far each step is off."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    trained = OverlappedTraining(torch, rank, own)
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
