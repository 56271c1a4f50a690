"""Data-parallel training in mixed precision, any step of which can be taken apart and verified.

Weights and data come from Python's generator, the same on every rank: so the mean of all ranks' gradients is each one's
own, and all ranks have the same weights at any time. Of a verified step each product, of the forward and of the
backward pass, is compared with plain Python and sums in float64 (verified_products.py); the bends between them, the
loss, its gradient and what the optimizer makes of all that against elementary operations.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from envcheck.checks import Measured
from envcheck.checks.support import verified_products
from envcheck.checks.training import model_replicas, plain_math

RATE, MOMENTUM = 0.01, 0.9
# A kernel may add up parts that it has rounded: twice what one product by itself may be off.
PRODUCTS = {dtype: 2 * most for dtype, most in verified_products.TOLERANCE.items()}
LOSS = 1e-4
# Units in the last place of the largest weight; a step that is not taken is off by hundreds of them.
UPDATE = 2.0
_ULP = 2.0**-23
# The standard deviation of numbers between -2 and 2.
_SPREAD = 4 / math.sqrt(12)


class Sizes(NamedTuple):
    """How wide the layers are, how many there are, and how many samples a batch has."""

    width: int
    layers: int
    batch: int


class VerifiedTraining:
    """Layers without bias, bent between, under DDP; the same batch at every step."""

    def __init__(self, torch: Any, rank: Any, device: Any, sizes: Sizes, seed: int) -> None:
        self.torch, self.device = torch, device
        width, nn = sizes.width, torch.nn
        self.layers = [nn.Linear(width, width, bias=False, device=device) for _ in range(sizes.layers + 1)]
        # A spread that keeps the size of what goes through (He et al. 2015, arXiv 1502.01852).
        drawn = verified_products.data(torch, width, width, device, seed) * (math.sqrt(2 / width) / _SPREAD)
        with torch.no_grad():
            for number, layer in enumerate(self.layers):
                layer.weight.copy_(drawn.roll((5 * number, 3 * number), (0, 1)))
        self.inputs, self.targets = (
            verified_products.data(torch, sizes.batch, width, device, seed + more) for more in (1, 2)
        )
        bent = [part for layer in self.layers[:-1] for part in (layer, nn.ReLU())]
        self.model = model_replicas.wrap(rank, nn.Sequential(*bent, self.layers[-1]))
        # float16 loses gradients as small as a mean's: they are scaled, and the rate is scaled back.
        self.scale = 2.0 ** round(math.log2(sizes.batch * width / 256))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE / self.scale, momentum=MOMENTUM)
        native = torch.cuda.get_device_capability(device) >= plain_math.BFLOAT16_SINCE
        self.dtype = torch.bfloat16 if native else torch.float16

    def step(self) -> Any:
        """Take a step; return its loss, which is not waited for."""
        return self._step()[0].detach()

    def _step(self) -> tuple[Any, Any]:
        self.optimizer.zero_grad()
        with self.torch.autocast(self.device.type, dtype=self.dtype):
            made = self.model(self.inputs)
            loss = self.torch.nn.functional.mse_loss(made, self.targets)
        (loss * self.scale).backward()
        self.optimizer.step()
        return loss, made

    def weights(self) -> str:
        """Return a digest of all weights: sums of their bits, by row and weighted by their row's number."""
        sums = []
        for layer in self.layers:
            rows = layer.weight.detach().view(self.torch.int32).sum(1, dtype=self.torch.int64)
            numbers = self.torch.arange(1, len(rows) + 1, device=rows.device)
            sums += [rows.sum(), (rows * numbers).sum()]
        return " ".join(f"{int(checksum) & 0xFFFFFFFFFFFFFFFF:x}" for checksum in sums)

    def verified_step(self) -> Measured:
        """Take a step as any other; return what it came to: the dtype, and how far each part of it is off."""
        moved = [self._moved(layer.weight) for layer in self.layers]
        with watched(self.layers) as seen:
            loss, made = self._step()
        with self.torch.no_grad():
            errors = {"loss": self._loss(loss, made, seen[-1].output.grad)}
            errors |= product_errors(self.torch, self.layers, seen, self.dtype)
            errors["bends"] = verified_products.worst([_bend(self.torch, *two) for two in zip(seen, seen[1:])])
            steps = zip(self.layers, seen, moved)
            errors["update"] = verified_products.worst([self._update(layer.weight, *old) for layer, *old in steps])
        finite = {name: error if math.isfinite(error) else None for name, error in errors.items()}
        return {"dtype": str(self.dtype)[6:], "off": finite}

    def _moved(self, weight: Any) -> Any:
        moved = self.optimizer.state.get(weight, {}).get("momentum_buffer")
        return 0.0 if moved is None else moved.clone()

    def _loss(self, loss: Any, made: Any, gradient: Any) -> float:
        """Return how far the loss and its gradient are off, the latter by what its dtype may be off."""
        gaps = made.float().double() - self.targets.double()
        right = float(gaps.square().sum()) / gaps.numel()
        due = gaps * (2 * self.scale / gaps.numel())
        apart = (gradient.float().double() - due).square().sum().sqrt() / due.square().sum().sqrt()
        share = float(apart) / PRODUCTS[str(self.dtype)[6:]]
        return verified_products.worst([abs(float(loss) - right) / right, LOSS * share])

    def _update(self, weight: Any, seen: LayerTensors, moved: Any) -> float:
        """Return how far the new weight is from the formula's, in units in the last place of the largest one."""
        due = MOMENTUM * moved + weight.grad.double()
        right = seen.weight.double() - RATE / self.scale * due
        return float((weight.double() - right).abs().max() / (_ULP * right.abs().max()))


