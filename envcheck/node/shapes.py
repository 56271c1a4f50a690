"""What a signal's value has to be: one of another kind was not read, whatever wrote it there.

A report is a file that anybody can edit, cut off or mix up, and a driver may answer with nonsense. So that no judge has
to ask of every number whether it is one, a value that has not its shape becomes the reason why there is none.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from envcheck.node.snapshot import Gpu, Signal, Snapshot

Shape = Callable[[Any], bool]
_VERSION: Final = re.compile(r"\d+(\.\d+)*\S*")
_CAPABILITY: Final = re.compile(r"\d+\.\d+")


def number(value: Any) -> bool:
    """Tell whether it is finite and not negative."""
    return signed(value) and bool(value >= 0)


def signed(value: Any) -> bool:
    """Tell whether it is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def whole(value: Any) -> bool:
    """Tell whether it counts something."""
    return number(value) and int(value) == value


def index(value: Any) -> bool:
    """Tell whether it is a number of something, or -1 for none."""
    return whole(value) or (signed(value) and value == -1)


def text(value: Any) -> bool:
    """Tell whether it is text that says something."""
    return isinstance(value, str) and bool(value)


def string(value: Any) -> bool:
    """Tell whether it is text, which may be empty."""
    return isinstance(value, str)


def flag(value: Any) -> bool:
    """Tell whether it is true or false."""
    return isinstance(value, bool)


def version(value: Any) -> bool:
    """Tell whether it begins as versions do."""
    return isinstance(value, str) and bool(_VERSION.fullmatch(value))


def capability(value: Any) -> bool:
    """Tell whether it is a compute capability, "9.0"."""
    return isinstance(value, str) and bool(_CAPABILITY.fullmatch(value))


def unlimited(value: Any) -> bool:
    """Tell whether it is a limit: a number, or "unlimited"."""
    return value == "unlimited" or number(value)


def maybe(shape: Shape) -> Shape:
    """Return the shape of what may be none."""
    return lambda value: value is None or shape(value)


def listed(shape: Shape) -> Shape:
    """Return the shape of a list of such."""
    return lambda value: isinstance(value, list) and all(map(shape, value))


def mapped(shape: Shape) -> Shape:
    """Return the shape of such, by name."""
    return lambda value: isinstance(value, Mapping) and all(isinstance(k, str) and shape(v) for k, v in value.items())


def fields(**shapes: Shape) -> Shape:
    """Return the shape of an object with at least these fields."""
    return lambda value: (
        isinstance(value, Mapping) and all(name in value and shape(value[name]) for name, shape in shapes.items())
    )


