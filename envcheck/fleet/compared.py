"""What of a report is compared between nodes: the configuration, in which drift is looked for, and bandwidth curves.

Only what somebody sets or installs is here; temperatures, free memory and uptimes differ from node to node rightly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

from envcheck.reports.phrases import number

_LIBRARIES: Final = ("torch", "cuda", "cudnn", "nccl", "python")
# Variables that steer the software under test; any other may rightly differ, as a job's number does.
_STEERING: Final = ("NCCL_", "CUDA_", "UCX_", "FI_", "TORCH_", "PYTORCH_", "OMP_", "NVIDIA_")
# Values of the launcher's or the job's own, which differ on every node.
_OWN: Final = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "TORCHELASTIC_RUN_ID")
_LONGEST: Final = 120


class ReadValue(msgspec.Struct):
    """A signal's value; None where it was not read."""

    value: Any = None


def _named(name: str) -> Any:
    return msgspec.field(name=name, default=None)


class HostSignals(msgspec.Struct):
    """The signals of a node that its kind has in common."""

    kernel: ReadValue | None = _named("host.kernel")
    os: ReadValue | None = _named("host.os")
    cpus: ReadValue | None = _named("host.cpus")
    cpu: ReadValue | None = _named("host.cpu")
    memory: ReadValue | None = _named("host.memory_total")
    numa_nodes: ReadValue | None = _named("host.numa_nodes")
    hugepages: ReadValue | None = _named("host.hugepages")
    iommu: ReadValue | None = _named("host.iommu")
    driver: ReadValue | None = _named("driver.version")
    flavour: ReadValue | None = _named("driver.kernel_flavour")
    libcuda: ReadValue | None = _named("driver.libcuda")
    gpu_count: ReadValue | None = _named("gpu.count")
    memlock: ReadValue | None = _named("limits.memlock")
    nofile: ReadValue | None = _named("limits.nofile")
    shm: ReadValue | None = _named("shm.total")
    container: ReadValue | None = _named("container.runtime")
    clock: ReadValue | None = _named("clock.synchronized")
    env: ReadValue | None = None


class GpuSignals(msgspec.Struct):
    """The signals of a GPU that its kind has in common; `index` tells which one it is."""

    index: ReadValue | None = None
    name: ReadValue | None = None
    vbios: ReadValue | None = None
    memory_total: ReadValue | None = None
    power_limit: ReadValue | None = None
    clock_sm_max: ReadValue | None = None
    ecc_mode: ReadValue | None = None
    mig_mode: ReadValue | None = None
    compute_mode: ReadValue | None = None
    persistence: ReadValue | None = None
    nvlinks_active: ReadValue | None = None
    pcie_gen_max: ReadValue | None = None
    pcie_width_max: ReadValue | None = None


# The wire's names of the fields, in their order.
_HOST_NAMES: Final = {field.name: field.encode_name for field in msgspec.structs.fields(HostSignals)}
_GPU_NAMES: Final = [f.name for f in msgspec.structs.fields(GpuSignals) if f.name not in ("index", "name")]
# Memory as the kernel counts it differs by a few pages between nodes of one kind.
_ROUNDED: Final = ("host.memory_total", "shm.total")
_GIB: Final = float(1 << 30)


def configuration(
    host: HostSignals, gpus: Iterable[GpuSignals], environment: dict[str, Any], image: str | None
) -> dict[str, str]:
    """Return the configuration by signal, as text: of GPUs the values that occur, of libraries their versions.

    What was not read is not there: a node that could not be read is no drift.
    """
    held = {_HOST_NAMES[name]: _value(getattr(host, name)) for name in _HOST_NAMES if name != "env"}
    for name in _ROUNDED:
        amount = number(held.get(name))
        if amount is not None:
            held[name] = f"{amount / _GIB:.0f} GiB"
    signals = [*gpus]
    for name in _GPU_NAMES:
        values = {_text(value) for gpu in signals if (value := _value(getattr(gpu, name))) is not None}
        held[f"gpu.{name}"] = " and ".join(sorted(values)) or None
    held |= {name: environment.get(name) for name in _LIBRARIES}
    variables = _value(host.env)
    if isinstance(variables, dict):
        steering = ((name, value) for name, value in variables.items() if str(name).startswith(_STEERING))
        held |= {f"env.{name}": value for name, value in steering if name not in _OWN}
    held["image"] = image
    return {name: _text(value) for name, value in held.items() if value is not None}


