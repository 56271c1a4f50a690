"""The smallest operation of each known extension that has one, compared with torch or with plain arithmetic.

A function runs on a device and returns (result, expected): tensors, or lists of numbers. The result must lie on that
device where the extension works on tensors. The inputs are small and the same in each run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from envcheck.checks.extensions import gpu_operations, operations_without_torch

Result = tuple[Any, Any]


class Operation(NamedTuple):
    """An operation: its name, what computes it, and whether it also runs on a CPU.

    `tolerance` is the largest difference from the expected result, relative to the largest expected number.
    """

    name: str
    compute: Callable[[str], Result]
    tolerance: float = 0.0
    on_cpu: bool = False


def nms(device: str) -> Result:
    """Keep the best of two boxes that overlap, and the one apart."""
    import torch
    import torchvision

    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 1, 11, 11], [20, 20, 30, 30]], device=device)
    kept = torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7], device=device), 0.5)
    return kept, [0, 2]


def forced_align(device: str) -> Result:
    """Align two labels with four frames, each of which is sure of one."""
    import torch
    import torchaudio

    sure = [1, 1, 2, 2]
    chances = torch.full((1, 4, 3), 0.05)
    for frame, label in enumerate(sure):
        chances[0, frame, label] = 0.9
    targets = torch.tensor([[1, 2]], dtype=torch.int32, device=device)
    aligned, _ = torchaudio.functional.forced_align(chances.log().to(device), targets, blank=0)
    return aligned[0], sure


def decoded_audio(_device: str) -> Result:
    """Decode the samples of a WAV file: on the CPU on every machine, through FFmpeg."""
    import struct

    import torch
    from torchcodec.decoders import AudioDecoder

    samples = [1000 * ((7 * number) % 31 - 15) for number in range(1600)]
    data = struct.pack(f"<{len(samples)}h", *samples)
    head = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16000, 32000, 2, 16) + b"data" + struct.pack("<I", len(data))
    wav = b"RIFF" + struct.pack("<I", len(head) + len(data)) + head + data
    return AudioDecoder(wav).get_all_samples().data[0], torch.tensor(samples) / 32768


def int8_linear(device: str) -> Result:
    """Quantize the weights of a layer to 8 bits."""
    import torch
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 64).to(device)
    inputs = torch.randn(4, 64).to(device)
    expected = layer(inputs).detach()
    quantize_(layer, Int8WeightOnlyConfig())
    return layer(inputs).detach(), expected


def blockwise(device: str) -> Result:
    """Quantize numbers to 8 bits by blocks, and back."""
    import torch
    from bitsandbytes import functional

    numbers = torch.linspace(-1, 1, 4096, device=device)
    quantized, state = functional.quantize_blockwise(numbers)
    return functional.dequantize_blockwise(quantized, state), numbers


def scatter(device: str) -> Result:
    """Add numbers by index."""
    import torch
    import torch_scatter

    index = torch.tensor([0, 1, 0, 2], device=device)
    return torch_scatter.scatter(torch.tensor([1.0, 2, 3, 4], device=device), index, reduce="sum"), [4.0, 2, 4]


def segment_matmul(device: str) -> Result:
    """Multiply two segments with a matrix each."""
    import pyg_lib
    import torch

    inputs, weights = torch.ones(3, 4, device=device), torch.ones(2, 4, 2, device=device)
    weights[1] *= 2
    bounds = torch.tensor([0, 1, 3], device=device)
    return pyg_lib.ops.segment_matmul(inputs, bounds, weights), [[4.0, 4], [8, 8], [8, 8]]


def nearest(device: str) -> Result:
    """Find the nearest of three points."""
    import torch
    from pytorch3d.ops import knn_points

    points = torch.tensor([[[0.0, 0, 0], [1, 0, 0], [5, 0, 0]]], device=device)
    neighbours = knn_points(torch.tensor([[[0.9, 0, 0], [4.0, 0, 0]]], device=device), points, K=1)
    return neighbours.idx[0, :, 0], [1, 2]


# Numbers of 16 bits are 2**-9 (bfloat16) or 2**-12 (float16) of their size off; sums of products a few times that.
_HALF = 0.02
OPERATIONS: dict[str, Operation] = {
    "apex": Operation("amp_C.multi_tensor_scale", gpu_operations.scaled),
    "bitsandbytes": Operation("quantize_blockwise", blockwise, 0.05, on_cpu=True),
    "causal-conv1d": Operation("causal_conv1d_fn", gpu_operations.causal_convolution, _HALF),
    "deepspeed": Operation("FusedAdamBuilder.is_compatible", gpu_operations.deepspeed_compatible),
    "flash-attn": Operation("flash_attn_func", gpu_operations.flash_attention, _HALF),
    "flash-attn-4": Operation("flash_attn.cute.flash_attn_func", gpu_operations.flash_attention_4, _HALF),
    "flashinfer-python": Operation("flashinfer.norm.rmsnorm", gpu_operations.flashinfer_norm, _HALF),
    "mamba-ssm": Operation("selective_scan_fn", gpu_operations.selective_scan, _HALF),
    "pyg-lib": Operation("segment_matmul", segment_matmul, 1e-5, on_cpu=True),
    "pytorch3d": Operation("knn_points", nearest, on_cpu=True),
    "sglang-kernel": Operation("sgl_kernel.rmsnorm", gpu_operations.sglang_norm, _HALF),
    "torch-scatter": Operation("scatter", scatter, on_cpu=True),
    "torch-tensorrt": Operation("torch_tensorrt.compile", gpu_operations.tensorrt_linear, _HALF),
    "torchao": Operation("int8 weights", int8_linear, 0.03, on_cpu=True),
    "torchaudio": Operation("forced_align", forced_align, on_cpu=True),
    "torchcodec": Operation("AudioDecoder", decoded_audio, 1e-4, on_cpu=True),
    "torchvision": Operation("nms", nms, on_cpu=True),
    "transformer-engine": Operation("te.Linear", gpu_operations.transformer_linear, _HALF),
    "vllm": Operation("torch.ops._C.rms_norm", gpu_operations.vllm_norm, _HALF),
    "xformers": Operation("memory_efficient_attention", gpu_operations.xformers_attention, _HALF),
    "cupy-cuda12x": Operation("cupy.arange", operations_without_torch.cupy_squares),
    "faiss-gpu": Operation("IndexFlatL2", operations_without_torch.faiss_search, on_cpu=True),
    "numba-cuda": Operation("cuda.jit", operations_without_torch.numba_addition),
    "nvidia-dali-cuda120": Operation("fn.constant", operations_without_torch.dali_constant),
    "onnxruntime-gpu": Operation("InferenceSession", operations_without_torch.onnx_addition, on_cpu=True),
}
# The same code under another name.
OPERATIONS |= {
    "sgl-kernel": OPERATIONS["sglang-kernel"],
    "cupy-cuda13x": OPERATIONS["cupy-cuda12x"],
    "faiss-gpu-cu12": OPERATIONS["faiss-gpu"],
    "nvidia-dali-cuda130": OPERATIONS["nvidia-dali-cuda120"],
    "transformer-engine-torch": OPERATIONS["transformer-engine"],
}
# These return what is on the CPU: a decoder, and libraries with arrays of their own.
_RETURN_NUMBERS = {"AudioDecoder", "FusedAdamBuilder.is_compatible"}


def devices(*, gpu: bool) -> list[str]:
    """Return one GPU of each model that torch sees, or the CPU."""
    if not gpu:
        return ["cpu"]
    import torch

    models: dict[tuple[Any, Any], str] = {}
    for index in range(torch.cuda.device_count()):
        models.setdefault((torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index)), f"cuda:{index}")
    return list(models.values())


def run(operation: Operation, device: str) -> dict[str, Any]:
    """Compute an operation on a device, and return how far it is off, and where its result was."""
    result, expected = operation.compute(device)
    numbers, right = _numbers(result), _numbers(expected)
    on = str(getattr(result, "device", "")) if operation.name not in _RETURN_NUMBERS else ""
    return {
        "name": operation.name,
        "device": device,
        "on": on,
        "count": [len(numbers), len(right)],
        "off": _off(numbers, right),
        "tolerance": operation.tolerance,
    }


def _numbers(values: Any) -> list[float]:
    flat = values.float().cpu().flatten().tolist() if hasattr(values, "flatten") and hasattr(values, "cpu") else values
    return [float(v) for part in flat for v in (part if isinstance(part, (list, tuple)) else [part])]


def _off(numbers: list[float], right: list[float]) -> float | None:
    """Return the largest difference relative to the largest expected number; None if one of them is no number."""
    if len(numbers) != len(right) or not right:
        return None
    scale = max(map(abs, right)) or 1.0
    differences = [abs(a - b) / scale for a, b in zip(numbers, right)]
    return max(differences) if all(difference < float("inf") for difference in differences) else None
