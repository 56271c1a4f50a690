"""How NVML's answers become values. A reader raises what NVML raises; whoever asks makes a reason of it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

from envcheck.node.clock_reasons import words

_FABRIC_STATES: Final = ("not supported", "not started", "in progress", "completed")
_FABRIC_SUMMARIES: Final = ("not supported", "healthy", "unhealthy", "limited capacity")
RECOVERY: Final = (
    "none",
    "reset the GPU",
    "reboot the node",
    "drain P2P",
    "drain and reset",
    "recover the IMEX domain",
    "reset the bus",
    "reboot the system",
)
COMPUTE_MODES: Final = ("default", "exclusive thread", "prohibited", "exclusive process")
VIRTUAL: Final = ("none", "passthrough", "vgpu", "host vgpu", "host vsga")
_ENDS: Final = {0: "gpu", 2: "switch"}  # nvmlIntNvLinkDeviceType_t
_CORRUPTED_INFOROM: Final = 14  # nvmlReturn_t
_LINK_ERRORS: Final = {"replay": 0, "recovery": 1, "crc": 2}


def text(value: Any) -> str:
    """Return what NVML gave as bytes or text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def cuda(number: int) -> str:
    """Return 12.8 of 12080."""
    return f"{number // 1000}.{number % 1000 // 10}"


def capability(nvml: Any, gpu: Any) -> str:
    """Read the compute capability, "9.0"."""
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(gpu)
    return f"{major}.{minor}"


def on(value: Any) -> str:
    """Return "on" or "off"."""
    return "on" if value else "off"


def word(words: tuple[str, ...], number: int) -> str:
    """Return the word of an enumeration's number; a new number stays visible."""
    return words[number] if 0 <= number < len(words) else f"unknown ({number})"


def remapped_rows(nvml: Any, gpu: Any) -> dict[str, int]:
    """Count the rows of memory that were replaced, wait for it, or could not be."""
    return dict(
        zip(("correctable", "uncorrectable", "pending", "failed"), nvml.nvmlDeviceGetRemappedRows(gpu), strict=True)
    )


def field(nvml: Any, gpu: Any, field: int, scope: int = 0) -> int:
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


def ecc(counter: str, kind: str) -> Callable[[Any, Any], Any]:
    """Return the reader of one counter of ECC errors."""
    return lambda n, g: n.nvmlDeviceGetTotalEccErrors(
        g, getattr(n, f"NVML_MEMORY_ERROR_TYPE_{kind}"), getattr(n, f"NVML_{counter}_ECC")
    )


def retired_pages(nvml: Any, gpu: Any) -> dict[str, Any]:
    """Count the pages of memory that are no longer used."""
    single = nvml.nvmlDeviceGetRetiredPages(gpu, nvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS)
    double = nvml.nvmlDeviceGetRetiredPages(gpu, nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)
    pending = bool(nvml.nvmlDeviceGetRetiredPagesPendingStatus(gpu))
    return {"single_bit": len(single), "double_bit": len(double), "pending": pending}


def sram(nvml: Any, gpu: Any) -> dict[str, Any]:
    """Count the uncorrectable errors of SRAM, and read whether there are too many."""
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(gpu, ctypes.byref(status))  # the wrapper hands it on as it is
    return {
        "uncorrectable": int(status.aggregateUncParity + status.aggregateUncSecDed),
        "threshold_exceeded": bool(status.bThresholdExceeded),
    }


def reset_status(nvml: Any, gpu: Any) -> dict[str, bool]:
    """Read what drivers before R570 say of a reset: newer ones have the recovery action."""
    return {
        "reset": bool(field(nvml, gpu, nvml.NVML_FI_DEV_RESET_STATUS)),
        "drain_and_reset": bool(field(nvml, gpu, nvml.NVML_FI_DEV_DRAIN_AND_RESET_STATUS)),
    }


def inforom(nvml: Any, gpu: Any) -> str:
    """Have the driver verify the checksums of the board's store of settings and error counts."""
    try:
        nvml.nvmlDeviceValidateInforom(gpu)
    except nvml.NVMLError as error:
        if error.value == _CORRUPTED_INFOROM:
            return "corrupted"
        raise
    return "intact"


def repairs(nvml: Any, gpu: Any) -> dict[str, bool]:
    """Read which repairs wait for a reset."""
    channel, tpc = nvml.nvmlDeviceGetRepairStatus(gpu)
    return {"channel": bool(channel), "tpc": bool(tpc)}


