"""Autocast of the simulated GPU, for tensors that lie on the CPU.

The CPU's autocast is switched on in place of CUDA's. Its lists are alike but for what CUDA computes in float32 and the
CPU leaves as it finds it: these kernels are replaced, at the dispatcher, as ATen/autocast_mode.h says for CUDA.
"""

# ruff: noqa: EM101, FBT002, SLF001, TRY003 (it stands in for torch: its names, signatures and words)

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from . import gpu

# AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE, as far as the checks call them.
FLOAT32 = ("softmax.int", "log_softmax.int", "nll_loss", "cross_entropy_loss", "mse_loss")


@functools.cache
def cast_as_cuda(torch: Any) -> Any:
    """Replace the kernels of the CPU's autocast, once in this process; return what keeps them registered."""
    library = torch.library.Library("aten", "IMPL", "AutocastCPU")
    for name in FLOAT32:
        library.impl(name, _kernel(torch, name))
    return library


def _kernel(torch: Any, name: str) -> Callable[..., Any]:
    """Return what runs an operator in float32, without autocast."""
    packet, _, overload = name.partition(".")
    run = getattr(getattr(torch.ops.aten, packet), overload or "default")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def cast(value: Any) -> Any:
        eligible = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype is not torch.float64
        return value.float() if eligible else value

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return run(*map(cast, args), **{name: cast(value) for name, value in kwargs.items()})

    return kernel


def install(torch: Any) -> None:
    """Have the CPU's autocast answer where CUDA's is meant."""
    real = torch.amp.autocast_mode.autocast
    begin = real.__init__

    def entered(self: Any, device_type: str, dtype: Any = None, enabled: Any = True, cache_enabled: Any = None) -> None:
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
