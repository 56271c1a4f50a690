"""What the target's Python and torch say of themselves.

python "3.11.2", executable, prefix        always
packages {"torch": "2.13.0", ...}          installed distributions, by normalised name: all of them in an environment
                                           that envcheck made, elsewhere only torch's family and NVIDIA's
threads 8                                  the threads that OpenMP starts: of OMP_NUM_THREADS, at most one a core
error, import_trials {…}                   why torch cannot be imported, and what was tried then: see import_trials.py
                                           (then nothing below is there)
torch "2.13.0+cpu", cuda "12.8" | None, cudnn "9.10.2" | None, nccl "2.27.5" | None, hip, git_version,
arch_list ["sm_80", ...]                   what it was built with; build_facts_error when even asking crashed
device_count, devices [{index, name, capability "9.0", uuid, memory (bytes)}], device_error
                                           what CUDA shows; device_facts_error when asking crashed or hung
libcuda "/usr/…/libcuda.so.570.124.06"     the driver library that was loaded, cuda-compat's or the driver's own; and
cuinit 0                                   what cuInit returned (CUresult); neither where there is no libcuda
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import os
import platform
import re
import sys
from typing import Any

# Where an environment made by envcheck says so: beside its Python, or in its image.
_OURS = ("{prefix}/envcheck-promises.json", "/etc/envcheck/promises.json")
_FAMILY = re.compile(r"(pytorch-)?(torch|triton)(-\w+)?|torch(vision|audio|text|data|ao|codec)|nvidia-.+")


def python_facts() -> dict[str, Any]:
    """Return what is known before torch is imported."""
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "packages": _packages(),
        "device_count": 0,
        "devices": [],
    }


def _packages() -> dict[str, str]:
    """Return the installed versions; names of a stranger's own packages are nobody's business."""
    built_by_envcheck = any(os.path.exists(place.format(prefix=sys.prefix)) for place in _OURS)  # noqa: PTH110 (no Path is made here)
    versions = {}
    for distribution in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        # The first of a name on sys.path is the one that is imported.
        if name and name not in versions and (built_by_envcheck or _FAMILY.fullmatch(name)):
            versions[name] = distribution.version
    return dict(sorted(versions.items()))


def cuda_is_up() -> bool:
    """Return whether importing torch has already initialised CUDA, which no fork survives."""
    torch = sys.modules.get("torch")
    return bool(torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized())


def dotted_cudnn(number: int | None) -> str | None:
    """Return 91002 as "9.10.2"; before 9, 8902 was 8.9.2."""
    if number is None:
        return None
    major = 10000 if number >= 10000 else 1000  # noqa: PLR2004 (where cuDNN changed its formula)
    return f"{number // major}.{number % major // 100}.{number % 100}"


def dotted_nccl(number: Any) -> str | None:
    """Return (2, 27, 5) or the 2.x integer form as "2.27.5"."""
    if isinstance(number, int):
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    return ".".join(str(part) for part in number[:3]) if number else None


def build_facts(_rank: object = None) -> dict[str, Any]:
    """Return what torch was built with; needs no device."""
    torch = importlib.import_module("torch")
    with_cuda = torch.version.cuda is not None
    distributed = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    # torch.cuda.get_arch_list() is empty without a device; the flags it is made from are not.
    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)() if with_cuda else None  # noqa: SLF001
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "git_version": getattr(torch.version, "git_version", None),
        "cudnn": dotted_cudnn(torch.backends.cudnn.version()) if with_cuda else None,
        "nccl": dotted_nccl(torch.cuda.nccl.version()) if with_cuda and distributed else None,
        "arch_list": flags.split() if flags else [],
    }


def device_facts(_rank: object = None) -> dict[str, Any]:
    """Return what CUDA shows this process, or in `device_error` why it shows nothing."""
    torch = importlib.import_module("torch")
    driver = driver_facts()
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError, AttributeError) as error:
        return {
            "device_count": 0,
            "devices": [],
            "device_error": (str(error).strip() or repr(error)).splitlines()[0],
            **driver,
        }
    count = torch.cuda.device_count()
    return {"device_count": count, "devices": [_device(torch, index) for index in range(count)], **driver}


def driver_facts() -> dict[str, Any]:
    """Initialise the driver and return which libcuda the loader took, and what it said; only for a child that ends."""
    try:
        code = ctypes.CDLL("libcuda.so.1").cuInit(0)
    except (OSError, AttributeError):
        return {}
    with open("/proc/self/maps", errors="replace", encoding="utf-8") as maps:  # noqa: PTH123 (no Path is made here)
        paths = [line.split(maxsplit=5)[-1].strip() for line in maps]
    mapped = next((path for path in paths if os.path.basename(path).startswith("libcuda.so")), None)  # noqa: PTH119 (as above)
    return {"cuinit": code, "libcuda": mapped}


def _device(torch: Any, index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    uuid = str(getattr(properties, "uuid", "") or "")
    return {
        "index": index,
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        # NVML writes GPU-1a2b..., torch (from 2.4 on) the bare UUID.
        "uuid": f"GPU-{uuid}" if uuid and not uuid.startswith(("GPU-", "MIG-")) else uuid or None,
        "memory": properties.total_memory,
    }
