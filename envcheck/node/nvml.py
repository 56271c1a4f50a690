"""GPUs as NVML shows them. Every query stands alone: what a GPU or driver does not support is a reason, not an end.

NVML is asked in a process of its own: where the driver is wedged a call never returns, nothing ends who made it, and a
thread of envcheck's would hold up its exit. The queries follow one another, as NVML serves one at a time.
"""

import contextlib
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from envcheck.node import nvml_queries, subprocesses
from envcheck.node.nvml_queries import NvmlQuery
from envcheck.node.signal_source import SourceReading, number
from envcheck.node.snapshot import Gpu, Signal, Snapshot, Why, from_json, to_json

SOURCE = "NVML"
# Where persistence mode is off the driver sets up each GPU anew, in seconds apiece, when it is first asked.
# https://docs.nvidia.com/deploy/driver-persistence/index.html
TIMEOUT = 60.0
LATENCY = "nvml.latency"
TYPES = {**{query.name: query.type for query in nvml_queries.NODE}, LATENCY: number}
# The queries of the node and of each GPU.
ALL = (nvml_queries.NODE, nvml_queries.QUERIES)
IDENTITY = (nvml_queries.VERSIONS, nvml_queries.IDENTITY)
# nvmlReturn_t; any other code is a failure.
_CODES: dict[Why, tuple[int, ...]] = {
    "no-data": (2, 6, 21),  # INVALID_ARGUMENT (mostly a field that the driver does not know), NOT_FOUND, NO_DATA
    "unsupported": (3, 13, 22, 25, 26),  # NOT_SUPPORTED, FUNCTION_NOT_FOUND, VGPU_ECC…, ARGUMENT_VERSION…, DEPRECATED
    "denied": (4,),  # NO_PERMISSION
    "timed-out": (10,),  # TIMEOUT
    "lost": (15, 17),  # GPU_IS_LOST, OPERATING_SYSTEM: access to the GPU is blocked
    "reset-required": (16,),  # RESET_REQUIRED
    "mismatch": (18,),  # LIB_RM_VERSION_MISMATCH
}
_WHY = {code: word for word, codes in _CODES.items() for code in codes}
Queries = tuple[NvmlQuery, ...]


def ask(scope: str, timeout: float = TIMEOUT) -> SourceReading:
    """Ask NVML for "all" or the "identity" of the GPUs; after `timeout` seconds that it said nothing is the reason."""
    [python, *code], environment = subprocesses.of_envcheck(__name__, f"main({scope!r}, {os.getpid()})")
    try:
        output = subprocesses.output(Path(python), *code, timeout=timeout, environment=environment)
        snapshot = from_json(json.loads(output))
    except TimeoutError:
        return unread("timed-out", f"NVML gave no answer in {timeout:g} s")
    except OSError as error:
        return unread("failed", f"asking NVML: {error.strerror}")
    except ValueError as error:
        return unread("failed", f"asking NVML: {error}")
    return SourceReading({name: snapshot.signal(name) for name in TYPES}, snapshot.gpus)


def read(nvml: Any, queries: tuple[Queries, Queries] = ALL) -> SourceReading:
    """Ask NVML (the `pynvml` module). `nvml.latency` is what the asking took: seconds mean a wedged driver."""
    began = time.perf_counter()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return unread(why(error), f"NVML: {error}")
    try:
        node, of_each = queries
        signals, gpus = {query.name: _ask(nvml, None, query) for query in node}, _gpus(nvml, of_each)
    finally:
        with contextlib.suppress(nvml.NVMLError):  # what was read stands
            nvml.nvmlShutdown()
    signals[LATENCY] = Signal(time.perf_counter() - began, unit="s", source=SOURCE)
    return SourceReading(signals, gpus)


def unread(cause: Why, reason: str) -> SourceReading:
    """Return that nothing could be asked, and why."""
    return SourceReading(dict.fromkeys(TYPES, Signal(reason=reason, why=cause, source=SOURCE)), [])


def why(error: Any) -> Why:
    """Return what an NVMLError's code says."""
    return _WHY.get(error.value, "failed")


def _gpus(nvml: Any, queries: Queries) -> list[Gpu]:
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError:  # gpu.count says why
        return []
    gpus = [_gpu(nvml, index, queries) for index in range(count)]
    # A container sees the count of all GPUs, and may open those that it was given.
    return [gpu for gpu in gpus if gpu.signal("name").why != "denied"] or gpus


def _gpu(nvml: Any, index: int, queries: Queries) -> Gpu:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        code = why(error)
        final = code if code in ("denied", "reset-required") else "lost"
        lost = Signal(reason=f"NVML: {error}", why=final, source=SOURCE)
        return Gpu(f"lost-{index}", {"index": Signal(index), **{query.name: lost for query in queries}})
    signals = {query.name: _ask(nvml, handle, query) for query in queries}
    return Gpu(signals["uuid"].value or f"unnamed-{index}", {"index": Signal(index, source=SOURCE), **signals})


def _ask(nvml: Any, handle: Any, query: NvmlQuery) -> Signal:
    try:
        value = query.read(nvml, handle)
    except nvml.NVMLError as error:
        return Signal(reason=f"NVML: {error}", why=why(error), unit=query.unit, source=SOURCE)
    except (AttributeError, TypeError, ValueError, LookupError) as error:  # an nvidia-ml-py that is older, or other
        return Signal(reason=f"nvidia-ml-py: {error}", why="unsupported", unit=query.unit, source=SOURCE)
    if value is None:
        return Signal(reason="NVML: no answer", why="failed", unit=query.unit, source=SOURCE)
    return Signal(value, None, query.unit, SOURCE)


def load_nvml() -> Any:
    """Import nvidia-ml-py, which only a machine with the library has use for."""
    return importlib.import_module("pynvml")


def main(scope: str, parent: int) -> None:
    """Print what NVML says, as the JSON of a Snapshot: what `ask` reads. It ends with the process that asked."""
    if not subprocesses.ends_with(parent):
        return
    try:
        reading = read(load_nvml(), {"all": ALL, "identity": IDENTITY}[scope])
    except ImportError as error:
        reading = unread("failed", f"nvidia-ml-py: {error}")
    json.dump(to_json(Snapshot("", reading.signals, list(reading.gpus))), sys.stdout)
