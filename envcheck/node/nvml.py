"""GPUs as NVML shows them, a row a signal. What a GPU or driver does not support is a reason, not an end.

NVML is asked in a process of its own: where the driver is wedged a call never returns, nothing ends who made it, and a
thread of envcheck's would hold up its exit. The queries follow one another, as NVML serves one at a time.
"""

import contextlib
import ctypes
import importlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from envcheck.node import subprocesses
from envcheck.node.signal_source import (
    SourceReading,
    ValueType,
    capability,
    fields,
    flag,
    listed,
    maybe,
    number,
    one_of,
    signed,
    text,
    version,
    whole,
)
from envcheck.node.snapshot import SCHEMA, Gpu, Signal, Snapshot, Why, clock_words

SOURCE = "NVML"
# Where persistence mode is off the driver sets up each GPU anew, in seconds apiece, when it is first asked.
# https://docs.nvidia.com/deploy/driver-persistence/index.html
TIMEOUT = 60.0
LATENCY = "nvml.latency"
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
_FABRIC_SUMMARIES = ("not supported", "healthy", "unhealthy", "limited capacity")
RECOVERY = (
    *("none", "reset the GPU", "reboot the node", "drain P2P", "drain and reset"),
    *("recover the IMEX domain", "reset the bus", "reboot the system"),
)
COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")
VIRTUAL = ("none", "passthrough", "vgpu", "host vgpu", "host vsga")
_ENDS = {0: "gpu", 2: "switch"}  # nvmlIntNvLinkDeviceType_t
_CORRUPTED_INFOROM = 14  # nvmlReturn_t
# nvmlGpuP2PStatus_t; nvidia-ml-py's own name for the first caps index is a tuple by mistake.
_STATUSES = (
    *("ok", "chipset not supported", "GPU not supported", "topology not supported", "disabled by registry key"),
    *("not supported", "unknown"),
)
_CAPS = {"read": 0, "write": 1, "nvlink": 2}
# nvmlGpuTopologyLevel_t, in the letters of `nvidia-smi topo -m`.
_PATHS = {0: "internal", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_OFF_ON = ("off", "on")
_SWITCH = one_of(*_OFF_ON)
_ROWS = "correctable uncorrectable pending failed"
_REMAPPED = fields(correctable=whole, uncorrectable=whole, pending=whole, failed=whole)
_SPARES = fields(max=whole, high=whole, partial=whole, low=whole, none=whole)
_BANKS = fields(active=whole, inactive=whole, none=whole, pending=whole)
_REPAIRS = fields(channel=flag, tpc=flag)
_PAIRS = listed(fields(a=whole, b=whole, read=text, write=text, nvlink=text, path=maybe(text)))


def _as_text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _named(names: str, values: Iterable[Any], kind: Callable[[Any], Any] = int) -> dict[str, Any]:
    return dict(zip(names.split(), map(kind, values), strict=True))


def _fields_of(nvml: Any, gpu: Any, *fields: int) -> list[int]:
    return [_field(nvml, gpu, field) for field in fields]


def _word(words: tuple[str, ...], number: int) -> str:
    return words[number] if 0 <= number < len(words) else f"unknown ({number})"


def _field(nvml: Any, gpu: Any, field: int) -> int:
    """Read one field value: its own return code counts, not only the call's."""
    [value] = nvml.nvmlDeviceGetFieldValues(gpu, [(field, 0)])
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


def _reset_status(n: Any, g: Any) -> dict[str, bool]:
    asked = _fields_of(n, g, n.NVML_FI_DEV_RESET_STATUS, n.NVML_FI_DEV_DRAIN_AND_RESET_STATUS)
    return _named("reset drain_and_reset", asked, bool)


def _license(nvml: Any, gpu: Any) -> str:
    """Return whether a vGPU's driver has its licence: of the features that need one, if any do, one is on."""
    said = nvml.nvmlDeviceGetGridLicensableFeatures_v4(gpu)
    features = list(said.gridLicensableFeatures)[: said.licensableFeaturesCount]
    without = "unlicensed" if features else "not needed"
    return "licensed" if any(feature.featureState for feature in features) else without


def _row_histogram(nvml: Any, gpu: Any) -> dict[str, int]:
    counts, names = nvml.nvmlDeviceGetRowRemapperHistogram(gpu), ("max", "high", "partial", "low", "none")
    return {name: int(getattr(counts, name)) for name in names}


def _bank_remaps(n: Any, g: Any) -> dict[str, int]:
    replaced = (n.NVML_FI_DEV_ACTIVE_BANK_REMAPPINGS, n.NVML_FI_DEV_INACTIVE_BANK_REMAPPINGS)
    left = (n.NVML_FI_DEV_BANK_REMAPPER_HISTOGRAM_NONE, n.NVML_FI_DEV_PENDING_BANK_REMAPPING)
    return _named("active inactive none pending", _fields_of(n, g, *replaced, *left))


def _inforom(nvml: Any, gpu: Any) -> str:
    try:
        nvml.nvmlDeviceValidateInforom(gpu)
    except nvml.NVMLError as error:
        if error.value == _CORRUPTED_INFOROM:
            return "corrupted"
        raise
    return "intact"


def _clock_reasons(nvml: Any, gpu: Any) -> list[str]:
    try:
        bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
    except (AttributeError, nvml.NVMLError):  # a driver or nvidia-ml-py from before the new name
        bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
    return clock_words(bits)


def _margin(nvml: Any, gpu: Any) -> int:
    """Read the degrees to the slowdown: asked for as such from Ada on, the difference of two readings before."""
    try:
        return int(nvml.nvmlDeviceGetMarginTemperature(gpu))
    except (AttributeError, nvml.NVMLError):
        limit = nvml.nvmlDeviceGetTemperatureThreshold(gpu, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
        return int(limit - nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))


def _links(nvml: Any, gpu: Any) -> dict[int, str]:
    """Return "up" or "down" for each link there is; a GPU without NVLink refuses every one, and that is the reason.

    An absent link is an invalid argument to some drivers and not supported by others; both mean that it is not there.
    """
    states, refused = {}, None
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            states[link] = "up" if nvml.nvmlDeviceGetNvLinkState(gpu, link) else "down"
        except nvml.NVMLError as error:  # noqa: PERF203 (links are few)
            refused = refused or error
    if not states and refused:
        absent = refused.value == nvml.NVML_ERROR_INVALID_ARGUMENT
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED) if absent else refused
    return states


