"""A variable set long ago decides today what CUDA, NCCL and the loader do.

Seen in the wild: LD_LIBRARY_PATH with another cuDNN or NCCL in it, which the loader takes before the wheel's own
("cuDNN version incompatibility"); NCCL_P2P_DISABLE from somebody's debugging, which costs most of the bandwidth; CUDA's
coredump and profiler switches, which DCGM refuses to run its diagnostics under (NVIDIA/DCGM nvvs/src/Software.cpp).
"""

from __future__ import annotations

import os
from pathlib import Path

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, passed, undecided, warned

CHECK = Check(promise="no environment variable slows, redirects or replaces what the wheel brings", level="static")

REFUSED_BY_DCGM = (
    "NSIGHT_CUDA_DEBUGGER",
    "CUDA_INJECTION32_PATH",
    "CUDA_INJECTION64_PATH",
    "CUDA_AUTO_BOOST",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION",
    "CUDA_COREDUMP_FILE",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION",
    "CUDA_PROFILE",
    "COMPUTE_PROFILE",
    "OPENCL_PROFILE",
)
SLOWING = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "CUDA_LAUNCH_BLOCKING": "1",
}
SHADOWED = ("libcudnn.so", "libcublas.so", "libcudart.so", "libnccl.so", "libcuda.so")
LIMIT = Limit(
    0, "variables", "NVIDIA/DCGM nvvs/src/Software.cpp; NCCL's and CUDA's lists of environment variables", "equal"
)


def measure(rank: Rank) -> Measured:
    """Return the names of variables that do harm, and the libraries LD_LIBRARY_PATH puts before the wheel's."""
    directories = [Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    libraries = [str(file) for d in directories for name in SHADOWED for file in sorted(d.glob(f"{name}*"))]
    return {
        "rank": rank.rank,
        "refused": [name for name in REFUSED_BY_DCGM if name in os.environ],
        "slowing": [name for name, value in SLOWING.items() if os.environ.get(name) == value],
        # A driver's own libcuda belongs there (a container runtime or cuda-compat put it there), a stub never does.
        "shadowing": [path for path in libraries if "/libcuda.so" not in path or "/stubs/" in path],
    }


def judge(view: View, ranks: Ranks) -> Outcome:
    """Warn naming each; libraries on the path matter only to a torch that brings its own CUDA."""
    entry = ranks[0] if ranks else {}
    found = [entry.get(kind) for kind in ("refused", "slowing", "shadowing")]
    if not all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in found):
        return undecided("the environment was not read", fix="see the check's log")
    shadowing = entry["shadowing"] if view.environment.get("cuda") else []
    harmful = [*entry["refused"], *(entry["slowing"] if view.mode == "gpu" else [])]
    told = [f"{name} is set" for name in harmful] + [f"LD_LIBRARY_PATH has {path}" for path in shadowing[:3]]
    if told:
        names = [*harmful, *(["LD_LIBRARY_PATH"] if shadowing else [])]
        fix = f"unset {' '.join(names)}, in the image or in the profile that sets it"
        return warned("; ".join(told), fix=fix, value=len(names), unit=LIMIT.unit, limit=LIMIT, shadowing=shadowing)
    return passed("no variable does harm", value=0, unit=LIMIT.unit, limit=LIMIT)