def row_histogram(nvml: Any, gpu: Any) -> dict[str, int]:
    """Count the memory banks by how many spare rows they have left."""
    counts = nvml.nvmlDeviceGetRowRemapperHistogram(gpu)
    return {name: int(getattr(counts, name)) for name in ("max", "high", "partial", "low", "none")}


def bank_remaps(nvml: Any, gpu: Any) -> dict[str, int]:
    """Count replaced memory banks, and the groups that have no spare bank left."""
    return {
        "active": field(nvml, gpu, nvml.NVML_FI_DEV_ACTIVE_BANK_REMAPPINGS),
        "inactive": field(nvml, gpu, nvml.NVML_FI_DEV_INACTIVE_BANK_REMAPPINGS),
        "none": field(nvml, gpu, nvml.NVML_FI_DEV_BANK_REMAPPER_HISTOGRAM_NONE),
        "pending": field(nvml, gpu, nvml.NVML_FI_DEV_PENDING_BANK_REMAPPING),
    }


def clock_reasons(nvml: Any, gpu: Any) -> list[str]:
    """Read in words why the clocks are what they are."""
    try:
        bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
    except (AttributeError, nvml.NVMLError):  # a driver or nvidia-ml-py from before the new name
        bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
    return words(bits)


def margin(nvml: Any, gpu: Any) -> int:
    """Read the degrees to the slowdown: asked for as such from Ada on, the difference of two readings before."""
    try:
        return int(nvml.nvmlDeviceGetMarginTemperature(gpu))
    except (AttributeError, nvml.NVMLError):
        limit = nvml.nvmlDeviceGetTemperatureThreshold(gpu, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
        return int(limit - nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))


def links(nvml: Any, gpu: Any) -> dict[int, str]:
    """Return "up" or "down" for each link there is; a GPU without NVLink refuses every one, and that is the reason."""
    states = {link: _link(nvml, gpu, link) for link in range(nvml.NVML_NVLINK_MAX_LINKS)}
    states_read = {link: state for link, state in states.items() if state is not None}
    return states_read or {0: str(nvml.nvmlDeviceGetNvLinkState(gpu, 0))}


def _link(nvml: Any, gpu: Any, link: int) -> str | None:
    try:
        return "up" if nvml.nvmlDeviceGetNvLinkState(gpu, link) else "down"
    except nvml.NVMLError:  # no such link
        return None


def nvlink_errors(nvml: Any, gpu: Any) -> dict[str, int]:
    """Sum each kind of error over the links."""
    numbers = links(nvml, gpu)
    return {
        kind: sum(nvml.nvmlDeviceGetNvLinkErrorCounter(gpu, link, number) for link in numbers)
        for kind, number in _LINK_ERRORS.items()
    }


def fabric(nvml: Any, gpu: Any) -> dict[str, str]:
    """Read how a GPU stands in its NVLink fabric."""
    try:
        info = _fabric_info(nvml, gpu, nvml.c_nvmlGpuFabricInfo_v3_t())
    except nvml.NVMLError:  # a driver that knows the older structure only, which has no summary of its health
        info = _fabric_info(nvml, gpu, nvml.c_nvmlGpuFabricInfo_v2_t())
    return {
        "state": word(_FABRIC_STATES, info.state),
        "status": "ok" if info.status == 0 else str(nvml.NVMLError(info.status)),
        "health": word(_FABRIC_SUMMARIES, getattr(info, "healthSummary", 0)),
    }


def _fabric_info(nvml: Any, gpu: Any, info: Any) -> Any:
    nvml.nvmlDeviceGetGpuFabricInfoV(gpu, ctypes.byref(info))  # the wrapper hands it on as it is
    return info


def processes(nvml: Any, gpu: Any) -> list[dict[str, Any]]:
    """Return pid, bytes and name of each compute process; memory and name are None where the driver does not say."""
    running = nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    return [{"pid": p.pid, "memory": p.usedGpuMemory, "name": _process_name(nvml, p.pid)} for p in running]


def _process_name(nvml: Any, pid: int) -> str | None:
    """Return the program's name without its path; another user's may be hidden, and so is another container's."""
    try:
        return text(nvml.nvmlSystemGetProcessName(pid)).split(" ")[0].rpartition("/")[2] or None
    except (AttributeError, nvml.NVMLError):
        return None


def remotes(nvml: Any, gpu: Any) -> list[str]:
    """Return what is at the other end of each link that is up: "gpu", "switch" or "other"."""
    up = [link for link, state in links(nvml, gpu).items() if state == "up"]
    return [_ENDS.get(int(nvml.nvmlDeviceGetNvLinkRemoteDeviceType(gpu, link)), "other") for link in up]
