"""The smallest operation of each known extension that has one, compared with torch or with plain arithmetic.

A function runs on a device and returns (result, expected): tensors, or lists of numbers. The result must lie on that
device where the extension works on tensors. The inputs are small and the same in each run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Result = tuple[Any, Any]
_EPSILON = 1e-6


def _index(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def _cupy_squares(device: str) -> Result:
    import cupy

    with cupy.cuda.Device(_index(device)):
        return (cupy.arange(4) ** 2).get().tolist(), [0, 1, 4, 9]


def _numba_addition(device: str) -> Result:
    import numpy as np
    from numba import cuda

    def add(numbers: Any) -> None:
        place = cuda.grid(1)
        if place < numbers.size:
            numbers[place] += 1

    cuda.select_device(_index(device))
    numbers = cuda.to_device(np.arange(4, dtype=np.float32))
    cuda.jit(add)[1, 32](numbers)
    return numbers.copy_to_host().tolist(), [1, 2, 3, 4]


def _dali_constant(device: str) -> Result:
    from nvidia.dali import fn, pipeline_def

    def constant() -> Any:
        return fn.constant(fdata=[1.0, 2.0], device="gpu")

    pipeline = pipeline_def(constant, batch_size=1, num_threads=1, device_id=_index(device))()
    pipeline.build()
    return pipeline.run()[0].as_cpu().as_array()[0].tolist(), [1.0, 2.0]


def _faiss_search(device: str) -> Result:
    import faiss
    import numpy as np

    vectors = np.eye(4, 8, dtype=np.float32)
    index = faiss.IndexFlatL2(8)
    if device != "cpu":
        index = faiss.GpuIndexFlatL2(faiss.StandardGpuResources(), index)
    index.add(vectors)
    _, nearest = index.search(vectors[[2, 0]] * np.float32(0.9), 1)
    return nearest[:, 0].tolist(), [2, 0]


def _onnx_addition(device: str) -> Result:
    """Add a number to itself. On a GPU the session must have taken CUDA's provider, and not the CPU's."""
    import numpy as np
    import onnxruntime

    gpu = ("CUDAExecutionProvider", {"device_id": _index(device)})
    session = onnxruntime.InferenceSession(
        _doubling(), providers=["CPUExecutionProvider"] if device == "cpu" else [gpu, "CPUExecutionProvider"]
    )
    taken = session.get_providers()[0]
    if device != "cpu" and taken != gpu[0]:
        message = f"onnxruntime fell back to {taken}"
        raise RuntimeError(message)
    [result] = session.run(None, {"x": np.arange(4, dtype=np.float32)})
    return result.tolist(), [0, 2, 4, 6]


def _doubling() -> bytes:
    """Return a model of one node, y = x + x, in ONNX's protobuf (onnx.proto, IR version 8, opset 13)."""

    def part(field: int, content: bytes) -> bytes:
        return bytes([field << 3 | 2, len(content)]) + content

    shape = part(2, part(1, b"\x08\x04"))  # one dimension of four
    kind = part(2, part(1, b"\x08\x01" + shape))  # a tensor of float32
    node = part(1, b"x") + part(1, b"x") + part(2, b"y") + part(4, b"Add")
    graph = part(1, node) + part(2, b"g") + part(11, part(1, b"x") + kind) + part(12, part(1, b"y") + kind)
    return b"\x08\x08" + part(7, graph) + part(8, b"\x10\x0d")


def _random(device: str, *shape: int, dtype: str = "float16") -> Any:
    import torch

    torch.manual_seed(len(shape))
    return torch.randn(*shape).to(device=device, dtype=getattr(torch, dtype))


def _attention(device: str, compute: Any) -> Result:
    """Compute attention of (batch, sequence, heads, width), as flash-attn and xformers lay it out."""
    import torch

    query, keys, values = (_random(device, 1, 16, 1, 64) * scale for scale in (1.0, 0.5, 2.0))
    result = compute(query, keys, values)
    turned = [part.float().transpose(1, 2) for part in (query, keys, values)]
    expected = torch.softmax(turned[0] @ turned[1].transpose(2, 3) / 8.0, dim=-1) @ turned[2]
    return (result[0] if isinstance(result, tuple) else result), expected.transpose(1, 2).contiguous()


def _flash_attention(device: str) -> Result:
    from flash_attn import flash_attn_func

    return _attention(device, flash_attn_func)


def _flash_attention_4(device: str) -> Result:
    from flash_attn.cute import flash_attn_func

    return _attention(device, flash_attn_func)


def _xformers_attention(device: str) -> Result:
    from xformers.ops import memory_efficient_attention

    return _attention(device, memory_efficient_attention)


