"""The queries to NVML: a row a signal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from envcheck.node.sources import nvml_p2p, nvml_readers
from envcheck.node.value_types import (
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


class NvmlQuery(NamedTuple):
    """One signal: `read(nvml, handle)` gives it in `unit`, and a value has to fit `type`.

    This row is all there is to write of a signal: what needs its name, unit or type takes them from here.
    """

    name: str
    unit: str | None
    type: ValueType
    read: Callable[[Any, Any], Any]


_SWITCH: Final = one_of("on", "off")
_REMAPPED: Final = fields(correctable=whole, uncorrectable=whole, pending=whole, failed=whole)
_SPARES: Final = fields(max=whole, high=whole, partial=whole, low=whole, none=whole)
_BANKS: Final = fields(active=whole, inactive=whole, none=whole, pending=whole)
_PAIRS: Final = listed(fields(a=whole, b=whole, read=text, write=text, nvlink=text, path=maybe(text)))
# Of the node: `read` is given no handle.
VERSIONS: Final = (
    NvmlQuery("driver.version", None, version, lambda n, _: nvml_readers.text(n.nvmlSystemGetDriverVersion())),
    NvmlQuery("driver.cuda", None, version, lambda n, _: nvml_readers.cuda(n.nvmlSystemGetCudaDriverVersion_v2())),
    NvmlQuery("nvml.version", None, version, lambda n, _: nvml_readers.text(n.nvmlSystemGetNVMLVersion())),
    NvmlQuery("gpu.count", None, whole, lambda n, _: n.nvmlDeviceGetCount()),
)
NODE: Final = (*VERSIONS, NvmlQuery("gpu.p2p", None, _PAIRS, lambda n, _: nvml_p2p.pairs(n)))
# Of each GPU.
IDENTITY: Final = (
    NvmlQuery("name", None, text, lambda n, g: nvml_readers.text(n.nvmlDeviceGetName(g))),
    NvmlQuery("uuid", None, text, lambda n, g: nvml_readers.text(n.nvmlDeviceGetUUID(g))),
    NvmlQuery("compute_capability", None, capability, nvml_readers.capability),
)
QUERIES: Final = (
    *IDENTITY,
    NvmlQuery("memory_total", "B", number, lambda n, g: n.nvmlDeviceGetMemoryInfo(g).total),
    NvmlQuery("memory_used", "B", number, lambda n, g: n.nvmlDeviceGetMemoryInfo(g).used),
    NvmlQuery("memory_free", "B", number, lambda n, g: n.nvmlDeviceGetMemoryInfo(g).free),
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
    NvmlQuery("clock_memory", "MHz", number, lambda n, g: n.nvmlDeviceGetClockInfo(g, n.NVML_CLOCK_MEM)),
    NvmlQuery("clock_reasons", None, listed(text), nvml_readers.clock_reasons),
    NvmlQuery("pcie_gen", None, whole, lambda n, g: n.nvmlDeviceGetCurrPcieLinkGeneration(g)),
    NvmlQuery("pcie_gen_max", None, whole, lambda n, g: n.nvmlDeviceGetMaxPcieLinkGeneration(g)),
    NvmlQuery("pcie_width", "lanes", whole, lambda n, g: n.nvmlDeviceGetCurrPcieLinkWidth(g)),
    NvmlQuery("pcie_width_max", "lanes", whole, lambda n, g: n.nvmlDeviceGetMaxPcieLinkWidth(g)),
    NvmlQuery("pcie_replays", None, whole, lambda n, g: n.nvmlDeviceGetPcieReplayCounter(g)),
    NvmlQuery("ecc_mode", None, _SWITCH, lambda n, g: nvml_readers.on(n.nvmlDeviceGetEccMode(g)[0])),
    NvmlQuery("ecc_volatile_corrected", None, whole, nvml_readers.ecc("VOLATILE", "CORRECTED")),
    NvmlQuery("ecc_volatile_uncorrected", None, whole, nvml_readers.ecc("VOLATILE", "UNCORRECTED")),
    NvmlQuery("ecc_aggregate_corrected", None, whole, nvml_readers.ecc("AGGREGATE", "CORRECTED")),
    NvmlQuery("ecc_aggregate_uncorrected", None, whole, nvml_readers.ecc("AGGREGATE", "UNCORRECTED")),
    NvmlQuery("ecc_sram", None, fields(uncorrectable=whole, threshold_exceeded=flag), nvml_readers.sram),
    NvmlQuery(
        "retired_pages", None, fields(single_bit=whole, double_bit=whole, pending=flag), nvml_readers.retired_pages
    ),
    NvmlQuery("remapped_rows", None, _REMAPPED, nvml_readers.remapped_rows),
    NvmlQuery(
        "recovery_action",
        None,
        text,
        lambda n, g: nvml_readers.word(
            nvml_readers.RECOVERY, nvml_readers.field(n, g, n.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)
        ),
    ),
    NvmlQuery("reset_status", None, fields(reset=flag, drain_and_reset=flag), nvml_readers.reset_status),
    NvmlQuery("repairs", None, fields(channel=flag, tpc=flag), nvml_readers.repairs),
    NvmlQuery("unrepairable_memory", None, whole, lambda n, g: int(n.nvmlDeviceGetUnrepairableMemoryFlag_v1(g))),
    NvmlQuery("row_histogram", "banks", _SPARES, nvml_readers.row_histogram),
    NvmlQuery("bank_remaps", "banks", _BANKS, nvml_readers.bank_remaps),
    NvmlQuery("mig_mode", None, _SWITCH, lambda n, g: nvml_readers.on(n.nvmlDeviceGetMigMode(g)[0])),
    NvmlQuery("persistence", None, _SWITCH, lambda n, g: nvml_readers.on(n.nvmlDeviceGetPersistenceMode(g))),
    NvmlQuery(
        "compute_mode",
        None,
        text,
        lambda n, g: nvml_readers.word(nvml_readers.COMPUTE_MODES, n.nvmlDeviceGetComputeMode(g)),
    ),
    NvmlQuery("processes", None, listed(fields(pid=whole)), nvml_readers.processes),
    NvmlQuery("utilization", "%", number, lambda n, g: n.nvmlDeviceGetUtilizationRates(g).gpu),
    NvmlQuery("temperature", "C", number, lambda n, g: n.nvmlDeviceGetTemperature(g, n.NVML_TEMPERATURE_GPU)),
    NvmlQuery("temperature_margin", "C", signed, nvml_readers.margin),
    NvmlQuery("bus_id", None, text, lambda n, g: nvml_readers.text(n.nvmlDeviceGetPciInfo(g).busId)),
    NvmlQuery("brand", None, whole, lambda n, g: n.nvmlDeviceGetBrand(g)),
    NvmlQuery("inforom", None, one_of("intact", "corrupted"), nvml_readers.inforom),
    NvmlQuery("multi_gpu_board", None, flag, lambda n, g: bool(n.nvmlDeviceGetMultiGpuBoard(g))),
    NvmlQuery("vbios", None, text, lambda n, g: nvml_readers.text(n.nvmlDeviceGetVbiosVersion(g))),
    NvmlQuery(
        "virtualization",
        None,
        text,
        lambda n, g: nvml_readers.word(nvml_readers.VIRTUAL, n.nvmlDeviceGetVirtualizationMode(g)),
    ),
    NvmlQuery("nvlinks_active", "links", whole, lambda n, g: list(nvml_readers.links(n, g).values()).count("up")),
    NvmlQuery("nvlink_remotes", None, listed(text), nvml_readers.remotes),
    NvmlQuery("nvlinks", "links", listed(text), lambda n, g: list(nvml_readers.links(n, g).values())),
    NvmlQuery(
        "nvlink_speed", "MB/s", number, lambda n, g: nvml_readers.field(n, g, n.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON)
    ),
    NvmlQuery("nvlink_errors", None, fields(replay=whole, recovery=whole, crc=whole), nvml_readers.nvlink_errors),
    NvmlQuery("fabric", None, fields(state=text, status=text, health=text), nvml_readers.fabric),
)
# NVML's list gives each GPU its index.
TYPES: Final = {"index": whole, **{query.name: query.type for query in QUERIES}}
