"""What the checks of data-parallel training share: a small model, its batch, references, and digests of replicas.

References are computed in plain Python from the weights as they are: no operation of torch's is its own witness.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from envcheck.checks import Ranks, failed
from envcheck.checks.support import process_group
from envcheck.checks.training import plain_math
from envcheck.counting import numbered

TOLERANCE = 1e-5
OUTPUTS = 8


def off(gradients: Iterable[Any], references: Iterable[list[float]]) -> float:
    """Return how far the worst of some gradients is from its reference, in tolerances; infinite where one is none."""
    pairs = ((numbers(gradient), right) for gradient, right in zip(gradients, references))
    return max(plain_math.off(gradient, right) / TOLERANCE for gradient, right in pairs)


def numbers(gradient: Any) -> list[float]:
    """Return a gradient's elements; none where there is no gradient."""
    return [] if gradient is None else plain_math.numbers(gradient)


def model(torch: Any, width: int) -> Any:
    """Return two layers with a bend between them."""
    layers = torch.nn
    return layers.Sequential(layers.Linear(width, width), layers.Tanh(), layers.Linear(width, OUTPUTS))


class Batch(NamedTuple):
    """Inputs and targets, the same on every rank: as rows of floats, and as tensors on the rank's device."""

    rows: tuple[plain_math.Matrix, plain_math.Matrix]
    tensors: tuple[Any, Any]

    def share(self, first: int, count: int) -> Batch:
        """Return `count` samples from `first` on."""
        part = slice(first, first + count)
        return Batch((self.rows[0][part], self.rows[1][part]), (self.tensors[0][part], self.tensors[1][part]))


def batch(torch: Any, seed: int | str, count: int, width: int, device: Any) -> Batch:
    """Return a batch whose values come from the seed alone."""
    return targeted(torch, seed, plain_math.rows(plain_math.values(f"{seed} inputs", count * width), width), device)


def targeted(torch: Any, seed: int | str, inputs: plain_math.Matrix, device: Any) -> Batch:
    """Return a batch of these inputs; the targets come from the seed."""
    targets = plain_math.rows(plain_math.values(f"{seed} targets", len(inputs) * OUTPUTS), OUTPUTS)
    return Batch((inputs, targets), (torch.tensor(inputs, device=device), torch.tensor(targets, device=device)))


def start(torch: Any, module: Any, seed: int | str) -> None:
    """Give the model the weights of a seed."""
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            values = plain_math.values(f"{seed} weight {number}", parameter.numel(), 0.25)
            parameter.copy_(torch.tensor(values).reshape(parameter.shape))


def weights(module: Any) -> list[Any]:
    """Return the model's four parameters as they are, as lists of floats."""
    return [parameter.detach().cpu().tolist() for parameter in module.parameters()]


def digest(torch: Any, tensors: Iterable[Any]) -> str:
    """Digest the tensors' bytes, without numpy, which an environment need not have."""
    hasher = hashlib.sha256()
    for tensor in tensors:
        hasher.update(bytes(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).tolist()))
    return hasher.hexdigest()


def reference(module: Any, batch: Batch) -> list[list[float]]:
    """Return the gradients that one process has on this batch, by the chain rule in plain Python."""
    return plain_math.two_layers(weights(module), *batch.rows)[1]


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
