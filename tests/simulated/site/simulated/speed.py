"""What time things take on the simulated GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# TFLOP/s by bytes of an element; bytes a second.
PEAK = {1: 1200e12, 2: 700e12, 4: 50e12, 8: 30e12}
BANDWIDTH = {"hbm": 2.8e12, "link": 440e9, "host": 50e9}
LAUNCH = 1e-8
PRODUCTS = {"mm", "matmul", "bmm", "addmm", "linear", "__matmul__", "__rmatmul__", "_scaled_mm", "baddbmm"}
HOST_AND_CARD = {"copy_", "to", "cpu", "__setitem__", "cuda", "item", "tolist", "index_put_", "__getitem__", "set_"}
HOST_AND_CARD |= {"_has_compatible_shallow_copy_type"}

TF32 = 400e12


def flat(actual: Any) -> Iterator[Any]:
    if isinstance(actual, dict):
        actual = list(actual.values())
    if isinstance(actual, (list, tuple)):
        for one in actual:
            yield from flat(one)
    else:
        yield actual


def _storage(tensor: Any) -> int:
    """Return where its elements lie; a sharded tensor has none of its own."""
    return 0 if type(tensor).__name__ == "DTensor" else int(tensor.untyped_storage().data_ptr())


def cost(torch: Any, name: str, tensors: list[Any], actual: Any, places: set[Any]) -> float:
    """Return the seconds that a GPU takes for this."""
    outputs = [t for t in flat(actual) if isinstance(t, torch.Tensor)]
    if not name.endswith("_") and name not in PRODUCTS:
        known = {_storage(t) for t in tensors}
        outputs = [t for t in outputs if _storage(t) not in known]
    size = sum(t.numel() * t.element_size() for t in outputs)
    if name in PRODUCTS and len(tensors) > 1 and outputs and tensors[0].dim():
        matrices = [t for t in tensors if t.dim() > 1] or tensors
        peak = PEAK[matrices[0].element_size()]
        if matrices[0].dtype is torch.float32 and torch.get_float32_matmul_precision() != "highest":
            peak = TF32
        return float(2 * outputs[0].numel() * int(matrices[0].shape[-1]) / peak)
    if name in HOST_AND_CARD and len(places) > 1 and None in places:
        pinned = any(t.__dict__.get("_pinned") for t in tensors)
        return float(size / BANDWIDTH["host"] * (1 if pinned else 4))
    if name in HOST_AND_CARD and len(places) > 1:
        return float(size / BANDWIDTH["link"])
    return float(LAUNCH + 2 * size / BANDWIDTH["hbm"])
