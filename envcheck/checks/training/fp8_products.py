"""Products of 8-bit floating point numbers as torch has them: who has them, how they are called, how numbers get there.

torch._scaled_mm came with 2.1. Until 2.4 its scales were keywords and it gave (product, largest element); since 2.5 it
gives the product (torchgen's native_functions.yaml of 2.1.2, 2.4.1 and 2.15.0). The keywords are the same in all.
"""

from __future__ import annotations

import re
from typing import Any

# FP8 units came with Ada and Hopper; torch asked for 9.0 before 2.3.
# What ATen's dispatcher, a kernel's own test of its inputs, and a signature of another torch say.
NO_KERNEL = re.compile(
    r"Could not run 'aten::_scaled_mm|not implemented for '|(not|only) (yet )?supported|"
    r"unexpected keyword argument|missing \d+ required|required positional argument"
)
FLOAT8_SINCE, AT_FIRST, WIDER = (8, 9), (9, 0), (2, 3)


def lacking(torch: Any, device: Any, capability: tuple[int, ...]) -> str:
    """Return why this device or this torch has no FP8 product; "" where it has to have one."""
    if not hasattr(torch, "_scaled_mm") or not hasattr(torch, "float8_e4m3fn"):
        return f"torch {torch.__version__} has no torch._scaled_mm"
    if device.type != "cuda":
        return _refused(torch, device)
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if tuple(capability) < FLOAT8_SINCE:
        return "not in this GPU"
    return "torch before 2.3" if tuple(capability) < AT_FIRST and version < WIDER else ""


def _refused(torch: Any, device: Any) -> str:
    """Try: no table says which torch has FP8 for CPUs. Only what says that there is no kernel counts; others raise."""
    ones = torch.ones(16, 16, device=device)
    try:
        multiply(torch, *quantized(torch, ones, torch.float8_e5m2), *quantized(torch, ones, torch.float8_e4m3fn))
    except (RuntimeError, TypeError) as error:
        if not NO_KERNEL.search(str(error)):
            raise
        return f"torch {torch.__version__} on a CPU: {str(error).strip().splitlines()[0][:120]}"
    return ""


def quantized(torch: Any, tensor: Any, dtype: Any) -> tuple[Any, Any]:
    """Return the tensor in an FP8 dtype, its largest element at the dtype's largest, and the scale to undo that."""
    most = torch.finfo(dtype).max
    scale = tensor.abs().max().float().clamp(min=1e-12) / most
    return (tensor.float() / scale).clamp(-most, most).to(dtype), scale


def multiply(torch: Any, left: Any, left_scale: Any, right: Any, right_scale: Any) -> Any:
    """Return left @ right.T in bfloat16; both have their rows in memory one after the other, as FP8 units want them."""
    product = torch._scaled_mm(  # noqa: SLF001 (torch has no public name for it before 2.10)
        left, right.t(), scale_a=left_scale, scale_b=right_scale, out_dtype=torch.bfloat16
    )
    return product[0] if isinstance(product, tuple) else product
