"""GPUs as NVML shows them. Every query stands alone: what a GPU or driver does not support is a reason, not an end."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from envcheck.node import peers
from envcheck.node.queries import IDENTITY, QUERIES, Query, text
from envcheck.node.snapshot import Gpu, Signal

__all__ = ["IDENTITY", "QUERIES", "Query", "Reading", "read", "unread"]

SOURCE: Final = "NVML"
Signals = dict[str, Signal]


class Reading(NamedTuple):
    """What NVML said: signals of the node, and the GPUs."""

    signals: Signals
    gpus: list[Gpu]


def read(nvml: Any, queries: tuple[Query, ...] = QUERIES) -> Reading:
    """Ask NVML (the `pynvml` module). `nvml.latency` is what the asking took: seconds mean a wedged driver."""
    began = time.perf_counter()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return unread(f"NVML: {error}")
    try:
        signals, gpus = _system(nvml), _gpus(nvml, queries)
        if queries is QUERIES:
            signals["gpu.p2p"] = _ask(nvml, functools.partial(peers.pairs, nvml))
    finally:
        with contextlib.suppress(nvml.NVMLError):  # what was read stands
            nvml.nvmlShutdown()
    signals["nvml.latency"] = Signal(time.perf_counter() - began, unit="s", source=SOURCE)
    return Reading(signals, gpus)


def unread(reason: str) -> Reading:
    """Return that nothing could be asked, and why."""
    names = ("driver.version", "driver.cuda", "nvml.version", "nvml.latency", "gpu.count", "gpu.p2p")
    return Reading({name: Signal(reason=reason, source=SOURCE) for name in names}, [])


def _system(nvml: Any) -> Signals:
    return {
        "driver.version": _ask(nvml, lambda: text(nvml.nvmlSystemGetDriverVersion())),
        "driver.cuda": _ask(nvml, lambda: _cuda(nvml.nvmlSystemGetCudaDriverVersion_v2())),
        "nvml.version": _ask(nvml, lambda: text(nvml.nvmlSystemGetNVMLVersion())),
        "gpu.count": _ask(nvml, nvml.nvmlDeviceGetCount),
    }


def _cuda(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _gpus(nvml: Any, queries: tuple[Query, ...]) -> list[Gpu]:
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError:  # gpu.count says why
        return []
    return [_gpu(nvml, index, queries) for index in range(count)]


def _gpu(nvml: Any, index: int, queries: tuple[Query, ...]) -> Gpu:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        lost = Signal(reason=f"NVML: {error}", source=SOURCE)
        return Gpu(f"lost-{index}", {"index": Signal(index), **{query.name: lost for query in queries}})
    signals = {query.name: _ask(nvml, functools.partial(query.read, nvml, handle), query.unit) for query in queries}
    return Gpu(signals["uuid"].value or f"unnamed-{index}", {"index": Signal(index, source=SOURCE), **signals})


def _ask(nvml: Any, read_one: Callable[[], Any], unit: str | None = None) -> Signal:
    try:
        value = read_one()
    except nvml.NVMLError as error:
        return Signal(reason=f"NVML: {error}", unit=unit, source=SOURCE)
    except (AttributeError, TypeError, ValueError, LookupError) as error:  # an nvidia-ml-py that is older, or other
        return Signal(reason=f"nvidia-ml-py: {error}", unit=unit, source=SOURCE)
    return (
        Signal(reason="NVML: no answer", unit=unit, source=SOURCE)
        if value is None
        else Signal(value, None, unit, SOURCE)
    )