class LayerTensors(NamedTuple):
    """What went into a layer, the weight that it met, and what came out; both ends keep their gradients."""

    input: Any
    weight: Any
    output: Any


@contextlib.contextmanager
def watched(layers: Sequence[Any]) -> Iterator[list[LayerTensors]]:
    """Record what each of the layers does meanwhile, in the order in which they are called."""
    seen: list[LayerTensors] = []
    hooks = [layer.register_forward_hook(lambda *given: seen.append(_seen(*given))) for layer in layers]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def product_errors(torch: Any, layers: Sequence[Any], seen: Sequence[LayerTensors], dtype: Any) -> dict[str, float]:
    """Return how far the products of linear layers without bias are off, in the forward and the backward pass."""

    def error(name: str, layer: Any, one: LayerTensors) -> float:
        made, upstream = one.output, one.output.grad
        given, weight = one.input.to(dtype), one.weight.to(dtype)
        if name == "forward":
            return verified_products.error(torch, given, weight, made)
        if name == "weights' gradients":
            return verified_products.error(torch, upstream.t(), given.t(), layer.weight.grad)
        # The first layer's input has no gradient.
        return 0.0 if layer is layers[0] else verified_products.error(torch, upstream, weight.t(), one.input.grad)

    names = ("forward", "weights' gradients", "inputs' gradients")
    return {name: verified_products.worst([error(name, *pair) for pair in zip(layers, seen)]) for name in names}


def _seen(layer: Any, given: Any, made: Any) -> LayerTensors:
    for tensor in (given[0], made):
        if tensor.requires_grad:
            tensor.retain_grad()
    return LayerTensors(given[0], layer.weight.detach().clone(), made)


def _bend(torch: Any, below: LayerTensors, above: LayerTensors) -> float:
    """Return how many elements are not bent at zero, on the way there and back."""
    flat, passed = below.output.detach(), above.input.grad
    differing = above.input.detach().ne(torch.where(flat > 0, flat, 0 * flat))
    back = below.output.grad.ne(torch.where(flat > 0, passed, 0 * passed))
    return float(differing.sum() + back.sum())