_EVENTS: Final = listed(fields(code=whole, age=number, bus_id=string, text=string))
NODE: Final[dict[str, Shape]] = {
    "clock.synchronized": flag,
    "container.cpu_limit": unlimited,
    "container.memory_limit": unlimited,
    "container.runtime": text,
    "disk.cwd.free": number,
    "disk.home.free": number,
    "disk.tmp.free": number,
    "driver.cuda": version,
    "driver.kernel": version,
    "driver.kernel_flavour": text,
    "driver.libcuda": version,
    "driver.library": version,
    "driver.version": version,
    "env": mapped(string),
    "env.secret_names": listed(text),
    "gpu.count": whole,
    "gpu.p2p": listed(fields(a=whole, b=whole, read=text, write=text, nvlink=text, path=maybe(text))),
    "host.arch": text,
    "host.cpu": text,
    "host.cpus": whole,
    "host.gpu_modules": listed(text),
    "host.hugepages": text,
    "host.hypervisor": flag,
    "host.iommu": fields(units=listed(text), cmdline=listed(text)),
    "host.hugepages_free": number,
    "host.kernel": text,
    "host.memory_available": number,
    "host.memory_total": number,
    "host.name": text,
    "host.numa_cpus": mapped(whole),
    "host.numa_nodes": whole,
    "host.os": text,
    "host.python": version,
    "host.stuck_processes": listed(fields(name=string, pid=whole)),
    "host.uid": whole,
    "host.uptime": number,
    "ib.ports": listed(fields(device=text, layer=maybe(text), state=maybe(text), rate=maybe(number))),
    "kernel.log_hours": number,
    "kernel.sxids": _EVENTS,
    "kernel.xids": _EVENTS,
    "limits.memlock": unlimited,
    "limits.nofile": unlimited,
    "nvml.latency": number,
    "nvml.version": version,
    "origin": text,
    "pci.acs": listed(fields(bus_id=text, gpus=listed(text), enabled=listed(text))),
    "pci.gpus": listed(fields(bus_id=text, driver=maybe(text), numa_node=maybe(index), aer=mapped(maybe(whole)))),
    "pci.iommu": mapped(maybe(text)),
    "shm.free": number,
    "shm.kind": text,
    "shm.total": number,
    "toolkit.cdi": listed(fields(path=text, kind=string, drivers=listed(version), devices=whole)),
    "toolkit.docker": fields(runtimes=listed(text), default=text, cdi=maybe(flag)),
    "toolkit.engines": listed(text),
    "toolkit.tools": mapped(text),
}
_NUMBERS: Final = (
    *("bar1_total", "memory_free", "memory_total", "memory_used", "power_draw", "power_limit", "power_limit_default"),
    *("clock_app", "clock_app_default", "clock_memory", "clock_sm", "clock_sm_max", "nvlink_speed", "temperature"),
    "utilization",
)
_COUNTS: Final = (
    *("brand", "index", "nvlinks_active", "pcie_gen", "pcie_gen_max", "pcie_replays", "pcie_width", "pcie_width_max"),
    *("ecc_aggregate_corrected", "ecc_aggregate_uncorrected", "ecc_volatile_corrected", "ecc_volatile_uncorrected"),
)
_TEXTS: Final = (
    *("bus_id", "name", "uuid", "vbios", "compute_mode", "ecc_mode", "mig_mode", "persistence", "recovery_action"),
    "virtualization",
)
GPU: Final[dict[str, Shape]] = {
    **dict.fromkeys(_NUMBERS, number),
    **dict.fromkeys(_COUNTS, whole),
    **dict.fromkeys(_TEXTS, text),
    "clock_reasons": listed(text),
    "compute_capability": capability,
    "ecc_sram": fields(uncorrectable=whole, threshold_exceeded=flag),
    "fabric": fields(state=text, status=text, health=text),
    "nvlink_errors": fields(replay=whole, recovery=whole, crc=whole),
    "nvlink_remotes": listed(text),
    "nvlinks": listed(text),
    "processes": listed(fields(pid=whole)),
    "remapped_rows": fields(correctable=whole, uncorrectable=whole, pending=whole, failed=whole),
    "retired_pages": fields(single_bit=whole, double_bit=whole, pending=flag),
    "temperature_margin": signed,
}
_MAY_BE_NONE: Final = ("python", "torch", "cuda", "cudnn", "nccl", "hip", "git_version", "libcuda")
_ERRORS: Final = ("error", "build_facts_error", "device_error", "device_facts_error")
FACTS: Final[dict[str, Shape]] = {
    **dict.fromkeys(_MAY_BE_NONE, maybe(text)),
    "executable": text,
    "prefix": text,
    **dict.fromkeys(_ERRORS, maybe(string)),
    "arch_list": maybe(listed(text)),
    "cuinit": maybe(whole),
    "device_count": whole,
    "devices": listed(fields(uuid=maybe(text))),
}


def sound(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with a reason in place of each value that has not its signal's shape."""
    gpus = [Gpu(gpu.uuid, _sound(gpu.signals, GPU)) for gpu in snapshot.gpus]
    return dataclasses.replace(snapshot, signals=_sound(snapshot.signals, NODE), gpus=gpus)


def sound_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what torch says of itself, less what has not its shape: nobody said it."""
    return {name: value for name, value in facts.items() if name not in FACTS or FACTS[name](value)}


def _sound(signals: Mapping[str, Signal], shapes: Mapping[str, Shape]) -> dict[str, Signal]:
    return {name: _checked(signal, shapes.get(name)) for name, signal in signals.items()}


def _checked(signal: Signal, shape: Shape | None) -> Signal:
    if signal.reason is not None or shape is None or shape(signal.value):
        return signal
    return Signal(reason=f"read as {_short(signal.value)}, which it cannot be", unit=signal.unit, source=signal.source)


def _short(value: Any) -> str:
    told = repr(value)
    return told if len(told) <= 60 else f"{told[:57]}..."  # noqa: PLR2004 (a line's worth)
