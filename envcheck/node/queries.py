"""What is asked of each GPU. A reader raises what NVML raises; whoever asks makes a reason of it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final, NamedTuple

_FABRIC_STATES: Final = ("not supported", "not started", "in progress", "completed")
_FABRIC_SUMMARIES: Final = ("not supported", "healthy", "unhealthy", "limited capacity")
_RECOVERY: Final = (
    "none",
    "reset the GPU",
    "reboot the node",
    "drain P2P",
    "drain and reset",
    "recover the IMEX domain",
    "reset the bus",
    "reboot the system",
)
_COMPUTE_MODES: Final = ("default", "exclusive thread", "prohibited", "exclusive process")
_VIRTUAL: Final = ("none", "passthrough", "vgpu", "host vgpu", "host vsga")
# nvmlClocksEventReason…, by bit; NVML renamed them from ThrottleReason in R535.
CLOCK_REASONS: Final = {
    0x1: "idle",
    0x2: "applications clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}
_ENDS: Final = {0: "gpu", 2: "switch"}  # nvmlIntNvLinkDeviceType_t
_LINK_ERRORS: Final = {"replay": 0, "recovery": 1, "crc": 2}


class Query(NamedTuple):
    """One thing to ask of a GPU: `read(nvml, handle)` gives it in `unit`."""

    name: str
    unit: str | None
    read: Callable[[Any, Any], Any]


def text(value: Any) -> str:
    """Return what NVML gave as bytes or text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _capability(nvml: Any, gpu: Any) -> str:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(gpu)
    return f"{major}.{minor}"


def _on(value: Any) -> str:
    return "on" if value else "off"


def _word(words: tuple[str, ...], number: int) -> str:
    return words[number] if 0 <= number < len(words) else f"unknown ({number})"


def _remapped_rows(nvml: Any, gpu: Any) -> dict[str, int]:
    return dict(
        zip(("correctable", "uncorrectable", "pending", "failed"), nvml.nvmlDeviceGetRemappedRows(gpu), strict=True)
    )


def _field(nvml: Any, gpu: Any, field: int, scope: int = 0) -> int:
    """Read one field value: its own return code counts, not only the call's."""
    [value] = nvml.nvmlDeviceGetFieldValues(gpu, [(field, scope)])
    if value.nvmlReturn == nvml.NVML_ERROR_INVALID_ARGUMENT:  # a field that is newer than the driver
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
    if value.nvmlReturn != 0:
        raise nvml.NVMLError(value.nvmlReturn)
    name = {
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    }.get(value.valueType, "ullVal")
    return int(getattr(value.value, name))


def _ecc(counter: str, kind: str) -> Callable[[Any, Any], Any]:
    return lambda n, g: n.nvmlDeviceGetTotalEccErrors(
        g, getattr(n, f"NVML_MEMORY_ERROR_TYPE_{kind}"), getattr(n, f"NVML_{counter}_ECC")
    )


def _retired_pages(nvml: Any, gpu: Any) -> dict[str, Any]:
    single = nvml.nvmlDeviceGetRetiredPages(gpu, nvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS)
    double = nvml.nvmlDeviceGetRetiredPages(gpu, nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)
    pending = bool(nvml.nvmlDeviceGetRetiredPagesPendingStatus(gpu))
    return {"single_bit": len(single), "double_bit": len(double), "pending": pending}


def _sram(nvml: Any, gpu: Any) -> dict[str, Any]:
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(gpu, ctypes.byref(status))  # the wrapper hands it on as it is
    return {
        "uncorrectable": int(status.aggregateUncParity + status.aggregateUncSecDed),
        "threshold_exceeded": bool(status.bThresholdExceeded),
    }


def _clock_reasons(nvml: Any, gpu: Any) -> list[str]:
    try:
        bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
    except (AttributeError, nvml.NVMLError):  # a driver or nvidia-ml-py from before the new name
        bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
    known = [name for bit, name in CLOCK_REASONS.items() if bits & bit]
    rest = bits & ~sum(CLOCK_REASONS)
    return [*known, f"unknown 0x{rest:x}"] if rest else known


