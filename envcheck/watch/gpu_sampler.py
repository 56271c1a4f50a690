"""Samples all GPUs by NVML in a process of its own, a JSON line a sample: a wedged driver stops only that."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from typing import Any, Final

from envcheck.node import nvml, nvml_queries

# Our field by NVML's signal, as envcheck/node/nvml_queries.py reads it.
FIELDS: Final = {
    "uuid": "uuid",
    "name": "name",
    "utilization": "utilization",
    "memory_used": "memory_used",
    "memory_total": "memory_total",
    "power_draw": "power_draw",
    "clock_sm": "clock_sm",
    "temperature": "temperature",
    "clock_reasons": "reasons",
    "ecc_volatile_uncorrected": "ecc",
}
_QUERIES: Final = tuple(query for query in nvml_queries.QUERIES if query.name in FIELDS)
_PR_SET_PDEATHSIG: Final = 1


def main(interval: float, began: float, parent: int) -> None:
    """Print {"gpus": [...]} every `interval` seconds, or {"problem": text} and end. It ends with its parent.

    `began` is the monotonic clock at the command's start, which all processes of a machine share.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getppid() != parent:
        return
    try:
        library = nvml.load_nvml()
        library.nvmlInit()
    except ImportError as error:
        _say({"problem": f"nvidia-ml-py: {error}"})
        return
    except library.NVMLError as error:
        _say({"problem": f"NVML: {error}"})
        return
    handles: dict[int, Any] = {}
    with contextlib.suppress(library.NVMLError):
        for number in range(library.nvmlDeviceGetCount()):
            handles[number] = library.nvmlDeviceGetHandleByIndex(number)
    while True:
        at = time.monotonic() - began
        _say({"gpus": [{"at": at, "index": number, **_sample(library, handles[number])} for number in handles]})
        time.sleep(max(0.0, interval - (time.monotonic() - began - at)))


def _sample(library: Any, handle: Any) -> dict[str, Any]:
    """Return what the GPU offers; a value that it refuses is not there."""
    values: dict[str, Any] = {"uuid": ""}
    for query in _QUERIES:
        with contextlib.suppress(library.NVMLError, AttributeError, TypeError, ValueError, LookupError):
            values[FIELDS[query.name]] = query.read(library, handle)
    return values


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