def _nvlink_errors(nvml: Any, gpu: Any) -> dict[str, int]:
    numbers = _links(nvml, gpu)
    return {
        kind: sum(nvml.nvmlDeviceGetNvLinkErrorCounter(gpu, link, number) for link in numbers)
        for kind, number in {"replay": 0, "recovery": 1, "crc": 2}.items()
    }


def _read_fabric(nvml: Any, gpu: Any) -> dict[str, Any]:
    # The wrapper hands the structure on as it is.
    info = nvml.c_nvmlGpuFabricInfo_v3_t()
    try:
        nvml.nvmlDeviceGetGpuFabricInfoV(gpu, ctypes.byref(info))
    except nvml.NVMLError:  # a driver that knows the older structure only, which has no summary of its health
        info = nvml.c_nvmlGpuFabricInfo_v2_t()
        nvml.nvmlDeviceGetGpuFabricInfoV(gpu, ctypes.byref(info))
    cluster = ctypes.string_at(ctypes.addressof(info) + type(info).clusterUuid.offset, type(info).clusterUuid.size)
    return {
        "state": _word(("not supported", "not started", "in progress", "completed"), info.state),
        "status": "ok" if info.status == 0 else str(nvml.NVMLError(info.status)),
        "health": _word(_FABRIC_SUMMARIES, getattr(info, "healthSummary", 0)),
        "cluster": cluster.hex() if any(cluster) else "",
        "clique": int(info.cliqueId),
    }


