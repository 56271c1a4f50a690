"""The configuration of a node, as far as nodes of one kind must agree in it: what drift is looked for in.

Only what somebody sets or installs is here; temperatures, free memory and uptimes differ from node to node rightly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

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