def _norm(device: str, compute: Any) -> Result:
    rows, weight = _random(device, 4, 128), _random(device, 128)
    result = compute(rows, weight)
    wide = rows.float()
    return result, wide * (wide.pow(2).mean(-1, keepdim=True) + _EPSILON).rsqrt() * weight.float()


def _vllm_norm(device: str) -> Result:
    """Normalize rows with the operator that vllm registers."""
    import importlib

    import torch

    importlib.import_module("vllm._custom_ops")

    def compute(rows: Any, weight: Any) -> Any:
        result = torch.empty_like(rows)
        torch.ops._C.rms_norm(result, rows, weight, _EPSILON)  # noqa: SLF001 (the name under which vllm registers it)
        return result

    return _norm(device, compute)


def _sglang_norm(device: str) -> Result:
    import sgl_kernel

    return _norm(device, lambda rows, weight: sgl_kernel.rmsnorm(rows, weight, _EPSILON))


def _flashinfer_norm(device: str) -> Result:
    """Normalize rows with flashinfer, which compiles the kernel unless its cache has it."""
    import flashinfer

    return _norm(device, lambda rows, weight: flashinfer.norm.rmsnorm(rows, weight, eps=_EPSILON))


def _causal_convolution(device: str) -> Result:
    """Convolve each channel with its own weights and with what came before."""
    import torch
    from causal_conv1d import causal_conv1d_fn

    signal, weight = _random(device, 1, 8, 32), _random(device, 8, 4)
    wide = torch.nn.functional.conv1d(signal.float(), weight.float()[:, None], padding=3, groups=8)
    return causal_conv1d_fn(signal, weight), wide[..., :32]


def _selective_scan(device: str) -> Result:
    """Scan a sequence, and compare with mamba's own loop in torch."""
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn, selective_scan_ref

    steps, delta = (_random(device, 1, 8, 16, dtype="float32") for _ in range(2))
    decay = -_random(device, 8, 4, dtype="float32").abs()
    inputs, outputs = (_random(device, 1, 4, 16, dtype="float32") for _ in range(2))
    arguments = (steps, delta.abs(), decay, inputs, outputs)
    return selective_scan_fn(*arguments), selective_scan_ref(*arguments)


def _transformer_linear(device: str) -> Result:
    import torch
    import transformer_engine.pytorch as te

    layer = te.Linear(16, 16, params_dtype=torch.bfloat16).to(device)
    inputs = _random(device, 16, 16, dtype="bfloat16")
    expected = torch.nn.functional.linear(inputs.float(), layer.weight.float(), layer.bias.float())
    return layer(inputs).detach(), expected.detach()


def _tensorrt_linear(device: str) -> Result:
    import torch
    import torch_tensorrt

    layer, inputs = torch.nn.Linear(16, 16).eval().to(device), _random(device, 4, 16, dtype="float32")
    compiled = torch_tensorrt.compile(layer, inputs=[inputs])
    return compiled(inputs).detach(), layer(inputs).detach()


def _scaled(device: str) -> Result:
    import amp_C
    import torch
    from apex.multi_tensor_apply import multi_tensor_applier

    numbers = torch.arange(8.0, device=device)
    result, overflow = torch.empty_like(numbers), torch.zeros(1, dtype=torch.int, device=device)
    multi_tensor_applier(amp_C.multi_tensor_scale, overflow, [[numbers], [result]], 2.0)
    return result, numbers * 2


def _deepspeed_compatible(_device: str) -> Result:
    """Return whether deepspeed could compile its fused Adam here: it needs nvcc of torch's CUDA."""
    from deepspeed.ops.op_builder import FusedAdamBuilder

    return [float(FusedAdamBuilder().is_compatible())], [1.0]


class Operation(NamedTuple):
    """An operation: its name, what computes it, and whether it also runs on a CPU.

    `tolerance` is the largest difference from the expected result, relative to the largest expected number.
    """

    name: str
    compute: Callable[[str], Result]
    tolerance: float = 0.0
    on_cpu: bool = False


def _nms(device: str) -> Result:
    """Keep the best of two boxes that overlap, and the one apart."""
    import torch
    import torchvision

    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 1, 11, 11], [20, 20, 30, 30]], device=device)
    kept = torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7], device=device), 0.5)
    return kept, [0, 2]


def _forced_align(device: str) -> Result:
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