def _processes(nvml: Any, gpu: Any) -> list[dict[str, Any]]:
    """Return pid, bytes and name of each compute process; memory and name are None where the driver does not say."""
    running = nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    return [{"pid": p.pid, "memory": p.usedGpuMemory, "name": _process_name(nvml, p.pid)} for p in running]


def _process_name(nvml: Any, pid: int) -> str | None:
    """Return the program's name without its path; another user's may be hidden, and so is another container's."""
    try:
        return _as_text(nvml.nvmlSystemGetProcessName(pid)).split(" ")[0].rpartition("/")[2] or None
    except (AttributeError, nvml.NVMLError):
        return None


def _remotes(nvml: Any, gpu: Any) -> list[str]:
    """Return what is at the other end of each link that is up: "gpu", "switch" or "other"."""
    up = [link for link, state in _links(nvml, gpu).items() if state == "up"]
    return [_ENDS.get(int(nvml.nvmlDeviceGetNvLinkRemoteDeviceType(gpu, link)), "other") for link in up]


def _pairs(nvml: Any) -> list[dict[str, Any]]:
    """Return for each pair {a, b} of indices: read, write, nvlink ("ok" or why not) and the `path`, or None for it."""
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]

    def allowed(a: Any, b: Any) -> dict[str, str]:
        return {name: _word(_STATUSES, nvml.nvmlDeviceGetP2PStatus(a, b, cap)) for name, cap in _CAPS.items()}

    pairs = itertools.combinations(enumerate(handles), 2)
    return [{"a": a, "b": b, **allowed(x, y), "path": _path(nvml, x, y)} for (a, x), (b, y) in pairs]


def _path(nvml: Any, a: Any, b: Any) -> str | None:
    try:
        level = int(nvml.nvmlDeviceGetTopologyCommonAncestor(a, b))
    except nvml.NVMLError:  # virtual machines and WSL have no topology
        return None
    return _PATHS.get(level, f"unknown ({level})")


class NvmlQuery(NamedTuple):
    """One signal: `read(nvml, handle)` gives it in `unit`, and a value has to fit `type`. All of it is in its row."""

    name: str
    unit: str | None
    type: ValueType
    read: Callable[[Any, Any], Any]


