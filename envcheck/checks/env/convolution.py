"""A cuDNN that is loaded, and convolves something else.

Seen in the wild: a second cuDNN on the loader's path whose kernels do not match, TF32 left on for convolutions though
matmul has it off (torch's default), a deterministic algorithm that was chosen and is not there. Forward and both
gradients are compared with float64 on the CPU, from the very inputs the device got.
"""

from __future__ import annotations

from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided
from envcheck.checks.env import _group, _precision

CHECK = Check(
    promise="a convolution and its gradients equal the float64 reference, in every dtype the device has",
    level="standard",
    seconds=1.0,
    timeout=90.0,
    ranks=0,
)

IMAGES, CHANNELS, SIDE, FILTERS, KERNEL = 4, 32, 24, 48, 3
PARTS = ("output", "input gradient", "weight gradient")
ACCUMULATED = 1e-4


def limit(dtype: str) -> Limit:
    """Return the largest relative Frobenius error a correct convolution of this dtype has."""
    source = (
        "0.0001 for fp32, wide of the 0.000005 of Winograd algorithms and below the 0.0003 of TF32; plus 2 unit "
        "roundoffs of a 16-bit result (ours)"
    )
    return Limit(ACCUMULATED + 2 * _precision.UNIT_ROUNDOFF[dtype], "relative error", source, "at most")


def measure(rank: Rank) -> Measured:
    """Convolve in each dtype; say how far from float64 the output and the gradients are."""
    import torch

    device = _group.device_of(rank)
    torch.backends.cudnn.allow_tf32 = False
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else ()
    probe, errors = _errors(torch, device, torch.float32)
    entry: Measured = {**_group.standing(rank, probe), "capability": list(capability)}
    entry["cudnn"] = bool(torch.backends.cudnn.is_available() and torch.backends.cudnn.enabled)
    others = [dtype for dtype in _precision.dtypes(entry) if dtype != "float32"]
    found = {dtype: _errors(torch, device, getattr(torch, dtype))[1] for dtype in others}
    return {**entry, "errors": {"float32": errors, **found}}


def _errors(torch: Any, device: Any, dtype: Any) -> tuple[Any, dict[str, float]]:
    """Return an output that was made on the device, and each part's relative distance from the float64 one."""
    generator = torch.Generator().manual_seed(30)
    images = torch.randn(IMAGES, CHANNELS, SIDE, SIDE, generator=generator).to(dtype)
    weights = torch.randn(FILTERS, CHANNELS, KERNEL, KERNEL, generator=generator).to(dtype)
    upstream = torch.randn(IMAGES, FILTERS, SIDE, SIDE, generator=generator).to(dtype)
    made = _convolved(torch, images.to(device), weights.to(device), upstream.to(device))
    reference = _convolved(torch, images.double(), weights.double(), upstream.double())
    apart = [float((one.cpu().double() - other).norm() / other.norm()) for one, other in zip(made, reference)]
    return made[0], dict(zip(PARTS, apart))


def _convolved(torch: Any, images: Any, weights: Any, upstream: Any) -> tuple[Any, Any, Any]:
    images, weights = images.detach().requires_grad_(), weights.detach().requires_grad_()
    output = torch.nn.functional.conv2d(images, weights, padding=1)
    output.backward(upstream)
    return output.detach(), images.grad, weights.grad


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on the first rank, dtype and part whose error is above its bound, or is no number."""
    found = _group.problem(view, ranks, backend=False)
    if found is not None:
        return found
    worst = (-1.0, "", 0.0)
    for entry in ranks:
        if view.mode == "gpu" and entry.get("cudnn") is False:
            return failed(f"rank {entry['rank']} has no cuDNN", fix="install a torch wheel with cuDNN, or enable it")
        for dtype in _precision.dtypes(entry):
            errors, bound = (entry.get("errors") or {}).get(dtype) or {}, limit(dtype)
            if set(errors) != set(PARTS) or not isinstance(entry.get("cudnn"), bool):
                return undecided(f"rank {entry['rank']} measured no {dtype} convolution", fix="see the check's log")
            for part, error in errors.items():
                if not _group.finite(error) or not 0 <= error <= bound.value:
                    return _wrong(entry, dtype, part, error)
                worst = max(worst, (error / bound.value, dtype, error))
    return passed(
        f"convolutions agree with float64 on {len(ranks)} rank(s); closest to its bound: {worst[1]}",
        value=worst[2],
        unit="relative error",
        limit=limit(worst[1]),
        errors=ranks[0]["errors"],
    )


def _wrong(entry: Measured, dtype: str, part: str, error: Any) -> Outcome:
    return failed(
        f"rank {entry['rank']} on {entry['device']}: the {part} of a {dtype} convolution is off by {error}",
        fix="look for a second cuDNN (LD_LIBRARY_PATH, conda); on this GPU alone, run the matmul check and take it out",
        value=error if _group.finite(error) else None,
        unit="relative error",
        limit=limit(dtype),
        rank=entry["rank"],
        errors=entry["errors"],
    )
