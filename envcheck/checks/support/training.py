"""Small trainings beside plain Python: models, batches, references, and digests of what is left.

A reference that is computed by the operation under test is wrong where the operation is. So weights and data come from
Python's generator, references are elementary float64 formulas on lists of floats, and results are compared as such.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import random
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from envcheck.checks import Rank, Ranks, failed
from envcheck.checks.support import exact_data, process_group
from envcheck.counting import numbered

# Multiples of 2^-10 below 4 are exact in float32, float16 with few bits lost, and float64.
_GRAIN = 1024
# The compute capability from which on GPUs have bfloat16 units.
BFLOAT16_SINCE = (8, 0)
TOLERANCE = 1e-5
OUTPUTS = 8
BATCH, WIDTH, RATE = 32, 64, 0.01
Matrix = list[list[float]]
Vectors = list[list[float]]


def seed_of(rank: Rank) -> int:
    """Return the seed of this run, the same on all ranks of the group: ENVCHECK_SEED, or one from its directory."""
    requested = exact_data.requested_seed()
    return zlib.crc32(rank.scratch.encode()) % 1_000_000 if requested is None else requested


def values(seed: int | str, count: int, spread: float = 1.0) -> list[float]:
    """Return `count` floats between -spread and spread that float32 holds exactly."""
    chance = random.Random(str(seed))  # noqa: S311 (test data, no secret)
    return [round(chance.uniform(-spread, spread) * _GRAIN) / _GRAIN for _ in range(count)]


def rows(flat: Sequence[float], width: int) -> Matrix:
    """Return a flat list as rows of `width`."""
    return [list(flat[start : start + width]) for start in range(0, len(flat), width)]


def numbers(tensor: Any) -> list[float]:
    """Return a tensor's elements as one flat list of floats; none where there is no tensor."""
    return [] if tensor is None else [float(value) for value in tensor.detach().cpu().reshape(-1).tolist()]


def off(actual: Sequence[float], right: Sequence[float], scale: float | None = None) -> float:
    """Return the largest difference relative to `scale` (else to the largest of `right`); infinite for no number."""
    if len(actual) != len(right) or not actual:
        return math.inf
    gaps = [abs(one - other) for one, other in zip(actual, right)]
    if not all(map(math.isfinite, gaps)):
        return math.inf
    size = max(map(abs, right)) if scale is None else scale
    return max(gaps) / (size or 1.0)


def in_tolerances(gradients: Iterable[Any], references: Vectors) -> float:
    """Return how far the worst of some gradients is from its reference, in tolerances; infinite where one is none."""
    return max(off(numbers(gradient), right) / TOLERANCE for gradient, right in zip(gradients, references))


def dot(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the scalar product of two lists of one length."""
    return sum(map(float.__mul__, one, other))


def affine(inputs: Matrix, weight: Matrix, bias: Sequence[float]) -> Matrix:
    """Return inputs x weight^T + bias, as torch.nn.Linear defines it."""
    return [[dot(row, unit) + shift for unit, shift in zip(weight, bias)] for row in inputs]


def outer(gradients: Matrix, inputs: Matrix) -> list[float]:
    """Return gradients^T x inputs, flat: the gradient of a linear layer's weight."""
    columns = [*zip(*inputs)]
    return [dot(gradient, column) for gradient in zip(*gradients) for column in columns]


def two_layers(parameters: Vectors, inputs: Matrix, targets: Matrix) -> tuple[float, Vectors]:
    """Return the mean squared error of linear, tanh, linear, and its gradients; all parameters are flat."""
    first, second = rows(parameters[0], len(inputs[0])), rows(parameters[2], len(parameters[1]))
    hidden = [[math.tanh(x) for x in row] for row in affine(inputs, first, parameters[1])]
    outputs = affine(hidden, second, parameters[3])
    gaps = [[out - wish for out, wish in zip(row, wishes)] for row, wishes in zip(outputs, targets)]
    count = sum(map(len, gaps))
    back = [[2 * gap / count for gap in row] for row in gaps]
    columns = [*zip(*second)]
    inner = [[dot(g, column) * (1 - h * h) for column, h in zip(columns, row)] for g, row in zip(back, hidden)]
    biases = ([sum(column) for column in zip(*part)] for part in (inner, back))
    loss = sum(dot(row, row) for row in gaps) / count
    return loss, [outer(inner, inputs), next(biases), outer(back, hidden), next(biases)]


def stepped(parameters: Vectors, gradients: Vectors, rate: float) -> Vectors:
    """Return the parameters after one step of plain gradient descent."""
    return [[x - rate * g for x, g in zip(part, grad)] for part, grad in zip(parameters, gradients)]


class Batch(NamedTuple):
    """Inputs and targets, the same on every rank: as rows of floats, and as tensors on the rank's device."""

    rows: tuple[Matrix, Matrix]
    tensors: tuple[Any, Any]

    def share(self, first: int, count: int) -> Batch:
        """Return `count` samples from `first` on."""
        part = slice(first, first + count)
        return Batch((self.rows[0][part], self.rows[1][part]), (self.tensors[0][part], self.tensors[1][part]))


def batch(torch: Any, seed: int | str, count: int, width: int, device: Any) -> Batch:
    """Return a batch whose values come from the seed alone."""
    return targeted(torch, seed, rows(values(f"{seed} inputs", count * width), width), device)


def targeted(torch: Any, seed: int | str, inputs: Matrix, device: Any) -> Batch:
    """Return a batch of these inputs; the targets come from the seed."""
    targets = rows(values(f"{seed} targets", len(inputs) * OUTPUTS), OUTPUTS)
    return Batch((inputs, targets), (torch.tensor(inputs, device=device), torch.tensor(targets, device=device)))


def model(torch: Any, width: int, seed: int | str, device: Any) -> Any:
    """Return two layers with a bend between them, with the weights of a seed."""
    layers = torch.nn
    module = layers.Sequential(layers.Linear(width, width), layers.Tanh(), layers.Linear(width, OUTPUTS))
    return start(torch, module, seed).to(device)


def start(torch: Any, module: Any, seed: int | str) -> Any:
    """Return the module with the weights of a seed."""
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            drawn = values(f"{seed} weight {number}", parameter.numel(), 0.25)
            parameter.copy_(torch.tensor(drawn).reshape(parameter.shape))
    return module


def weights(module: Any) -> Vectors:
    """Return the model's parameters as they are, as flat lists of floats."""
    return [numbers(parameter) for parameter in module.parameters()]


def digest(torch: Any, tensors: Iterable[Any]) -> str:
    """Digest the tensors' bytes, without numpy, which an environment need not have."""
    hasher = hashlib.sha256()
    for tensor in tensors:
        hasher.update(bytes(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).tolist()))
    return hasher.hexdigest()