Queries = tuple[NvmlQuery, ...]
# Of the node: `read` is given no handle.
VERSIONS = (
    NvmlQuery("driver.version", None, version, lambda n, _: _as_text(n.nvmlSystemGetDriverVersion())),
    NvmlQuery(
        "driver.cuda",
        None,
        version,
        lambda n, _: "{}.{}".format(*divmod(n.nvmlSystemGetCudaDriverVersion_v2() // 10, 100)),
    ),
    NvmlQuery("nvml.version", None, version, lambda n, _: _as_text(n.nvmlSystemGetNVMLVersion())),
    NvmlQuery("gpu.count", None, whole, lambda n, _: n.nvmlDeviceGetCount()),
)
NODE = (
    *VERSIONS,
    NvmlQuery("gpu.p2p", None, _PAIRS, lambda n, _: _pairs(n)),
    NvmlQuery("gpu.confidential", None, flag, lambda n, _: bool(n.nvmlSystemGetConfComputeState().ccFeature)),
)
# Of each GPU.
IDENTITY = (
    NvmlQuery("name", None, text, lambda n, g: _as_text(n.nvmlDeviceGetName(g))),
    NvmlQuery("uuid", None, text, lambda n, g: _as_text(n.nvmlDeviceGetUUID(g))),
    NvmlQuery(
        "compute_capability", None, capability, lambda n, g: "{}.{}".format(*n.nvmlDeviceGetCudaComputeCapability(g))
    ),
)
QUERIES = (
    *IDENTITY,
    NvmlQuery("memory_total", "B", number, lambda n, g: n.nvmlDeviceGetMemoryInfo(g).total),
    NvmlQuery("memory_used", "B", number, lambda n, g: n.nvmlDeviceGetMemoryInfo(g).used),
    NvmlQuery("bar1_total", "B", number, lambda n, g: n.nvmlDeviceGetBAR1MemoryInfo(g).bar1Total),
    NvmlQuery("power_limit", "W", number, lambda n, g: n.nvmlDeviceGetEnforcedPowerLimit(g) / 1000),
    NvmlQuery("power_limit_default", "W", number, lambda n, g: n.nvmlDeviceGetPowerManagementDefaultLimit(g) / 1000),
    NvmlQuery("power_draw", "W", number, lambda n, g: n.nvmlDeviceGetPowerUsage(g) / 1000),
    NvmlQuery("clock_sm", "MHz", number, lambda n, g: n.nvmlDeviceGetClockInfo(g, n.NVML_CLOCK_SM)),
    NvmlQuery("clock_sm_max", "MHz", number, lambda n, g: n.nvmlDeviceGetMaxClockInfo(g, n.NVML_CLOCK_SM)),
    NvmlQuery("clock_app", "MHz", number, lambda n, g: n.nvmlDeviceGetApplicationsClock(g, n.NVML_CLOCK_GRAPHICS)),
    NvmlQuery(
        "clock_app_default",
        "MHz",
        number,
        lambda n, g: n.nvmlDeviceGetDefaultApplicationsClock(g, n.NVML_CLOCK_GRAPHICS),
    ),
    NvmlQuery("clock_reasons", None, listed(text), _clock_reasons),
    NvmlQuery("pcie_gen", None, whole, lambda n, g: n.nvmlDeviceGetCurrPcieLinkGeneration(g)),
    NvmlQuery("pcie_gen_max", None, whole, lambda n, g: n.nvmlDeviceGetMaxPcieLinkGeneration(g)),
    NvmlQuery("pcie_width", "lanes", whole, lambda n, g: n.nvmlDeviceGetCurrPcieLinkWidth(g)),
    NvmlQuery("pcie_width_max", "lanes", whole, lambda n, g: n.nvmlDeviceGetMaxPcieLinkWidth(g)),
    NvmlQuery("pcie_replays", None, whole, lambda n, g: n.nvmlDeviceGetPcieReplayCounter(g)),
    NvmlQuery("ecc_mode", None, _SWITCH, lambda n, g: _OFF_ON[bool(n.nvmlDeviceGetEccMode(g)[0])]),
    NvmlQuery("ecc_volatile_corrected", None, whole, _ecc("VOLATILE", "CORRECTED")),
    NvmlQuery("ecc_volatile_uncorrected", None, whole, _ecc("VOLATILE", "UNCORRECTED")),
    NvmlQuery("ecc_aggregate_uncorrected", None, whole, _ecc("AGGREGATE", "UNCORRECTED")),
    NvmlQuery("ecc_sram", None, fields(uncorrectable=whole, threshold_exceeded=flag), _sram),
    NvmlQuery("retired_pages", None, fields(single_bit=whole, double_bit=whole, pending=flag), _retired_pages),
    NvmlQuery("remapped_rows", None, _REMAPPED, lambda n, g: _named(_ROWS, n.nvmlDeviceGetRemappedRows(g))),
    NvmlQuery(
        "recovery_action", None, text, lambda n, g: _word(RECOVERY, _field(n, g, n.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION))
    ),
    NvmlQuery("reset_status", None, fields(reset=flag, drain_and_reset=flag), _reset_status),
    NvmlQuery("repairs", None, _REPAIRS, lambda n, g: _named("channel tpc", n.nvmlDeviceGetRepairStatus(g), bool)),
    NvmlQuery("unrepairable_memory", None, whole, lambda n, g: int(n.nvmlDeviceGetUnrepairableMemoryFlag_v1(g))),
    NvmlQuery("row_histogram", "banks", _SPARES, _row_histogram),
    NvmlQuery("bank_remaps", "banks", _BANKS, _bank_remaps),
    NvmlQuery("mig_mode", None, _SWITCH, lambda n, g: _OFF_ON[bool(n.nvmlDeviceGetMigMode(g)[0])]),
    NvmlQuery("mig_pending", None, _SWITCH, lambda n, g: _OFF_ON[bool(n.nvmlDeviceGetMigMode(g)[1])]),
    NvmlQuery("persistence", None, _SWITCH, lambda n, g: _OFF_ON[bool(n.nvmlDeviceGetPersistenceMode(g))]),
    NvmlQuery("compute_mode", None, text, lambda n, g: _word(COMPUTE_MODES, n.nvmlDeviceGetComputeMode(g))),
    NvmlQuery("processes", None, listed(fields(pid=whole)), _processes),
    NvmlQuery("utilization", "%", number, lambda n, g: n.nvmlDeviceGetUtilizationRates(g).gpu),
    NvmlQuery("temperature", "C", number, lambda n, g: n.nvmlDeviceGetTemperature(g, n.NVML_TEMPERATURE_GPU)),
    NvmlQuery("temperature_margin", "C", signed, _margin),
    NvmlQuery("bus_id", None, text, lambda n, g: _as_text(n.nvmlDeviceGetPciInfo(g).busId)),
    NvmlQuery("inforom", None, one_of("intact", "corrupted"), _inforom),
    NvmlQuery("multi_gpu_board", None, flag, lambda n, g: bool(n.nvmlDeviceGetMultiGpuBoard(g))),
    NvmlQuery("vbios", None, text, lambda n, g: _as_text(n.nvmlDeviceGetVbiosVersion(g))),
    NvmlQuery("virtualization", None, text, lambda n, g: _word(VIRTUAL, n.nvmlDeviceGetVirtualizationMode(g))),
    NvmlQuery("license", None, one_of("licensed", "unlicensed", "not needed"), _license),
    NvmlQuery("nvlinks_active", "links", whole, lambda n, g: list(_links(n, g).values()).count("up")),
    NvmlQuery("nvlink_remotes", None, listed(text), _remotes),
    NvmlQuery("nvlinks", "links", listed(text), lambda n, g: list(_links(n, g).values())),
    NvmlQuery("nvlink_speed", "MB/s", number, lambda n, g: _field(n, g, n.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON)),
    NvmlQuery("nvlink_errors", None, fields(replay=whole, recovery=whole, crc=whole), _nvlink_errors),
    NvmlQuery("fabric", None, fields(state=text, status=text, health=text), _read_fabric),
)
# NVML's list gives each GPU its index.
GPU_TYPES = {"index": whole, **{query.name: query.type for query in QUERIES}}
TYPES = {**{query.name: query.type for query in NODE}, LATENCY: number}


def ask(scope: str, timeout: float = TIMEOUT) -> SourceReading:
    """Ask NVML for "all" or the "identity" of the GPUs; after `timeout` seconds that it said nothing is the reason."""
    [python, *code], environment = subprocesses.of_envcheck(__name__, f"main({scope!r}, {os.getpid()})")
    try:
        output = subprocesses.output(Path(python), *code, timeout=timeout, environment=environment)
        snapshot = msgspec.json.decode(output, type=Snapshot)
    except TimeoutError:
        return unread("timed-out", f"NVML gave no answer in {timeout:g} s")
    except OSError as error:
        return unread("failed", f"asking NVML: {error.strerror}")
    except ValueError as error:
        return unread("failed", f"asking NVML: {error}")
    signals = [*snapshot.signals.values(), *(signal for gpu in snapshot.gpus for signal in gpu.signals.values())]
    if snapshot.schema != SCHEMA or any((signal.value is None) == (signal.reason is None) for signal in signals):
        return unread("failed", "asking NVML: it answered what is no snapshot")
    return SourceReading({name: snapshot.signal(name) for name in TYPES}, snapshot.gpus)


def read(nvml: Any, queries: tuple[Queries, Queries] = (NODE, QUERIES)) -> SourceReading:
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
    subprocesses.die_with_parent(parent)
    try:
        reading = read(load_nvml(), {"all": (NODE, QUERIES), "identity": (VERSIONS, IDENTITY)}[scope])
    except ImportError as error:
        reading = unread("failed", f"nvidia-ml-py: {error}")
    sys.stdout.buffer.write(msgspec.json.encode(Snapshot("", reading.signals, list(reading.gpus))))