def _margin(nvml: Any, gpu: Any) -> int:
    """Read the degrees to the slowdown: asked for as such from Ada on, the difference of two readings before."""
    try:
        return int(nvml.nvmlDeviceGetMarginTemperature(gpu))
    except (AttributeError, nvml.NVMLError):
        limit = nvml.nvmlDeviceGetTemperatureThreshold(gpu, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
        return int(limit - nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))


def _links(nvml: Any, gpu: Any) -> dict[int, str]:
    """Return "up" or "down" for each link there is; a GPU without NVLink refuses every one, and that is the reason."""
    states = {link: _link(nvml, gpu, link) for link in range(nvml.NVML_NVLINK_MAX_LINKS)}
    known = {link: state for link, state in states.items() if state is not None}
    return known or {0: str(nvml.nvmlDeviceGetNvLinkState(gpu, 0))}


def _link(nvml: Any, gpu: Any, link: int) -> str | None:
    try:
        return "up" if nvml.nvmlDeviceGetNvLinkState(gpu, link) else "down"
    except nvml.NVMLError:  # no such link
        return None


def _nvlink_errors(nvml: Any, gpu: Any) -> dict[str, int]:
    """Sum each kind of error over the links."""
    links = _links(nvml, gpu)
    return {
        kind: sum(nvml.nvmlDeviceGetNvLinkErrorCounter(gpu, link, number) for link in links)
        for kind, number in _LINK_ERRORS.items()
    }


def _fabric(nvml: Any, gpu: Any) -> dict[str, str]:
    try:
        info = _fabric_info(nvml, gpu, nvml.c_nvmlGpuFabricInfo_v3_t())
    except nvml.NVMLError:  # a driver that knows the older structure only, which has no summary of its health
        info = _fabric_info(nvml, gpu, nvml.c_nvmlGpuFabricInfo_v2_t())
    return {
        "state": _word(_FABRIC_STATES, info.state),
        "status": "ok" if info.status == 0 else str(nvml.NVMLError(info.status)),
        "health": _word(_FABRIC_SUMMARIES, getattr(info, "healthSummary", 0)),
    }


def _fabric_info(nvml: Any, gpu: Any, info: Any) -> Any:
    nvml.nvmlDeviceGetGpuFabricInfoV(gpu, ctypes.byref(info))  # the wrapper hands it on as it is
    return info


def _processes(nvml: Any, gpu: Any) -> list[dict[str, Any]]:
    """Return pid, bytes and name of each compute process; memory and name are None where the driver does not say."""
    running = nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    return [{"pid": p.pid, "memory": p.usedGpuMemory, "name": _process_name(nvml, p.pid)} for p in running]


def _process_name(nvml: Any, pid: int) -> str | None:
    """Return the program's name without its path; another user's may be hidden, and so is another container's."""
    try:
        return text(nvml.nvmlSystemGetProcessName(pid)).split(" ")[0].rpartition("/")[2] or None
    except (AttributeError, nvml.NVMLError):
        return None


def _remotes(nvml: Any, gpu: Any) -> list[str]:
    """Return what is at the other end of each link that is up: "gpu", "switch" or "other"."""
    up = [link for link, state in _links(nvml, gpu).items() if state == "up"]
    return [_ENDS.get(int(nvml.nvmlDeviceGetNvLinkRemoteDeviceType(gpu, link)), "other") for link in up]


