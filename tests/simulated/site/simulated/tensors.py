"""Tensors that lie on the CPU and say that they lie on a GPU: their marks, and how torch functions carry them on."""

# ruff: noqa: ARG001, ARG005, B905, EM101, EM102, FBT001, FBT002, SLF001, TRY003 (it stands in for torch: its names, signatures and words)

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from . import gpu, speed

_MARK = "_simulated"


def mark_of(tensor: Any) -> Any:
    """Return the GPU that a tensor is on, None for the CPU's; one sharded over a mesh of GPUs is on the current one."""
    held = getattr(tensor, "__dict__", {})
    if _MARK not in held and type(tensor).__name__ == "DTensor" and tensor.device_mesh.device_type == "cuda":
        return gpu.current_of(sys.modules["torch"])
    return held.get(_MARK)


def marked(torch: Any, actual: Any, device: Any) -> Any:
    """Return what a function gave with every tensor in it marked."""
    if isinstance(actual, torch.Tensor):
        if device is None:
            actual.__dict__.pop(_MARK, None)
        else:
            actual.__dict__[_MARK] = device
    elif isinstance(actual, (list, tuple)):
        for one in actual:
            marked(torch, one, device)
    return actual


def install(torch: Any) -> None:
    base = torch._C.TensorBase if hasattr(torch._C, "TensorBase") else torch._C._TensorBase
    plain = base.device
    torch.Tensor.device = property(lambda self: mark_of(self) or plain.__get__(self))
    torch.Tensor.is_cuda = property(lambda self: mark_of(self) is not None)
    torch.Tensor.is_cpu = property(lambda self: mark_of(self) is None)
    torch.Tensor.pin_memory = lambda self, device=None: _pinned(torch, self)
    torch.Tensor.is_pinned = lambda self, device=None: bool(self.__dict__.get("_pinned"))
    torch.Tensor.get_device = lambda self: -1 if mark_of(self) is None else mark_of(self).index
    torch.Tensor.cuda = lambda self, device=None, non_blocking=False, **_: self.to(
        torch.device("cuda", gpu.index_of(device))
    )
    torch.Tensor.record_stream = lambda self, stream: None
    made = torch.nn.Parameter.__new__

    def parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        return marked(torch, made(cls, data, requires_grad), mark_of(data))

    torch.nn.Parameter.__new__ = parameter
    wrapper = torch.Tensor._make_wrapper_subclass

    def wrapping(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        place, plain = gpu.place_of(torch, device), None if device is None else torch.device("cpu")
        return marked(torch, wrapper(cls, *args, device=plain, **kwargs), place)

    torch.Tensor._make_wrapper_subclass = staticmethod(wrapping)
    if hasattr(torch._utils, "_get_obj_state"):
        state = torch._utils._get_obj_state
        torch._utils._get_obj_state = lambda value: _without_marks(state(value))
    base_state = torch.Tensor.__reduce_ex__
    torch.Tensor.__reduce_ex__ = lambda self, protocol: _reduced(self, protocol, base_state)


def _without_marks(state: Any) -> Any:
    return {k: v for k, v in state.items() if k not in (_MARK, "_pinned")} if isinstance(state, dict) else state


def _reduced(tensor: Any, protocol: int, reduce: Callable[..., Any]) -> Any:
    kept = {name: tensor.__dict__.pop(name) for name in (_MARK, "_pinned") if name in tensor.__dict__}
    try:
        return reduce(tensor, protocol)
    finally:
        tensor.__dict__.update(kept)


def _pinned(torch: Any, tensor: Any) -> Any:
    gpu.Gpu.start()
    if mark_of(tensor) is not None:
        raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
    copy = tensor.clone()
    copy.__dict__["_pinned"] = True
    return copy


@functools.cache
def mode_of(torch: Any) -> Any:
    """Return the mode that sees every torch function on its way."""

    def handle(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _called(torch, self, func, list(args), dict(kwargs or {}))

    return type("Simulated", (torch.overrides.TorchFunctionMode,), {"__torch_function__": handle})


def _called(torch: Any, mode: Any, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    name = getattr(func, "__name__", "")
    if name == "__set__" and getattr(getattr(func, "__self__", None), "__name__", "") == "data":
        func(*args)
        return marked(torch, args[0], mark_of(args[1]))
    if func is torch.device or name in {"backward", "_parse_to"}:
        return func(*args, **kwargs)
    tensors = [t for t in speed.flat([args, kwargs]) if isinstance(t, torch.Tensor)]
    places = {mark_of(t) for t in tensors if t.dim()} or {mark_of(t) for t in tensors}
    where = next((p for p in places if p is not None), None)
    if name in {"cpu", "tolist", "item", "numpy", "__array__"}:
        if name in {"numpy", "__array__"} and where is not None:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
        where, given = None, True
        args = [args[0], *args[1:]]
        if name == "cpu":
            return marked(torch, func(*args, **kwargs).clone(), None)
    else:
        where, given = _overflows(torch, name, args, kwargs, where)
    if len(places) > 1 and name not in speed.HOST_AND_CARD and not given and name[:2] != "__":
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            + " and ".join(str(p or "cpu") for p in places)
            + f"! (in {name})"
        )
    made_by = kwargs.get("generator")
    if made_by is not None and (made_by.place is None) != (where is None):
        raise RuntimeError(f"Expected a '{(where or torch.device('cpu')).type}' device type for generator")
    actual = _run(torch, name, func, args, kwargs, where)
    if where is not None or places - {None}:
        gpu.Gpu.works(speed.cost(torch, name, tensors, actual, places))
    return marked(torch, actual, where)


def _overflows(torch: Any, name: str, args: list[Any], kwargs: dict[str, Any], where: Any) -> tuple[Any, bool]:
    """Return where the result belongs, and whether a device was asked for; the CPU is put in its place."""
    requests: Any = None
    given = False
    if kwargs.get("device") is not None:
        requests, given, kwargs["device"] = gpu.place_of(torch, kwargs["device"]), True, "cpu"
    for number, one in enumerate(args):
        if isinstance(one, torch.device) or (name == "to" and isinstance(one, str)):
            requests, given, args[number] = gpu.place_of(torch, one), True, torch.device("cpu")
    if name == "to" and len(args) > 1 and isinstance(args[1], torch.Tensor):
        return mark_of(args[1]), True
    if name == "copy_":
        return mark_of(args[0]), True
    return (requests, True) if given else (where, False)


def _run(torch: Any, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], where: Any) -> Any:
    if where is None:
        kwargs.pop("pin_memory", None) and gpu.Gpu.start()
        return func(*args, **kwargs)
    _no_integer_products(torch, name, args)
    if name == "_scaled_mm":
        return _scaled(torch, *args, **kwargs)
    actual = func(*args, **kwargs)
    if name == "to" and isinstance(args[0], torch.Tensor) and actual is args[0] and mark_of(args[0]) != where:
        return actual.clone() if not actual.is_leaf or not actual.requires_grad else actual.detach().clone()
    return actual


def _no_integer_products(torch: Any, name: str, args: list[Any]) -> None:
    integers = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)
    if name in speed.PRODUCTS and any(isinstance(a, torch.Tensor) and a.dtype in integers for a in args[:2]):
        raise RuntimeError('"addmm_cuda" not implemented for integers')