def reference(module: Any, batch: Batch) -> Vectors:
    """Return the gradients that one process has on this batch, by the chain rule in plain Python."""
    return two_layers(weights(module), *batch.rows)[1]


def wrap(rank: Any, module: Any, **options: Any) -> Any:
    """Return the module under DDP, on the rank's device."""
    from torch.nn.parallel import DistributedDataParallel

    devices = [rank.local_rank] if rank.device.startswith("cuda") else None
    return DistributedDataParallel(module, device_ids=devices, **options)


def drifted(ranks: Ranks, moment: str, when: str) -> process_group.Problem:
    """Return the failure naming the ranks whose digest of that moment is not the others', or None."""
    digests = [entry.get(moment) for entry in ranks]
    if len(set(digests)) == 1:
        return None
    odd = sorted(ranks[i]["rank"] for i, digest in enumerate(digests) if digests.count(digest) * 2 <= len(ranks))
    named = numbered("rank", odd)
    return failed(
        f"replicas differ {when}, on {named}",
        fix="run the all-reduce check on these ranks; drift without it points at a GPU that computes wrongly",
        ranks=odd,
        digests={str(entry["rank"]): entry.get(moment) for entry in ranks},
        code="ddp.replicas-differ",
        culprit=f"{named} {when}",
    )


def make(torch: Any) -> None:
    """Have every operation of this process give the same bits for the same inputs. Call it before CUDA is used."""
    # cuBLAS is deterministic with a workspace of its own only (NVIDIA cuBLAS documentation, Results reproducibility).
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)  # noqa: FBT003 (torch's signature)
    torch.backends.cudnn.benchmark = False


@functools.cache
def _batch(index: int) -> tuple[Matrix, Matrix]:
    inputs, targets = (values(f"{index} {width}", BATCH * width) for width in (WIDTH, OUTPUTS))
    return rows(inputs, WIDTH), rows(targets, OUTPUTS)


class Training:
    """A model with buffers, an optimizer with state and torch's generator, which draws nothing but the dropout."""

    def __init__(self, torch: Any, device: Any, seed: int) -> None:
        nn = torch.nn
        torch.manual_seed(seed)
        self.torch, self.device = torch, device
        layers = (nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.2), nn.Linear(WIDTH, OUTPUTS))
        self.model = start(torch, nn.Sequential(*layers), seed).to(device)
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
        """Return a digest of all that training depends on, by name, read off the objects and not from a state_dict."""
        torch, named = self.torch, {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        for index, parameter in enumerate(self.model.parameters()):
            state = self.optimizer.state.get(parameter, {})
            named |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in state.items()}
        named["random numbers"] = torch.random.default_generator.get_state()
        if self.device.type == "cuda":
            named["random numbers of the GPU"] = torch.cuda.get_rng_state(self.device)
        return {name: digest(torch, [tensor])[:16] for name, tensor in named.items()}
