"""Which GPU may reach which other one's memory, as NVML says of each pair."""

from __future__ import annotations

import itertools
from typing import Any, Final

# nvmlGpuP2PStatus_t; nvidia-ml-py's own name for the first caps index is a tuple by mistake.
_STATUSES: Final = (
    "ok",
    "chipset not supported",
    "GPU not supported",
    "topology not supported",
    "disabled by registry key",
    "not supported",
    "unknown",
)
_CAPS: Final = {"read": 0, "write": 1, "nvlink": 2}
# nvmlGpuTopologyLevel_t, in the letters of `nvidia-smi topo -m`.
_PATHS: Final = {0: "internal", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


def pairs(nvml: Any) -> list[dict[str, Any]]:
    """Return for each pair {a, b} of NVML's indices: read, write, nvlink ("ok" or why not) and the `path` between them.

    Raises what NVML raises; where it does not tell a path, that is None.
    """
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    return [
        {
            "a": a,
            "b": b,
            **{word: _status(nvml.nvmlDeviceGetP2PStatus(handles[a], handles[b], cap)) for word, cap in _CAPS.items()},
            "path": _path(nvml, handles[a], handles[b]),
        }
        for a, b in itertools.combinations(range(len(handles)), 2)
    ]


def _status(number: int) -> str:
    return _STATUSES[number] if 0 <= number < len(_STATUSES) else f"unknown ({number})"


def _path(nvml: Any, a: Any, b: Any) -> str | None:
    try:
        level = int(nvml.nvmlDeviceGetTopologyCommonAncestor(a, b))
    except nvml.NVMLError:  # virtual machines and WSL have no topology
        return None
    return _PATHS.get(level, f"unknown ({level})")