def _decoded_audio(_device: str) -> Result:
    """Decode the samples of a WAV file: on the CPU on every machine, through FFmpeg."""
    import struct

    import torch
    from torchcodec.decoders import AudioDecoder

    samples = [1000 * ((7 * number) % 31 - 15) for number in range(1600)]
    data = struct.pack(f"<{len(samples)}h", *samples)
    head = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16000, 32000, 2, 16) + b"data" + struct.pack("<I", len(data))
    wav = b"RIFF" + struct.pack("<I", len(head) + len(data)) + head + data
    return AudioDecoder(wav).get_all_samples().data[0], torch.tensor(samples) / 32768


def _int8_linear(device: str) -> Result:
    import torch
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 64).to(device)
    inputs = torch.randn(4, 64).to(device)
    expected = layer(inputs).detach()
    quantize_(layer, Int8WeightOnlyConfig())
    return layer(inputs).detach(), expected


def _blockwise(device: str) -> Result:
    import torch
    from bitsandbytes import functional

    numbers = torch.linspace(-1, 1, 4096, device=device)
    quantized, state = functional.quantize_blockwise(numbers)
    return functional.dequantize_blockwise(quantized, state), numbers


def _scatter(device: str) -> Result:
    import torch
    import torch_scatter

    index = torch.tensor([0, 1, 0, 2], device=device)
    return torch_scatter.scatter(torch.tensor([1.0, 2, 3, 4], device=device), index, reduce="sum"), [4.0, 2, 4]


def _segment_matmul(device: str) -> Result:
    import pyg_lib
    import torch

    inputs, weights = torch.ones(3, 4, device=device), torch.ones(2, 4, 2, device=device)
    weights[1] *= 2
    bounds = torch.tensor([0, 1, 3], device=device)
    return pyg_lib.ops.segment_matmul(inputs, bounds, weights), [[4.0, 4], [8, 8], [8, 8]]


def _nearest(device: str) -> Result:
    import torch
    from pytorch3d.ops import knn_points

    points = torch.tensor([[[0.0, 0, 0], [1, 0, 0], [5, 0, 0]]], device=device)
    neighbours = knn_points(torch.tensor([[[0.9, 0, 0], [4.0, 0, 0]]], device=device), points, K=1)
    return neighbours.idx[0, :, 0], [1, 2]


# Numbers of 16 bits are 2**-9 (bfloat16) or 2**-12 (float16) of their size off; sums of products a few times that.
_HALF = 0.02
OPERATIONS: dict[str, Operation] = {
    "apex": Operation("amp_C.multi_tensor_scale", _scaled),
    "bitsandbytes": Operation("quantize_blockwise", _blockwise, 0.05, on_cpu=True),
    "causal-conv1d": Operation("causal_conv1d_fn", _causal_convolution, _HALF),
    "deepspeed": Operation("FusedAdamBuilder.is_compatible", _deepspeed_compatible),
    "flash-attn": Operation("flash_attn_func", _flash_attention, _HALF),
    "flash-attn-4": Operation("flash_attn.cute.flash_attn_func", _flash_attention_4, _HALF),
    "flashinfer-python": Operation("flashinfer.norm.rmsnorm", _flashinfer_norm, _HALF),
    "mamba-ssm": Operation("selective_scan_fn", _selective_scan, _HALF),
    "pyg-lib": Operation("segment_matmul", _segment_matmul, 1e-5, on_cpu=True),
    "pytorch3d": Operation("knn_points", _nearest, on_cpu=True),
    "sglang-kernel": Operation("sgl_kernel.rmsnorm", _sglang_norm, _HALF),
    "torch-scatter": Operation("scatter", _scatter, on_cpu=True),
    "torch-tensorrt": Operation("torch_tensorrt.compile", _tensorrt_linear, _HALF),
    "torchao": Operation("int8 weights", _int8_linear, 0.03, on_cpu=True),
    "torchaudio": Operation("forced_align", _forced_align, on_cpu=True),
    "torchcodec": Operation("AudioDecoder", _decoded_audio, 1e-4, on_cpu=True),
    "torchvision": Operation("nms", _nms, on_cpu=True),
    "transformer-engine": Operation("te.Linear", _transformer_linear, _HALF),
    "vllm": Operation("torch.ops._C.rms_norm", _vllm_norm, _HALF),
    "xformers": Operation("memory_efficient_attention", _xformers_attention, _HALF),
    "cupy-cuda12x": Operation("cupy.arange", _cupy_squares),
    "faiss-gpu": Operation("IndexFlatL2", _faiss_search, on_cpu=True),
    "numba-cuda": Operation("cuda.jit", _numba_addition),
    "nvidia-dali-cuda120": Operation("fn.constant", _dali_constant),
    "onnxruntime-gpu": Operation("InferenceSession", _onnx_addition, on_cpu=True),
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
