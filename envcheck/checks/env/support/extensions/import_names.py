"""The module that each known extension is imported as, where it is not the package's name with underscores."""

from __future__ import annotations

_IMPORTED_AS = {
    "auto-gptq": "auto_gptq",
    "autoawq": "awq",
    "cupy-cuda12x": "cupy",
    "cupy-cuda13x": "cupy",
    "faiss-gpu": "faiss",
    "faiss-gpu-cu12": "faiss",
    "flash-attn-4": "flash_attn.cute",
    "flashinfer-python": "flashinfer",
    "horovod": "horovod.torch",
    "numba-cuda": "numba.cuda",
    "nvidia-dali-cuda120": "nvidia.dali",
    "nvidia-dali-cuda130": "nvidia.dali",
    "onnxruntime-gpu": "onnxruntime",
    "sglang-kernel": "sgl_kernel",
    "transformer-engine-cu12": "transformer_engine",
    "transformer-engine-cu13": "transformer_engine",
    "transformer-engine-torch": "transformer_engine.pytorch",
}


def import_name(extension: str) -> str:
    """Return the module that an extension of extensions.yaml is imported as."""
    return _IMPORTED_AS.get(extension, extension.replace("-", "_"))
