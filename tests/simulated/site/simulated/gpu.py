"""A simulated GPU: it proves that the code of the checks runs to its end and judges, and nothing about hardware.

Tensors stay on the CPU and carry a mark that says which GPU they are on; every torch function is seen on its way, so
that a tensor made from marked ones is marked, and one that mixes devices raises as CUDA does. torch.cuda's functions
are replaced under the signatures they have. The GPU has a clock of its own, which each operation moves on by what a
GPU of that speed would take (PEAK, BANDWIDTH): speeds come out as they are set here, and the same each time.

SIMULATED_GPUS      how many there are                    SIMULATED_NAME      their model
SIMULATED_SLOW      "INDEX:FACTOR": one is slower     SIMULATED_CC        "9.0"
SIMULATED_CUDA      "12.8"                            SIMULATED_MEMORY    bytes that torch sees of each
"""

# ruff: noqa: EM101, EM102, TRY003, PLC0415 (it stands in for torch: its names, signatures and words)

from __future__ import annotations

import os
import uuid
from typing import Any

COUNT = int(os.environ.get("SIMULATED_GPUS") or "0")
NAME = os.environ.get("SIMULATED_NAME") or "NVIDIA Simulated"
CAPABILITY = tuple(int(part) for part in (os.environ.get("SIMULATED_CC") or "9.0").split("."))
SLOW, _, _FACTOR = (os.environ.get("SIMULATED_SLOW") or "-1:1").partition(":")
CUDA = os.environ.get("SIMULATED_CUDA") or "12.8"
MEMORY = int(os.environ.get("SIMULATED_MEMORY") or 256 << 20)
ARCHES = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120"


def uuid_of(index: int) -> str:
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'simulated {index}')}"


def visible(environ: dict[str, str] | os._Environ[str] = os.environ) -> list[int]:
    """Return the GPUs of the node that CUDA_VISIBLE_DEVICES leaves: indices or UUIDs, up to the first unknown one."""
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return list(range(COUNT))
    names = {**{str(i): i for i in range(COUNT)}, **{uuid_of(i): i for i in range(COUNT)}}
    actual = []
    for word in chosen.split(","):
        if word.strip() not in names:
            break
        actual.append(names[word.strip()])
    return actual


class Gpu:
    """What this process knows of the GPUs: which is current, what time it is on it, and which process started CUDA."""

    current = 0
    clock = 0.0
    up_in: int | None = None
    allocated = 8 << 20

    @classmethod
    def start(cls) -> None:
        """Initialise CUDA; as the real one, not in the child of a process that has."""
        if not visible():
            raise RuntimeError("No CUDA GPUs are available")
        if cls.up_in not in (None, os.getpid()):
            raise RuntimeError(
                "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
                "'spawn' start method"
            )
        cls.up_in = os.getpid()

    @classmethod
    def works(cls, seconds: float) -> None:
        """Let the GPU's time pass."""
        slow = visible()[cls.current] == int(SLOW) if visible() else False
        cls.clock += seconds * (float(_FACTOR) if slow else 1)


def index_of(device: Any) -> int:
    import torch

    if device is None:
        return Gpu.current
    if isinstance(device, int):
        actual = device if device >= 0 else Gpu.current
    else:
        made = torch.device(device)
        if made.type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {made}")
        actual = Gpu.current if made.index is None else made.index
    if actual >= len(visible()):
        raise RuntimeError("CUDA error: invalid device ordinal")
    return actual


def place_of(torch: Any, device: Any) -> Any:
    """Return the simulated GPU a device argument names, complete with index; None for the CPU."""
    if device is None:
        return None
    made = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if made.type != "cuda":
        return None
    Gpu.start()
    return torch.device("cuda", index_of(made))


def current_of(torch: Any) -> Any:
    return torch.device("cuda", Gpu.current) if Gpu.up_in == os.getpid() else None