def _value(read: ReadValue | None) -> Any:
    return None if read is None else read.value


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()
    return text[:_LONGEST]


CheckStatus = Literal["pass", "warn", "fail", "skip", "error"]


class PlacePart(msgspec.Struct):
    """A node's place among those of its launcher."""

    node: str = ""
    node_rank: int = 0
    nodes: int = 1


class HostPart(msgspec.Struct):
    """The machine."""

    name: str = ""
    arch: str = ""
    place: PlacePart = msgspec.field(default_factory=PlacePart)


class GpuPart(msgspec.Struct):
    """A GPU."""

    uuid: str
    signals: GpuSignals = msgspec.field(default_factory=GpuSignals)


class SnapshotPart(msgspec.Struct):
    """What was read off the node."""

    signals: HostSignals = msgspec.field(default_factory=HostSignals)
    gpus: list[GpuPart] = []


class DetailsPart(msgspec.Struct):
    """Of an outcome's details the GPU that its value is about, and the curves."""

    device: Any = None
    curve: msgspec.Raw = msgspec.Raw()
    curves: msgspec.Raw = msgspec.Raw()


class OutcomePart(msgspec.Struct):
    """What a check came to."""

    id: str
    status: CheckStatus
    summary: str = ""
    value: Any = None
    unit: str = ""
    code: str = ""
    culprit: str = ""
    attempts: list[msgspec.Raw] = []
    details: DetailsPart = msgspec.field(default_factory=DetailsPart)


class VerdictPart(msgspec.Struct):
    """What the run came to."""

    status: Literal["pass", "fail", "error"]
    sentence: str = ""
    exit_code: int = 0


class PlanPart(msgspec.Struct):
    """Of the plan its level."""

    level: str = ""


class TargetPart(msgspec.Struct):
    """Of the target its image."""

    name: str = ""
    image_id: str | None = None


class GroupPart(msgspec.Struct):
    """Of the group of a run on several nodes its nodes, and the one that the report is of: "" in that of the group."""

    nodes: list[str] = []
    node: str = ""


class ReportPart(msgspec.Struct):
    """A report."""

    schema: str
    started: str
    ended: str
    host: HostPart
    verdict: VerdictPart
    outcomes: list[OutcomePart]
    snapshot: SnapshotPart
    mode: str = ""
    tool: str = ""
    boot: str = ""
    plan: PlanPart = msgspec.field(default_factory=PlanPart)
    target: TargetPart = msgspec.field(default_factory=TargetPart)
    environment: dict[str, Any] = {}
    promises: dict[str, str] = {}
    group: GroupPart | None = None


# GB/s by message size in bytes, by rising size.
CurvePoints = list[tuple[float, float]]
LONGEST_NAME: Final = 120


class _PointRow(msgspec.Struct):
    size: float = msgspec.field(name="bytes")
    busbw: float | None = None
    algbw: float | None = None


_CURVE: Final = msgspec.json.Decoder(list[_PointRow])
_CURVES: Final = msgspec.json.Decoder(dict[str, list[_PointRow]])


def curves_of(outcomes: list[OutcomePart]) -> dict[str, CurvePoints]:
    """Return each check's curves by name: "all-reduce-bandwidth", or "collective-bandwidth: broadcast"."""
    curves = {}
    for outcome in outcomes:
        details = outcome.details
        try:
            one = {outcome.id: _CURVE.decode(details.curve)} if bytes(details.curve) else {}
            several = _CURVES.decode(details.curves) if bytes(details.curves) else {}
        except msgspec.DecodeError:
            continue
        named = one | {f"{outcome.id}: {name}": rows for name, rows in several.items()}
        for name, rows in named.items():
            points = sorted((row.size, _rate(row)) for row in rows if row.size >= 1 and _rate(row) > 0)
            if len(points) > 1:
                curves[name[:LONGEST_NAME]] = points
    return curves


def _rate(row: _PointRow) -> float:
    return row.busbw or row.algbw or 0.0
