"""GPUs as NVML shows them. Every query stands alone: what a GPU or driver does not support is a reason, not an end."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from envcheck.node.snapshot import Gpu, Signal

SOURCE: Final = "NVML"
Signals = dict[str, Signal]


class Query(NamedTuple):
    """One thing to ask of a GPU: `read(nvml, handle)` gives it in `unit`."""

    name: str
    unit: str | None
    read: Callable[[Any, Any], Any]


class Reading(NamedTuple):
    """What NVML said: signals of the node, and the GPUs."""

    signals: Signals
    gpus: list[Gpu]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _capability(nvml: Any, gpu: Any) -> str:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(gpu)
    return f"{major}.{minor}"


def _on(value: Any) -> str:
    return "on" if value else "off"


def _remapped_rows(nvml: Any, gpu: Any) -> dict[str, int]:
    return dict(
        zip(("correctable", "uncorrectable", "pending", "failed"), nvml.nvmlDeviceGetRemappedRows(gpu), strict=True)
    )


def _active_nvlinks(nvml: Any, gpu: Any) -> int:
    """Count the links that are up; a GPU without NVLink refuses the first, and that is the reason."""
    first = nvml.nvmlDeviceGetNvLinkState(gpu, 0)
    states = (_ask(nvml, functools.partial(nvml.nvmlDeviceGetNvLinkState, gpu, link)) for link in _links(nvml))
    return int(bool(first)) + sum(1 for state in states if state.value)


def _links(nvml: Any) -> range:
    return range(1, nvml.NVML_NVLINK_MAX_LINKS)


IDENTITY: Final = (
    Query("name", None, lambda n, g: _text(n.nvmlDeviceGetName(g))),
    Query("uuid", None, lambda n, g: _text(n.nvmlDeviceGetUUID(g))),
    Query("compute_capability", None, _capability),
)
QUERIES: Final = (
    *IDENTITY,
    Query("memory_total", "B", lambda n, g: n.nvmlDeviceGetMemoryInfo(g).total),
    Query("memory_used", "B", lambda n, g: n.nvmlDeviceGetMemoryInfo(g).used),
    Query("memory_free", "B", lambda n, g: n.nvmlDeviceGetMemoryInfo(g).free),
    Query("power_limit", "W", lambda n, g: n.nvmlDeviceGetEnforcedPowerLimit(g) / 1000),
    Query("power_limit_default", "W", lambda n, g: n.nvmlDeviceGetPowerManagementDefaultLimit(g) / 1000),
    Query("power_draw", "W", lambda n, g: n.nvmlDeviceGetPowerUsage(g) / 1000),
    Query("clock_sm", "MHz", lambda n, g: n.nvmlDeviceGetClockInfo(g, n.NVML_CLOCK_SM)),
    Query("clock_sm_max", "MHz", lambda n, g: n.nvmlDeviceGetMaxClockInfo(g, n.NVML_CLOCK_SM)),
    Query("clock_memory", "MHz", lambda n, g: n.nvmlDeviceGetClockInfo(g, n.NVML_CLOCK_MEM)),
    Query("pcie_gen", None, lambda n, g: n.nvmlDeviceGetCurrPcieLinkGeneration(g)),
    Query("pcie_gen_max", None, lambda n, g: n.nvmlDeviceGetMaxPcieLinkGeneration(g)),
    Query("pcie_width", "lanes", lambda n, g: n.nvmlDeviceGetCurrPcieLinkWidth(g)),
    Query("pcie_width_max", "lanes", lambda n, g: n.nvmlDeviceGetMaxPcieLinkWidth(g)),
    Query("ecc_mode", None, lambda n, g: _on(n.nvmlDeviceGetEccMode(g)[0])),
    Query("mig_mode", None, lambda n, g: _on(n.nvmlDeviceGetMigMode(g)[0])),
    Query("persistence", None, lambda n, g: _on(n.nvmlDeviceGetPersistenceMode(g))),
    Query("temperature", "C", lambda n, g: n.nvmlDeviceGetTemperature(g, n.NVML_TEMPERATURE_GPU)),
    Query("bus_id", None, lambda n, g: _text(n.nvmlDeviceGetPciInfo(g).busId)),
    Query("brand", None, lambda n, g: n.nvmlDeviceGetBrand(g)),
    Query("remapped_rows", None, _remapped_rows),
    Query("nvlinks_active", "links", _active_nvlinks),
)


def read(nvml: Any, queries: tuple[Query, ...] = QUERIES) -> Reading:
    """Ask NVML (the `pynvml` module). `nvml.latency` is what the asking took: seconds mean a wedged driver."""
    began = time.perf_counter()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return unread(f"NVML: {error}")
    try:
        signals, gpus = _system(nvml), _gpus(nvml, queries)
    finally:
        nvml.nvmlShutdown()
    signals["nvml.latency"] = Signal(time.perf_counter() - began, unit="s", source=SOURCE)
    return Reading(signals, gpus)


def unread(reason: str) -> Reading:
    """Return that nothing could be asked, and why."""
    names = ("driver.version", "driver.cuda", "nvml.version", "nvml.latency", "gpu.count")
    return Reading({name: Signal(reason=reason, source=SOURCE) for name in names}, [])


def _system(nvml: Any) -> Signals:
    return {
        "driver.version": _ask(nvml, lambda: _text(nvml.nvmlSystemGetDriverVersion())),
        "driver.cuda": _ask(nvml, lambda: _cuda(nvml.nvmlSystemGetCudaDriverVersion_v2())),
        "nvml.version": _ask(nvml, lambda: _text(nvml.nvmlSystemGetNVMLVersion())),
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
    except AttributeError as error:  # an nvidia-ml-py older than the query
        return Signal(reason=f"nvidia-ml-py: {error}", unit=unit, source=SOURCE)
    return (
        Signal(reason="NVML: no answer", unit=unit, source=SOURCE)
        if value is None
        else Signal(value, None, unit, SOURCE)
    )