def _scaled(torch: Any, left: Any, right: Any, *args: Any, **kwargs: Any) -> Any:
    """Multiply 8-bit floats as cuBLASLt takes them: rows by columns, sizes by 16, scales as fp32 tensors of the GPU."""
    names = ("scale_a", "scale_b", "bias", "scale_result", "out_dtype", "use_fast_accum")
    given = {**dict(zip(names, args)), **kwargs}
    if set(given) - set(names) or "scale_a" not in given or "scale_b" not in given:
        raise TypeError(f"_scaled_mm() got {sorted(given)}")
    if left.dtype not in (torch.float8_e4m3fn, torch.float8_e5m2) or gpu.CAPABILITY < (8, 9):
        raise RuntimeError(
            "torch._scaled_mm is only supported on gpu.CUDA devices with compute capability >= 9.0 or 8.9"
        )
    if left.dtype == right.dtype == torch.float8_e5m2:
        raise RuntimeError("Multiplication of two Float8_e5m2 matrices is not supported")
    if left.stride(1) != 1 or right.stride(0) != 1:
        raise RuntimeError("mat1 must be row_major, mat2 must be col_major")
    if left.shape[1] % 16 or right.shape[0] % 16 or right.shape[1] % 16:
        raise RuntimeError("Expected trailing dimension of mat1 to be divisible by 16")
    for scale in (given["scale_a"], given["scale_b"]):
        if scale.dtype != torch.float32 or mark_of(scale) is None:
            raise RuntimeError("scale must be a float32 tensor on the GPU")
    product = (left.float() * given["scale_a"]) @ (right.float() * given["scale_b"])
    return product.to(given.get("out_dtype") or left.dtype)
