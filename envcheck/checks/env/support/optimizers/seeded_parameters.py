"""Where parameters start and what gradients they get: numbers of a seed, as flat lists and as tensors."""

from __future__ import annotations

import math
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.training import plain_math

WALK = 8
SHAPES = ((3, 5), (7,), (1, 2, 2))
SIZES = tuple(math.prod(shape) for shape in SHAPES)


class SeededParameters:
    """Start and gradients of one seed on one device: WALK gradients for parameters of SHAPES."""

    def __init__(self, torch: Any, device: Any, seed: int) -> None:
        self.torch, self.device = torch, device
        self.start = plain_math.values(f"{seed} start", sum(SIZES))
        self.gradients = [plain_math.values(f"{seed} {step}", sum(SIZES), 2.0) for step in range(WALK)]

    def parameters(self, dtype: str = "float64") -> list[Any]:
        """Return the start as parameters of SHAPES."""
        return [self.torch.nn.Parameter(tensor) for tensor in self.tensors(self.start, dtype)]

    def tensors(self, flat: list[float], dtype: str = "float64") -> list[Any]:
        """Return a flat list as tensors of SHAPES."""
        parts, first = [], 0
        for shape, size in zip(SHAPES, SIZES):
            data = self.torch.tensor(flat[first : first + size], dtype=getattr(self.torch, dtype), device=self.device)
            parts.append(data.reshape(shape))
            first += size
        return parts

    def row(self, flat: list[float]) -> Any:
        """Return one row of a float64 weight."""
        return self.torch.tensor([flat], dtype=self.torch.float64, device=self.device)

    def with_gradients(self, flat: list[float]) -> list[Any]:
        """Return parameters that have these gradients."""
        parameters = self.parameters()
        for parameter, grad in zip(parameters, self.tensors(flat)):
            parameter.grad = grad
        return parameters

    def thin(self, step: int) -> list[float]:
        """Return a step's gradient with zeros in every place that is missing from a sparse one: in every third."""
        return [g if (place + step) % 3 else 0.0 for place, g in enumerate(self.gradients[step])]

    def sparse(self, flat: list[float]) -> list[Any]:
        """Return a flat list as sparse tensors of SHAPES, each element in two parts, which have to be added up."""
        made, first = [], 0
        for shape, size in zip(SHAPES, SIZES):
            steps = seeded_numbers.strides(shape)
            kept = [place for place in range(size) if flat[first + place]] * 2
            indices = [[place // step % width for place in kept] for step, width in zip(steps, shape)]
            halves = [flat[first + place] / 2 for place in kept]
            values = self.torch.tensor(halves, dtype=self.torch.float64, device=self.device)
            where = self.torch.tensor(indices, dtype=self.torch.int64, device=self.device)
            made.append(self.torch.sparse_coo_tensor(where, values, shape))
            first += size
        return made

    def distance(self, parameters: list[Any], right: list[float]) -> float:
        """Return how far parameters are from where they should be, as a share of the way."""
        way = max(abs(end - start) for end, start in zip(right, self.start))
        return plain_math.off([x for parameter in parameters for x in plain_math.numbers(parameter)], right, way)
