"""What autocast owes each operation: the dtypes, by operation and device, and the contexts it is used in.

Source: pytorch.org/docs/stable/amp.html, "Autocast Op Reference" (CUDA and CPU lists; those rows that torch 1.13 has,
too). Operations that are in no list keep the dtype of their inputs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from envcheck.checks.env.support.training import promise_cases

_SIDE = 4
# Seen: 2.1 keeps the dtype, 2.4 casts.
ATTENTION_ON_CPU_SINCE = (2, 4)


class Inputs(NamedTuple):
    """What operations are tried on: torch, a float32 matrix (4 x 4), and the same in the lower dtype."""

    torch: Any
    single: Any
    lower: Any


Operation = Callable[[Inputs], Any]


def _functional(name: str, *, batched: int = 0) -> Operation:
    """Return a loss or layer of torch.nn.functional on two lower inputs, with so many dimensions put before them."""

    def call(i: Inputs) -> Any:
        one = i.lower.reshape((1,) * batched + tuple(i.lower.shape))
        return getattr(i.torch.nn.functional, name)(one, one)

    return call


def _labels(i: Inputs) -> Any:
    return i.torch.arange(_SIDE, device=i.single.device)


def _module(name: str, *arguments: int, dimensions: int = 2) -> Operation:
    def call(i: Inputs) -> Any:
        module = getattr(i.torch.nn, name)(*arguments).to(i.single.device)
        given = i.single.reshape((1,) * (dimensions - 2) + (_SIDE, _SIDE))
        result = module(given)
        return result[0] if isinstance(result, tuple) else result

    return call


LOWER: dict[str, Operation] = {
    "linear": lambda i: i.torch.nn.functional.linear(i.single, i.single, i.single[0]),
    "nn.Linear": _module("Linear", _SIDE, 3),
    "matmul": lambda i: i.torch.matmul(i.single, i.single),
    "@": lambda i: i.single @ i.single,
    "mm": lambda i: i.torch.mm(i.single, i.single),
    "bmm": lambda i: i.torch.bmm(i.single[None], i.single[None]),
    "addmm": lambda i: i.torch.addmm(i.single, i.single, i.single),
    "baddbmm": lambda i: i.torch.baddbmm(i.single[None], i.single[None], i.single[None]),
    "einsum": lambda i: i.torch.einsum("ij,jk->ik", i.single, i.single),
    "conv1d": lambda i: i.torch.nn.functional.conv1d(i.single[None], i.single[None]),
    "conv2d": lambda i: i.torch.nn.functional.conv2d(i.single[None, None], i.single[None, None, :2, :2]),
    "conv3d": lambda i: i.torch.nn.functional.conv3d(i.single[None, None, None], i.single[None, None, None, :2, :2]),
    "nn.Conv2d": _module("Conv2d", 1, 2, 3, dimensions=4),
    "conv_transpose2d": lambda i: i.torch.nn.functional.conv_transpose2d(
        i.single[None, None], i.single[None, None, :2, :2]
    ),
    "conv_transpose1d": lambda i: i.torch.nn.functional.conv_transpose1d(i.single[None], i.single[:, None]),
    "conv_transpose3d": lambda i: i.torch.nn.functional.conv_transpose3d(
        i.single[None, None, None], i.single[None, None, None, :2, :2]
    ),
    "attention": lambda i: i.torch.nn.functional.scaled_dot_product_attention(*[i.single[None, None]] * 3),
}
_GPU_LOWER: dict[str, Operation] = {
    "mv": lambda i: i.torch.mv(i.single, i.single[0]),
    "nn.GRUCell": _module("GRUCell", _SIDE, 3),
    "nn.LSTMCell": _module("LSTMCell", _SIDE, 3),
}
SINGLE: dict[str, Operation] = {
    "mse_loss": _functional("mse_loss"),
    "l1_loss": _functional("l1_loss"),
    "smooth_l1_loss": _functional("smooth_l1_loss"),
    "binary_cross_entropy_with_logits": _functional("binary_cross_entropy_with_logits"),
    "cross_entropy": lambda i: i.torch.nn.functional.cross_entropy(i.lower, _labels(i)),
    "nll_loss": lambda i: i.torch.nn.functional.nll_loss(i.lower, _labels(i)),
    "prod": lambda i: i.lower.prod(),
    "cdist": lambda i: i.torch.cdist(i.lower, i.lower),
}
_GPU_SINGLE: dict[str, Operation] = {
    "softmax": lambda i: i.torch.softmax(i.lower, 0),
    "log_softmax": lambda i: i.torch.log_softmax(i.lower, 0),
    "layer_norm": lambda i: i.torch.nn.functional.layer_norm(i.lower, (_SIDE,)),
    "group_norm": lambda i: i.torch.nn.functional.group_norm(i.lower[None], 2),
    "exp": lambda i: i.lower.exp(),
    "log": lambda i: i.lower.abs().log(),
    "pow": lambda i: i.lower.pow(2),
    "sum": lambda i: i.lower.sum(),
    "cumsum": lambda i: i.lower.cumsum(0),
    "norm": lambda i: i.lower.norm(),
    "rsqrt": lambda i: i.lower.abs().rsqrt(),
    "softplus": lambda i: i.torch.nn.functional.softplus(i.lower),
    "cosine_similarity": lambda i: i.torch.nn.functional.cosine_similarity(i.lower, i.lower),
}
WIDEST: dict[str, Operation] = {
    "cat": lambda i: i.torch.cat([i.single, i.lower]),
    "stack": lambda i: i.torch.stack([i.lower, i.single]),
    "add": lambda i: i.lower + i.single,
}
SAME: dict[str, Operation] = {
    "relu": lambda i: i.torch.relu(i.lower),
    "gelu": lambda i: i.torch.nn.functional.gelu(i.lower),
    "max_pool2d": lambda i: i.torch.nn.functional.max_pool2d(i.lower[None], 2),
}
# In no list of lower dtypes: float32 inputs give float32.
KEPT: dict[str, Operation] = {
    "softmax of float32": lambda i: i.torch.softmax(i.single, 0),
    "functional softmax of float32": lambda i: i.torch.nn.functional.softmax(i.single, dim=0),
    "log_softmax of float32": lambda i: i.torch.nn.functional.log_softmax(i.single, dim=0),
    "layer_norm of float32": lambda i: i.torch.nn.functional.layer_norm(i.single, (_SIDE,)),
    "nn.LayerNorm of float32": _module("LayerNorm", _SIDE),
    "nn.Softmax of float32": _module("Softmax", 0),
    "nn.BatchNorm1d of float32": _module("BatchNorm1d", _SIDE),
    "group_norm of float32": lambda i: i.torch.nn.functional.group_norm(i.single[None], 2),
    "exp of float32": lambda i: i.single.exp(),
    "sum of float32": lambda i: i.single.sum(),
    "mean of float32": lambda i: i.single.mean(),
    "norm of float32": lambda i: i.single.norm(),
    "relu of float32": lambda i: i.torch.relu(i.single),
    "gelu of float32": lambda i: i.torch.nn.functional.gelu(i.single),
    "product by element of float32": lambda i: i.single * i.single,
}


def operations(*, gpu: bool) -> dict[str, tuple[Operation, str]]:
    """Return by name each operation and whether it owes the "lower" dtype or "float32"."""
    lower = {**LOWER, **SAME, **(_GPU_LOWER if gpu else {})}
    single = {**SINGLE, **WIDEST, **KEPT, **(_GPU_SINGLE if gpu else {})}
    due: dict[str, tuple[Operation, str]] = {name: (call, "lower") for name, call in lower.items()}
    return {**due, **{name: (call, "float32") for name, call in single.items()}}


CONTEXTS = (
    "switched off inside",
    "switched on inside",
    "left again",
    "as a decorator",
    "backward",
    "a weight changed",
    "without a cache",
    "custom_fwd and custom_bwd",
)


class AutocastTrials:
    """The cases of one lower dtype on one device."""

    def __init__(self, torch: Any, device: Any, dtype: str) -> None:
        self.torch, self.device, self.dtype = torch, device, getattr(torch, dtype)
        side = [[((3 * row + 5 * column) % 7 - 3) / 4 for column in range(_SIDE)] for row in range(_SIDE)]
        self.single = torch.tensor(side, dtype=torch.float32, device=device)

    def cases(self) -> dict[str, promise_cases.Case]:
        """Return a case for each operation and for each context."""
        due = operations(gpu=self.device.type == "cuda")
        cases: dict[str, promise_cases.Case] = {name: partial(self.operation, *due[name]) for name in due}
        tries = (self.off_inside, self.on_inside, self.left, self.decorator, self.backward, self.changed)
        more = (self.uncached, self.custom)
        return {**cases, **dict(zip(CONTEXTS, (*tries, *more)))}

    def autocast(self, **options: Any) -> Any:
        """Return the context; Absent where this torch says that it does not have it for this dtype and device."""
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            context = self.torch.autocast(self.device.type, dtype=self.dtype, **options)
        refused = [str(w.message) for w in warned if "target dtype is not supported. Disabling" in str(w.message)]
        if refused:
            raise promise_cases.AbsentFeature(refused[0].replace("\n", " "))
        return context

    def operation(self, call: Operation, owed: str) -> str | None:
        """Try one operation; return which dtype it gave in place of the one it owes."""
        if call is LOWER["attention"]:
            self.has_attention()
        transposed = call in [LOWER[f"conv_transpose{dimensions}d"] for dimensions in (1, 2, 3)]
        if transposed and self.device.type == "cpu" and self.torch.__version__.startswith("1."):
            message = f"CPU autocast of torch {self.torch.__version__} has no transposed convolution in its list"
            raise promise_cases.AbsentFeature(message)
        with self.autocast():
            result = call(Inputs(self.torch, self.single, self.single.to(self.dtype)))
        return self.unlike(result, self.dtype if owed == "lower" else self.torch.float32)

    def has_attention(self) -> None:
        """Raise Absent where attention is not there, or in no list of the CPU's yet."""
        version = tuple(int(part) for part in self.torch.__version__.split(".")[:2])
        if not hasattr(self.torch.nn.functional, "scaled_dot_product_attention"):
            message = f"torch {self.torch.__version__} has no scaled_dot_product_attention (2.0 has)"
            raise promise_cases.AbsentFeature(message)
        if self.device.type == "cpu" and version < ATTENTION_ON_CPU_SINCE:
            message = f"CPU autocast of torch {self.torch.__version__} leaves attention as it is (2.4 casts it)"
            raise promise_cases.AbsentFeature(message)

    @staticmethod
    def unlike(tensor: Any, dtype: Any) -> str | None:
        """Return what is wrong with a tensor's dtype, or None."""
        return None if tensor.dtype == dtype else f"gives {tensor.dtype} under autocast, not {dtype}"

    def product(self) -> Any:
        """Return a product of float32 matrices."""
        return self.single @ self.single

    def off_inside(self) -> str | None:
        """Switch off inside: float32 there, and the lower dtype again after it."""
        with self.autocast():
            with self.torch.autocast(self.device.type, enabled=False):
                inner = self.product()
            outer = self.product()
        return self.unlike(inner, self.torch.float32) or self.unlike(outer, self.dtype)

    def on_inside(self) -> str | None:
        """Switch on inside a context that is off: the lower dtype there, and float32 after it."""
        with self.torch.autocast(self.device.type, enabled=False):
            with self.autocast():
                inner = self.product()
            outer = self.product()
        return self.unlike(inner, self.dtype) or self.unlike(outer, self.torch.float32)

    def left(self) -> str | None:
        """Leave a context by an exception: float32 after it."""
        with contextlib.suppress(ZeroDivisionError), self.autocast():
            _ = 1 / 0
        return self.unlike(self.product(), self.torch.float32)

    def decorator(self) -> str | None:
        """Decorate a function: it casts while it runs, and nothing does after it."""
        return self.unlike(self.autocast()(self.product)(), self.dtype) or self.unlike(
            self.product(), self.torch.float32
        )

    def backward(self) -> str | None:
        """Go backward: weights get their gradients in float32, activations in the lower dtype."""
        weight = self.torch.nn.Parameter(self.single.clone())
        with self.autocast():
            hidden = self.single @ weight
            hidden.retain_grad()
            loss = (hidden @ weight).float().sum()
        loss.backward()
        return self.unlike(weight.grad, self.torch.float32) or self.unlike(hidden.grad, self.dtype)

    def changed(self) -> str | None:
        """Change a weight between two contexts: it is cast anew, as casts are kept for one context only."""
        weight = self.torch.nn.Parameter(self.single.clone())
        for factor in (1, 2):
            with self.autocast():
                sums = [(self.single @ weight).detach().cpu().tolist() for _ in range(2)]
            right = [
                [factor * sum(a * b for a, b in zip(row, column)) for column in zip(*self.single.cpu().tolist())]
                for row in self.single.cpu().tolist()
            ]
            if any(abs(x - y) > 0.05 for total in sums for a, b in zip(total, right) for x, y in zip(a, b)):  # noqa: PLR2004
                return f"a weight that was multiplied by {factor} gives {sums[0][0]}, not {right[0]}"
            with self.torch.no_grad():
                weight.mul_(2)
        return None

    def uncached(self) -> str | None:
        """Switch the cache of casts off: the same dtype, and a weight that changes inside is cast anew."""
        weight = self.torch.nn.Parameter(self.single.clone())
        with self.autocast(cache_enabled=False):
            first = self.single @ weight
            with self.torch.no_grad():
                weight.zero_()
            second = self.single @ weight
        stale = bool(second.detach().abs().max().item())
        return self.unlike(first, self.dtype) or ("a cast was kept with the cache off" if stale else None)

    def custom(self) -> str | None:
        """Call a function of one's own that asks for float32: forward gets it with autocast off, backward too."""
        amp, options = self.torch.amp, {"device_type": self.device.type}
        if not hasattr(amp, "custom_fwd"):
            if self.device.type == "cpu":
                message = f"torch {self.torch.__version__} has no torch.amp.custom_fwd (2.4 has)"
                raise promise_cases.AbsentFeature(message)
            amp, options = self.torch.cuda.amp, {}
        if importlib.util.find_spec("numpy") is None:
            message = "torch's custom_fwd looks at NumPy, which is not installed (2.4 raises NameError without it)"
            raise promise_cases.AbsentFeature(message)
        seen: list[Any] = []

        def forward(context: Any, one: Any) -> Any:
            context.save_for_backward(one)
            seen.extend((one, one @ one))
            return seen[-1]

        def backward(context: Any, gradient: Any) -> Any:
            seen.append(context.saved_tensors[0] @ gradient)
            return seen[-1]

        custom = amp.custom_fwd(forward, cast_inputs=self.torch.float32, **options)
        methods = {"forward": staticmethod(custom), "backward": staticmethod(amp.custom_bwd(backward, **options))}
        leaf = self.single.to(self.dtype).requires_grad_()
        with self.autocast():
            function: Any = type("Product", (self.torch.autograd.Function,), methods)
            result = function.apply(leaf)
        result.sum().backward()
        wrong = [tensor.dtype for tensor in seen if tensor.dtype != self.torch.float32]
        return f"float32 was requested, and {wrong[0]} was used" if wrong else None