IDENTITY: Final = (
    Query("name", None, lambda n, g: text(n.nvmlDeviceGetName(g))),
    Query("uuid", None, lambda n, g: text(n.nvmlDeviceGetUUID(g))),
    Query("compute_capability", None, _capability),
)
QUERIES: Final = (
    *IDENTITY,
    Query("memory_total", "B", lambda n, g: n.nvmlDeviceGetMemoryInfo(g).total),
    Query("memory_used", "B", lambda n, g: n.nvmlDeviceGetMemoryInfo(g).used),
    Query("memory_free", "B", lambda n, g: n.nvmlDeviceGetMemoryInfo(g).free),
    Query("bar1_total", "B", lambda n, g: n.nvmlDeviceGetBAR1MemoryInfo(g).bar1Total),
    Query("power_limit", "W", lambda n, g: n.nvmlDeviceGetEnforcedPowerLimit(g) / 1000),
    Query("power_limit_default", "W", lambda n, g: n.nvmlDeviceGetPowerManagementDefaultLimit(g) / 1000),
    Query("power_draw", "W", lambda n, g: n.nvmlDeviceGetPowerUsage(g) / 1000),
    Query("clock_sm", "MHz", lambda n, g: n.nvmlDeviceGetClockInfo(g, n.NVML_CLOCK_SM)),
    Query("clock_sm_max", "MHz", lambda n, g: n.nvmlDeviceGetMaxClockInfo(g, n.NVML_CLOCK_SM)),
    Query("clock_app", "MHz", lambda n, g: n.nvmlDeviceGetApplicationsClock(g, n.NVML_CLOCK_GRAPHICS)),
    Query("clock_app_default", "MHz", lambda n, g: n.nvmlDeviceGetDefaultApplicationsClock(g, n.NVML_CLOCK_GRAPHICS)),
    Query("clock_memory", "MHz", lambda n, g: n.nvmlDeviceGetClockInfo(g, n.NVML_CLOCK_MEM)),
    Query("clock_reasons", None, _clock_reasons),
    Query("pcie_gen", None, lambda n, g: n.nvmlDeviceGetCurrPcieLinkGeneration(g)),
    Query("pcie_gen_max", None, lambda n, g: n.nvmlDeviceGetMaxPcieLinkGeneration(g)),
    Query("pcie_width", "lanes", lambda n, g: n.nvmlDeviceGetCurrPcieLinkWidth(g)),
    Query("pcie_width_max", "lanes", lambda n, g: n.nvmlDeviceGetMaxPcieLinkWidth(g)),
    Query("pcie_replays", None, lambda n, g: n.nvmlDeviceGetPcieReplayCounter(g)),
    Query("ecc_mode", None, lambda n, g: _on(n.nvmlDeviceGetEccMode(g)[0])),
    Query("ecc_volatile_corrected", None, _ecc("VOLATILE", "CORRECTED")),
    Query("ecc_volatile_uncorrected", None, _ecc("VOLATILE", "UNCORRECTED")),
    Query("ecc_aggregate_corrected", None, _ecc("AGGREGATE", "CORRECTED")),
    Query("ecc_aggregate_uncorrected", None, _ecc("AGGREGATE", "UNCORRECTED")),
    Query("ecc_sram", None, _sram),
    Query("retired_pages", None, _retired_pages),
    Query("remapped_rows", None, _remapped_rows),
    Query("recovery_action", None, lambda n, g: _word(_RECOVERY, _field(n, g, n.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION))),
    Query("mig_mode", None, lambda n, g: _on(n.nvmlDeviceGetMigMode(g)[0])),
    Query("persistence", None, lambda n, g: _on(n.nvmlDeviceGetPersistenceMode(g))),
    Query("compute_mode", None, lambda n, g: _word(_COMPUTE_MODES, n.nvmlDeviceGetComputeMode(g))),
    Query("processes", None, _processes),
    Query("utilization", "%", lambda n, g: n.nvmlDeviceGetUtilizationRates(g).gpu),
    Query("temperature", "C", lambda n, g: n.nvmlDeviceGetTemperature(g, n.NVML_TEMPERATURE_GPU)),
    Query("temperature_margin", "C", _margin),
    Query("bus_id", None, lambda n, g: text(n.nvmlDeviceGetPciInfo(g).busId)),
    Query("brand", None, lambda n, g: n.nvmlDeviceGetBrand(g)),
    Query("vbios", None, lambda n, g: text(n.nvmlDeviceGetVbiosVersion(g))),
    Query("virtualization", None, lambda n, g: _word(_VIRTUAL, n.nvmlDeviceGetVirtualizationMode(g))),
    Query("nvlinks_active", "links", lambda n, g: list(_links(n, g).values()).count("up")),
    Query("nvlink_remotes", None, _remotes),
    Query("nvlinks", "links", lambda n, g: list(_links(n, g).values())),
    Query("nvlink_speed", "MB/s", lambda n, g: _field(n, g, n.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON)),
    Query("nvlink_errors", None, _nvlink_errors),
    Query("fabric", None, _fabric),
)
