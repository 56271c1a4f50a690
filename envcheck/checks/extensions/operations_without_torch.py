"""Operations of extensions that have arrays of their own. Each returns the result as numbers, and what is right."""

from __future__ import annotations

from typing import Any

Result = tuple[Any, Any]


def _index(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def cupy_squares(device: str) -> Result:
    """Square four numbers on a GPU."""
    import cupy

    with cupy.cuda.Device(_index(device)):
        return (cupy.arange(4) ** 2).get().tolist(), [0, 1, 4, 9]


def numba_addition(device: str) -> Result:
    """Add one in a kernel that numba compiles."""
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


def dali_constant(device: str) -> Result:
    """Run a pipeline of one operator."""
    from nvidia.dali import fn, pipeline_def

    def constant() -> Any:
        return fn.constant(fdata=[1.0, 2.0], device="gpu")

    pipeline = pipeline_def(constant, batch_size=1, num_threads=1, device_id=_index(device))()
    pipeline.build()
    return pipeline.run()[0].as_cpu().as_array()[0].tolist(), [1.0, 2.0]


def faiss_search(device: str) -> Result:
    """Find the nearest of four vectors."""
    import faiss
    import numpy as np

    vectors = np.eye(4, 8, dtype=np.float32)
    index = faiss.IndexFlatL2(8)
    if device != "cpu":
        index = faiss.GpuIndexFlatL2(faiss.StandardGpuResources(), index)
    index.add(vectors)
    _, nearest = index.search(vectors[[2, 0]] * np.float32(0.9), 1)
    return nearest[:, 0].tolist(), [2, 0]


def onnx_addition(device: str) -> Result:
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
