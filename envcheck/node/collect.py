"""Read this node: every signal has its value, or the reason why it could not be read.

`sound` holds a snapshot that was read from a file against the types of its signals: a report is a file that anybody can
edit, and a driver may answer with anything. A value that does not fit becomes the reason why there is none.
"""

import dataclasses
import datetime as dt
import functools
import os
import platform
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from envcheck.node import buses, host, kernel_log, nvml, signal_source
from envcheck.node.signal_source import (
    ReadTask,
    Source,
    ValueType,
    fields,
    listed,
    mapped,
    maybe,
    string,
    text,
    version,
    whole,
)
from envcheck.node.snapshot import Gpu, Signal, Snapshot

_DEVICES: Final = ("/dev/nvidiactl", "/dev/dxg")  # the second is WSL's paravirtual one
_ROOT = Path("/")
_ENVIRONMENT = ("NVIDIA_", "CUDA_", "NCCL_", "TORCH_", "PYTORCH_", "OMP_", "UCX_", "FI_", "COMPUTE_", "OPENCL_")
_ENVIRONMENT_NAMES = frozenset({"LD_LIBRARY_PATH", "LD_PRELOAD", "NSIGHT_CUDA_DEBUGGER", "MASTER_ADDR", "WORLD_SIZE"})
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_KEY|PRIVATE", re.IGNORECASE)
_LINE = 60
_LIBRARY_DIRS = (
    *("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "usr/lib/wsl/lib"),
    *("usr/local/nvidia/lib64", "usr/local/nvidia/lib"),
)
GPU = nvml.GPU_TYPES
FACTS: dict[str, ValueType] = {
    **dict.fromkeys(("python", "torch", "cuda", "cudnn", "nccl", "hip", "git_version", "libcuda"), maybe(text)),
    "executable": text,
    "prefix": text,
    **dict.fromkeys(("error", "build_facts_error", "device_error", "device_facts_error"), maybe(string)),
    "arch_list": maybe(listed(text)),
    "cuinit": maybe(whole),
    "device_count": whole,
    "devices": listed(fields(uuid=maybe(text))),
}


def collect(root: Path = _ROOT, environ: Mapping[str, str] = os.environ) -> Snapshot:
    """Read every signal of this node, all sources at once; one that hangs costs its own time limit and signals."""
    signals, gpus = signal_source.read(sources(root, environ))
    return Snapshot(now(), _with_driver(signals), list(gpus))


def identify(root: Path = _ROOT, environ: Mapping[str, str] = os.environ) -> Snapshot:
    """Read only what resolving needs: driver.version, driver.cuda, host.arch; each GPU's name, UUID and capability."""
    signals, gpus = signal_source.read(_nvidia(root, environ, "identity"))
    return Snapshot(now(), {**_with_driver(signals), "host.arch": Signal(platform.machine())}, list(gpus))


def sources(root: Path, environ: Mapping[str, str]) -> list[ReadTask]:
    """Return what is read off a node, in the order of the snapshot: each by itself what may hang by itself."""
    return [
        *_nvidia(root, environ, "all"),
        *signal_source.each(host.sources(root, environ) | host.container_sources(root, environ)),
        *signal_source.each({"env": Source(mapped(string), lambda: _environment(environ), "environment")}),
        signal_source.together(kernel_log.TYPES, lambda: _log(root)),
        *signal_source.each(buses.pci_sources(root) | buses.infiniband_sources(root)),
    ]


def _log(root: Path) -> dict[str, Signal]:
    bus = root / "sys/bus/pci/devices"
    return kernel_log.signals(root, buses.above(bus) if bus.is_dir() else {})


def now() -> str:
    """Return the time as snapshots and reports have it."""
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")


def boot_id() -> str:
    """Return the kernel's name for this boot; empty where it tells none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Keep what steers CUDA, NCCL and the loader, and nothing that looks like a secret."""
    steering = {n: v for n, v in environ.items() if n.startswith(_ENVIRONMENT) or n in _ENVIRONMENT_NAMES}
    return {n: v for n, v in sorted(steering.items()) if not _SECRET.search(n)}


def _nvidia(root: Path, environ: Mapping[str, str], scope: str) -> list[ReadTask]:
    """Return what asks NVML, and what reads the versions of kernel module and libraries off files."""
    find = functools.partial(find_library, root=root, environ=environ)
    files = host.driver_sources(root) | {
        name: Source(version, functools.partial(_library_version, library, find), "the loader's path")
        for name, library in (("driver.library", "libnvidia-ml.so.1"), ("driver.libcuda", "libcuda.so.1"))
    }

    def asked() -> signal_source.SourceReading:
        why = "libnvidia-ml.so.1 is not on the loader's path"
        return nvml.ask(scope) if find("libnvidia-ml.so.1") else nvml.unread("unsupported", why)

    # It says itself when NVML's time is up; a library's directory may hang before that.
    return [ReadTask(nvml.TYPES, asked, nvml.TIMEOUT + 5), *signal_source.each(files)]


def _with_driver(signals: dict[str, Signal]) -> dict[str, Signal]:
    """Return the signals with the kernel module's version as the driver's, where NVML does not say it."""
    silent = signals["driver.version"].value is None and signals["driver.kernel"].value is not None
    return {**signals, "driver.version": signals["driver.kernel"]} if silent else signals


def find_library(name: str, root: Path = _ROOT, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file the loader would take: LD_LIBRARY_PATH first, then its cache, then the usual places."""
    cache = root / "etc/ld.so.cache"
    cached = host.cached_libraries(cache.read_bytes(), name) if cache.is_file() else []
    paths = [Path(p) / name for p in environ.get("LD_LIBRARY_PATH", "").split(":") if p]
    paths += [Path(path) for path in cached] + [Path("/") / directory / name for directory in _LIBRARY_DIRS]
    candidates = (root / path.relative_to("/") for path in paths if path.is_absolute())
    return next((path for path in candidates if path.exists()), None)


def _library_version(name: str, find: Callable[[str], Path | None]) -> Signal:
    path = find(name)
    if path is None:
        return Signal(reason=f"{name} is not on the loader's path", why="unsupported")
    file = path.resolve().name  # libcuda.so.535.104.05
    version = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)?)$", file)
    if version is None:
        return Signal(reason=f"{file} has no version in its name", why="no-data", source=str(path))
    return Signal(version[1], source=str(path))


NODE: dict[str, ValueType] = {
    **{name: type_ for task in sources(Path("/"), {}) for name, type_ in task.types.items()},
    "origin": text,  # of a snapshot that was not collected: who made it
}


def sound(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with a reason in place of each value that does not fit its signal's type."""
    gpus = [Gpu(gpu.uuid, _sound(gpu.signals, GPU)) for gpu in snapshot.gpus]
    return dataclasses.replace(snapshot, signals=_sound(snapshot.signals, NODE), gpus=gpus)


def sound_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what torch says of itself, less what does not fit its type: nobody said it."""
    return {name: value for name, value in facts.items() if name not in FACTS or FACTS[name](value)}


def _sound(signals: Mapping[str, Signal], types: Mapping[str, ValueType]) -> dict[str, Signal]:
    return {name: _checked(signal, types.get(name)) for name, signal in signals.items()}


def _checked(signal: Signal, type_: ValueType | None) -> Signal:
    if signal.reason is not None or type_ is None or type_(signal.value):
        return signal
    shown = repr(signal.value)
    reason = f"read as {shown if len(shown) <= _LINE else f'{shown[: _LINE - 3]}...'}, which it cannot be"
    return Signal(reason=reason, why="failed", unit=signal.unit, source=signal.source)


def shown_gpus() -> int | None:
    """Return how many GPUs this machine has devices for, without asking the driver; None where that cannot be seen."""
    if not any(Path(device).exists() for device in _DEVICES):
        return 0
    return sum(1 for device in Path("/dev").glob("nvidia[0-9]*")) or None
