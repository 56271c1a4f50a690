"""Autocast of the simulated GPU: CUDA's lists, which torch's own headers hold, for tensors that lie on the CPU.

The CPU's autocast is switched on in place of CUDA's. Its kernels are replaced, so that each operator is cast as
ATen/autocast_mode.h says for CUDA: at the dispatcher, where operators that others are made of are cast too. From then
on the CPU's own autocast casts by the same lists. No cast is kept for the context.
"""

# ruff: noqa: B905, EM101, EM102, SLF001, TRY003 (it stands in for torch: its names, signatures and words)

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import gpu

HEADER = Path("include", "ATen", "autocast_mode.h")
# The macro that lists a policy's operators, `_(name)` or `_(name, overload)`.
LISTS = {
    "lower": "AT_FORALL_LOWER_PRECISION_FP",
    "float32": "AT_FORALL_FP32",
    "float32 unless asked": "AT_FORALL_FP32_SET_OPT_DTYPE",
    "widest": "AT_FORALL_PROMOTE",
}
# Of AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE: what takes no dtype becomes the overload that takes one.
WITH_DTYPE = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
# What autocast_mode.cpp adds to the lists.
CUDNN = ("cudnn_convolution", "cudnn_convolution_transpose")
UNSAFE = "binary_cross_entropy"


def policies(torch: Any) -> dict[str, str]:
    """Return by operator how CUDA's autocast casts it; raise where that is not what torch has registered."""
    text = (Path(torch.__file__).parent / HEADER).read_text()
    data = {**dict.fromkeys(CUDNN, "lower"), **dict.fromkeys(WITH_DTYPE, "with dtype"), UNSAFE: "unsafe"}
    for policy, macro in LISTS.items():
        body = re.search(rf"#define {macro}\(_\)((?:.*\\\n)+.*)", text)
        rows = re.findall(r"_\((\w+)(?:,\s*(\w+))?\)", body.group(1) if body else "")
        data.update({f"{name}.{overload}" if overload else name: policy for name, overload in rows})
    there = {name.partition("::")[2] for name in _registered(torch, "AutocastCUDA")}
    if there != set(data):
        raise RuntimeError(f"CUDA's autocast has other operators than its lists: {sorted(there ^ set(data))}")
    return data


def _registered(torch: Any, key: str) -> list[str]:
    return [name for name in torch._C._dispatch_get_registrations_for_dispatch_key(key) if name.startswith("aten::")]


@functools.cache
def cast_as_cuda(torch: Any) -> Any:
    """Replace the kernels of the CPU's autocast, once in this process; return what keeps them registered."""
    library = torch.library.Library("aten", "IMPL", "AutocastCPU")
    due = policies(torch)
    for name in (name.partition("::")[2] for name in _registered(torch, "AutocastCPU")):
        if name not in due:
            library.impl(name, torch.library.fallthrough_kernel)
    for name, policy in due.items():
        library.impl(name, _kernel(torch, name, policy))
    return library


def _kernel(torch: Any, name: str, policy: str) -> Callable[..., Any]:
    """Return what runs an operator under autocast: cast the arguments, and go on without autocast."""
    packet, _, overload = WITH_DTYPE.get(name, name).partition(".")
    run = getattr(getattr(torch.ops.aten, packet), overload or "default")
    names = [argument.name for argument in run._schema.arguments]
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if policy == "unsafe":
            raise RuntimeError("torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.")
        given = {**dict(zip(names, args)), **kwargs}
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return run(**_due(torch, policy, given))

    return kernel


def _due(torch: Any, policy: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as the policy has them."""
    if policy in ("float32 unless asked", "with dtype"):
        first = next(iter(given.values()))
        requests = given.get("dtype") or (torch.float32 if _eligible(torch, first) else None)
        own = first.dtype if policy == "with dtype" else None
        return {**given, "dtype": requests or own}
    to = torch.float32
    if policy == "lower" or (policy == "widest" and not _single(torch, given)):
        to = torch.get_autocast_dtype("cpu")
    return {name: _cast(torch, value, to) for name, value in given.items()}


def _eligible(torch: Any, value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype is not torch.float64


def _single(torch: Any, given: dict[str, Any]) -> bool:
    """Return whether a float32 tensor is among the arguments."""
    parts = [one for value in given.values() for one in (value if isinstance(value, (list, tuple)) else [value])]
    return any(_eligible(torch, one) and one.dtype is torch.float32 for one in parts)


def _cast(torch: Any, value: Any, to: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(torch, one, to) for one in value)
    return value.to(to) if _eligible(torch, value) else value


def install(torch: Any) -> None:
    """Have the CPU's autocast answer where CUDA's is meant."""
    real = torch.amp.autocast_mode.autocast
    begin = real.__init__

    def entered(
        self: Any,
        device_type: str,
        dtype: Any = None,
        enabled: bool = True,  # noqa: FBT001, FBT002 (torch's)
        cache_enabled: Any = None,
    ) -> None:
        if device_type == "cuda":
            gpu.Gpu.start()
            if enabled and dtype is torch.bfloat16 and gpu.CAPABILITY < (8, 0):
                raise RuntimeError("Current CUDA Device does not support bfloat16. Please switch dtype to float16.")
            if enabled:
                cast_as_cuda(torch)
            device_type, dtype = "cpu", dtype or torch.float16
        begin(self, device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    real.__init__ = entered
    for name in ("is_autocast_enabled", "get_autocast_dtype"):
        setattr(torch, name, _of_cpu(getattr(torch, name)))


def _of_cpu(real: Callable[[str], Any]) -> Callable[..., Any]:
    return lambda device_type="cuda": real("cpu" if device_type == "cuda" else device_type)
