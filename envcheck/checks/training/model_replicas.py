"""What the checks of data-parallel training share: a small model, its batch, references, and digests of replicas.

References are computed in plain Python from the weights as they are: no operation of torch's is its own witness.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from envcheck.checks import Limit, Outcome, Ranks, View, failed, skipped, undecided
from envcheck.checks.support import process_group
from envcheck.checks.training import plain_math
from envcheck.counting import numbered

TOLERANCE = 1e-5
OUTPUTS = 8


def tolerance(otherwise: str) -> Limit:
    """Return the limit of a gradient's error; `otherwise` says how far off a wrong one is."""
    source = (
        f"|gradient - reference| <= {TOLERANCE:g} of the reference's largest, fp32 against the chain rule in float64: "
        "rounding differs, seen at 0.1 of it, nothing "
    )
    return Limit(1.0, "of the tolerance", f"{source}else may (ours; {otherwise})", "at most")


def off(gradients: Iterable[Any], references: Iterable[list[float]]) -> float:
    """Return how far the worst of some gradients is from its reference, in tolerances; infinite where one is none."""
    pairs = zip(gradients, references)
    return worst(plain_math.off(numbers(gradient), right) / TOLERANCE for gradient, right in pairs)


def numbers(gradient: Any) -> list[float]:
    """Return a gradient's elements; none where there is no gradient."""
    return [] if gradient is None else plain_math.numbers(gradient)


def worst(errors: Iterable[float]) -> float:
    """Return the largest; max() keeps the first of what does not compare, and would lose a NaN."""
    values = list(errors)
    return next((error for error in values if math.isnan(error)), max(values))


class Error(NamedTuple):
    """How far a gradient was from its reference, in tolerances: at which step, on which rank, of which kind."""

    step: int
    rank: int
    kind: str
    value: Any


def errors(view: View, ranks: Ranks, kinds: tuple[str, ...], steps: int) -> Outcome | list[Error]:
    """Return every rank's errors, the first step's first: a rank that is off spoils the others' next one."""
    problem = process_group.problem(view, ranks)
    if problem is not None:
        return problem
    if len(ranks) == 1:
        return skipped("one rank averages with nobody", code="rank.not-enough")
    by_rank: dict[tuple[int, str], Any] = {(entry["rank"], kind): entry.get(kind) for entry in ranks for kind in kinds}
    for (rank, _), values in by_rank.items():
        count = len(values) if isinstance(values, list) else 0
        if count != steps or not all(entry.get("ended") for entry in ranks):
            return undecided(
                f"rank {rank} took {count} of {steps} steps",
                fix="see the check's log",
                code="ddp.unmeasured",
                culprit=f"rank {rank}",
            )
    return sorted(
        (
            Error(step, rank, kind, value)
            for (rank, kind), values in by_rank.items()
            for step, value in enumerate(values)
        ),
        key=lambda error: (error.step, error.rank, kinds.index(error.kind)),
    )


def first_off(errors: list[Error], limit: Limit) -> Error | None:
    """Return the first error that is beyond the limit, or no number; None where none is."""
    return next((e for e in errors if not process_group.finite(e.value) or not 0 <= e.value <= limit.value), None)


def blamed(error: Error, summary: str, fix: str, limit: Limit, code: str) -> Outcome:
    """Return the failure of one error, naming its rank and step."""
    return failed(
        f"rank {error.rank}, step {error.step}: {summary}",
        fix=fix,
        value=error.value if process_group.finite(error.value) else None,
        unit=limit.unit,
        limit=limit,
        rank=error.rank,
        step=error.step,
        code=code,
        culprit=f"rank {error.rank}",
    )


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
