"""The smallest operation of each known extension that has one, compared with a result that is known beforehand.

Most are calls that known.json describes: a function of a module, its arguments, and what it must return. In it a tensor
is {"tensor": numbers}, {"full": shape, "value": v} or {"range": shape, "start": a, "step": s}; `then` names a second
function that takes the result, `written` the argument that the function writes to, `attribute` a part of the result.
The others are functions here, which take a device and return (result, expected).
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from envcheck.checks.extensions.installed import KNOWN
from envcheck.checks.support import training

Result = tuple[Any, Any]


class Operation(NamedTuple):
    """An operation; `tolerance` is relative to the largest expected number, `on_cpu` says that it runs there too."""

    name: str
    compute: Callable[[str], Result]
    tolerance: float = 0.0
    on_cpu: bool = False


def _described(row: dict[str, Any]) -> Operation:
    def compute(device: str) -> Result:
        module = importlib.import_module(row["module"])
        arguments = [_argument(one, device) for one in row["args"]]
        result = operator.attrgetter(row["call"])(module)(*arguments, **row.get("kwargs", {}))
        if "then" in row:
            result = getattr(module, row["then"])(*result)
        if "written" in row:
            result = arguments[row["written"]]
        if "attribute" in row:
            result = getattr(result, row["attribute"])
        return (result[0] if isinstance(result, tuple) else result), _expected(row["expected"])

    return Operation(row["name"], compute, row.get("tolerance", 0.0), row.get("on_cpu", False))


def _argument(given: Any, device: str) -> Any:
    if not isinstance(given, dict):
        return given
    import torch

    if "tensor" in given:
        made = torch.tensor(given["tensor"])
    elif "full" in given:
        made = torch.full(given["full"], given["value"])
    else:
        shape = given["range"]
        made = (torch.arange(torch.Size(shape).numel()) * given["step"] + given["start"]).reshape(shape)
    return made.to(device=device, dtype=getattr(torch, given["dtype"]))


def _expected(given: Any) -> list[float]:
    """Return the numbers of a list, or of a row that repeats itself: its values, or where it starts and its step."""
    if isinstance(given, list):
        return given
    values = given.get("values") or [given["start"] + given["step"] * place for place in range(given["range"][0])]
    return list(values) * int(given["times"])


def _onnx_addition(device: str) -> Result:
    """Add a number to itself. On a GPU the session must have taken CUDA's provider, and not the CPU's."""
    import numpy as np
    import onnxruntime

    gpu = ("CUDAExecutionProvider", {"device_id": int(device.partition(":")[2] or 0)})
    session = onnxruntime.InferenceSession(
        _doubling(), providers=["CPUExecutionProvider"] if device == "cpu" else [gpu, "CPUExecutionProvider"]
    )
    taken = session.get_providers()[0]
    if device != "cpu" and taken != gpu[0]:
        # Both packages install the same files: microsoft/onnxruntime#26996.
        message = f"onnxruntime fell back to {taken}; with onnxruntime beside it: uninstall both, install the GPU's"
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


def _numba_addition(device: str) -> Result:
    import numpy as np
    from numba import cuda

    def add(numbers: Any) -> None:
        place = cuda.grid(1)
        if place < numbers.size:
            numbers[place] += 1

    cuda.select_device(int(device.partition(":")[2] or 0))
    numbers = cuda.to_device(np.arange(4, dtype=np.float32))
    cuda.jit(add)[1, 32](numbers)
    return numbers.copy_to_host().tolist(), [1, 2, 3, 4]


def _transformer_linear(device: str) -> Result:
    import torch
    import transformer_engine.pytorch as te

    layer = te.Linear(16, 16, params_dtype=torch.bfloat16).to(device)
    inputs = torch.ones(16, 16, device=device, dtype=torch.bfloat16)
    expected = torch.nn.functional.linear(inputs.float(), layer.weight.float(), layer.bias.float())
    return layer(inputs).detach(), expected.detach()


def _deepspeed_compatible(_device: str) -> Result:
    """Return whether deepspeed could compile its fused Adam here: it needs nvcc of torch's CUDA."""
    from deepspeed.ops.op_builder import FusedAdamBuilder

    return [float(FusedAdamBuilder().is_compatible())], [1.0]


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


# Numbers of 16 bits are 2**-9 (bfloat16) or 2**-12 (float16) of their size off; sums of products a few times that.
_HALF = 0.02
_TRANSFORMER = Operation("te.Linear", _transformer_linear, _HALF)
OPERATIONS: dict[str, Operation] = {
    **{name: _described(known["operation"]) for name, known in KNOWN.items() if "operation" in known},
    "deepspeed": Operation("FusedAdamBuilder.is_compatible", _deepspeed_compatible),
    "numba-cuda": Operation("cuda.jit", _numba_addition),
    "onnxruntime-gpu": Operation("InferenceSession", _onnx_addition, on_cpu=True),
    "torchao": Operation("int8 weights", _int8_linear, 0.03, on_cpu=True),
    "torchcodec": Operation("AudioDecoder", _decoded_audio, 1e-4, on_cpu=True),
    "transformer-engine": _TRANSFORMER,
    "transformer-engine-torch": _TRANSFORMER,
}
# These return what is on the CPU.
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
    count = [len(numbers), len(right)]
    off, tolerance = training.off(numbers, right), operation.tolerance
    told = {"name": operation.name, "device": device, "on": on, "count": count, "tolerance": tolerance}
    return {**told, "off": off if math.isfinite(off) else None}


def _numbers(values: Any) -> list[float]:
    flat = values.float().cpu().flatten().tolist() if hasattr(values, "flatten") and hasattr(values, "cpu") else values
    return [float(v) for part in flat for v in (part if isinstance(part, (list, tuple)) else [part])]
