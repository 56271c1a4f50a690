"""The names of NVIDIA's libraries, and the CUDA major that a name stands for."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Their number is CUDA's major (11.2 of libnvrtc is CUDA 11).
_OF_MAJOR = re.compile(r"lib(?:cudart|nvrtc|cublas|cublasLt|nvJitLink|npp\w+|nvjpeg)\.so\.(\d+)")
# Others number themselves: (name, number) -> CUDA major (release notes of the CUDA toolkits 11.8, 12.9 and 13.0).
_OWN_NUMBER = {("cufft", "10"): "11", ("cufft", "11"): "12", ("cufft", "12"): "13", ("cusolver", "12"): "13"}
_NUMBERED = re.compile(r"lib(cufft|cusolver)\.so\.(\d+)")
_TOOLKIT = re.compile(
    r"lib(?:cudart|nvrtc(?:-builtins)?|cublas(?:Lt)?|nvJitLink|npp\w+|nvjpeg|cufftw?|cufile\w*|curand|cusolver(?:Mg)?|"
    r"cusparse(?:Lt)?|cudnn\w*|nccl|nvshmem\w*|cupti|nvToolsExt|nvfatbin|nvvm)(?:[-.][0-9a-f]{8})?\.so\b"
)
# Brought by the driver. A build machine has none.
DRIVER = ("libcuda.so", "libnvidia-", "libnvcuvid.so", "libnvcuextend.so")
TORCH = re.compile(r"lib(?:torch|c10)(?:_\w+)?\.so\b")


def _name(library: str) -> str:
    """Return the name of a library without its directory: DT_NEEDED may hold a path."""
    return library.rpartition("/")[2]


def cuda_major(library: str) -> str | None:
    """Return the CUDA major of a library's name, "12" of libcudart.so.12; None if the name does not say."""
    match = _OF_MAJOR.match(_name(library))
    if match:
        return match[1]
    numbered = _NUMBERED.match(_name(library))
    return _OWN_NUMBER.get((numbered[1], numbered[2])) if numbered else None


def cuda_majors(libraries: Iterable[str]) -> list[str]:
    """Return the CUDA majors of several names, in order."""
    return sorted({major for name in libraries for major in [cuda_major(name)] if major}, key=int)


def is_nvidias(library: str) -> bool:
    """Return whether this is a library of the CUDA toolkit or beside it, bundled under a hashed name or not."""
    return bool(_TOOLKIT.match(_name(library)))


def is_drivers(library: str) -> bool:
    """Return whether the driver brings this library."""
    return _name(library).startswith(DRIVER)


def is_torchs(library: str) -> bool:
    """Return whether torch brings this library."""
    return bool(TORCH.match(_name(library)))
