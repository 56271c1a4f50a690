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

from envcheck.node import buses, containers, host, kernel_log, nvml, nvml_queries, signal_source
from envcheck.node.signal_source import (
    ReadTask,
    Source,
    SourceReading,
    ValueType,
    fields,
    listed,
    mapped,
    maybe,
    number,
    string,
    text,
    unlimited,
    version,
    whole,
)
from envcheck.node.snapshot import Gpu, Signal, Snapshot, unreadable

_ROOT = Path("/")
_ENVIRONMENT = ("NVIDIA_", "CUDA_", "NCCL_", "TORCH_", "PYTORCH_", "OMP_", "UCX_", "FI_", "COMPUTE_", "OPENCL_")
_ENVIRONMENT_NAMES = frozenset({"LD_LIBRARY_PATH", "LD_PRELOAD", "NSIGHT_CUDA_DEBUGGER", "MASTER_ADDR", "WORLD_SIZE"})
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_KEY|PRIVATE", re.IGNORECASE)
_GPU_MODULES = ("nvidia", "nouveau", "gdrdrv", "nv_peer_mem", "efa_nv_peermem")
_OWN = "environment"
_LINE = 60
_LIBRARY_DIRS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/lib/wsl/lib",
    "usr/local/nvidia/lib64",
    "usr/local/nvidia/lib",
)
GPU = nvml_queries.TYPES
_MAY_BE_NONE = ("python", "torch", "cuda", "cudnn", "nccl", "hip", "git_version", "libcuda")
_ERRORS = ("error", "build_facts_error", "device_error", "device_facts_error")
FACTS: Final[dict[str, ValueType]] = {
    **dict.fromkeys(_MAY_BE_NONE, maybe(text)),
    "executable": text,
    "prefix": text,
    **dict.fromkeys(_ERRORS, maybe(string)),
    "arch_list": maybe(listed(text)),
    "cuinit": maybe(whole),
    "device_count": whole,
    "devices": listed(fields(uuid=maybe(text))),
}


def collect(root: Path = _ROOT, environ: Mapping[str, str] = os.environ) -> Snapshot:
    """Read every signal of this node, all sources at once; takes well under a second where each of them answers.

    One that hangs costs its own time limit (parallel.TIMEOUT, nvml.TIMEOUT) and its own signals: they say so.
    """
    signals, gpus = signal_source.read(sources(root, environ))
    return Snapshot(_now(), _with_driver(signals), list(gpus))


def identify(root: Path = _ROOT, environ: Mapping[str, str] = os.environ) -> Snapshot:
    """Read only what resolving needs: driver.version, driver.cuda, host.arch; each GPU's name, UUID and capability."""
    signals, gpus = signal_source.read(_nvidia(root, environ, "identity"))
    return Snapshot(_now(), {**_with_driver(signals), "host.arch": Signal(platform.machine())}, list(gpus))


def sources(root: Path, environ: Mapping[str, str]) -> list[ReadTask]:
    """Return what is read off a node, in the order of the snapshot: each by itself what may hang by itself."""
    return [
        *_nvidia(root, environ, "all"),
        *signal_source.each(_host(root) | _container(root, environ)),
        *signal_source.each(_shm(root) | _limits(root) | _environment(environ)),
        signal_source.together(kernel_log.TYPES, lambda: kernel_log.signals(root)),
        *signal_source.each(host.sources(root, environ) | buses.pci_sources(root)),
        *signal_source.each(buses.infiniband_sources(root) | containers.sources(root, environ)),
    ]


def _now() -> str:
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")


def _nvidia(root: Path, environ: Mapping[str, str], scope: str) -> list[ReadTask]:
    """Return what asks NVML, and what reads the versions of kernel module and libraries off files."""
    module = root / "proc/driver/nvidia/version"
    find = functools.partial(find_library, root=root, environ=environ)
    files: dict[str, Source] = {
        "driver.kernel": Source(version, lambda: _file(module, lambda content: host.kernel_module(content)[0])),
        "driver.kernel_flavour": Source(text, lambda: _file(module, lambda content: host.kernel_module(content)[1])),
        "driver.library": Source(version, lambda: _library_version("libnvidia-ml.so.1", find("libnvidia-ml.so.1"))),
        "driver.libcuda": Source(version, lambda: _library_version("libcuda.so.1", find("libcuda.so.1"))),
    }
    # It says itself when NVML's time is up; a library's directory may hang before that.
    return [
        ReadTask(nvml.TYPES, lambda: _nvml(find("libnvidia-ml.so.1"), scope), nvml.TIMEOUT + 5),
        *signal_source.each(files),
    ]


def _nvml(library: Path | None, scope: str) -> SourceReading:
    return nvml.ask(scope) if library else nvml.unread("unsupported", "libnvidia-ml.so.1 is not on the loader's path")


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


def _library_version(name: str, path: Path | None) -> Signal:
    if path is None:
        return Signal(reason=f"{name} is not on the loader's path", why="unsupported")
    version = host.library_version(str(path.resolve()))
    if version is None:
        return Signal(reason=f"{path.resolve().name} has no version in its name", why="no-data", source=str(path))
    return Signal(version, source=str(path))


def _file(path: Path, parse: Callable[[str], Any], unit: str | None = None) -> Signal:
    """Read and parse one file; what cannot be read or understood becomes the reason."""
    try:
        value = parse(path.read_text(errors="replace"))
    except OSError as error:
        return unreadable(error, path, unit)
    except ValueError as error:
        return Signal(reason=f"{path}: {error}", why="failed", unit=unit, source=str(path))
    if value is None:
        return Signal(reason=f"{path} does not say", why="no-data", unit=unit, source=str(path))
    return Signal(value, None, unit, str(path))


def _host(root: Path) -> dict[str, Source]:
    system = platform.uname()

    def memory(name: str) -> Signal:
        return _file(root / "proc/meminfo", lambda content: host.meminfo(content).get(name), "B")

    return {
        "host.name": Source(text, lambda: _named(system.node)),
        "host.arch": Source(text, lambda: Signal(system.machine, source="uname")),
        "host.kernel": Source(text, lambda: Signal(system.release, source="uname")),
        "host.os": Source(text, lambda: _file(root / "etc/os-release", host.os_name)),
        "host.python": Source(version, lambda: Signal(platform.python_version(), source="envcheck's own")),
        "host.uid": Source(whole, lambda: Signal(os.getuid(), source="getuid")),
        "host.cpus": Source(whole, _cpus),
        "host.cpu": Source(text, lambda: _file(root / "proc/cpuinfo", host.cpu_model)),
        "host.memory_total": Source(number, lambda: memory("MemTotal")),
        "host.memory_available": Source(number, lambda: memory("MemAvailable")),
        "host.gpu_modules": Source(listed(text), lambda: _file(root / "proc/modules", _gpu_modules)),
    }


def _named(node: str) -> Signal:
    return Signal(node, source="uname") if node else Signal(reason="uname: no host name", why="no-data")


def _cpus() -> Signal:
    return Signal(len(os.sched_getaffinity(0)), unit="CPUs", source="sched_getaffinity")


def _gpu_modules(text: str) -> list[str]:
    return [name for name in host.modules(text) if name.startswith(_GPU_MODULES)]


def _container(root: Path, environ: Mapping[str, str]) -> dict[str, Source]:
    cgroup = root / "sys/fs/cgroup"
    cpus = Source(unlimited, lambda: _file(cgroup / _beside(root, "cpu.max"), containers.cpu_limit, "CPUs"))
    return {
        "container.runtime": Source(text, lambda: _runtime(root, environ)),
        "container.memory_limit": Source(unlimited, lambda: _memory_limit(root)),
        "container.cpu_limit": cpus,
    }


def _memory_limit(root: Path) -> Signal:
    cgroup, v1 = root / "sys/fs/cgroup", "memory/memory.limit_in_bytes"
    path = cgroup / (v1 if (cgroup / v1).exists() else _beside(root, "memory.max"))
    return _file(path, containers.memory_limit, "B")


def _runtime(root: Path, environ: Mapping[str, str]) -> Signal:
    init = root / "proc/1/cgroup"
    name = containers.runtime(
        dockerenv=(root / ".dockerenv").exists(),
        containerenv=(root / "run/.containerenv").exists(),
        environ=environ,
        init_cgroup=init.read_text(errors="replace") if os.access(init, os.R_OK) else "",
    )
    return Signal(name, source="/.dockerenv, /run/.containerenv, environment, /proc/1/cgroup")


def _beside(root: Path, name: str) -> str:
    """Return where a cgroup v2 file of this process is: its own group's, or the top's where that is hidden."""
    own = root / "proc/self/cgroup"
    path = (containers.cgroup_path(own.read_text()) or "/") if os.access(own, os.R_OK) else "/"
    inner = f"{path.strip('/')}/{name}".lstrip("/")
    return inner if (root / "sys/fs/cgroup" / inner).exists() else name


def _shm(root: Path) -> dict[str, Source]:
    path, mounts = root / "dev/shm", root / "proc/self/mounts"
    return {
        "shm.total": Source(number, lambda: _space(path, lambda state: state.f_blocks)),
        "shm.free": Source(number, lambda: _space(path, lambda state: state.f_bavail)),
        "shm.kind": Source(text, lambda: _file(mounts, lambda content: _kind_of(content, str(path)))),
    }


def _space(path: Path, blocks: Callable[[os.statvfs_result], int]) -> Signal:
    try:
        state = os.statvfs(path)
    except OSError as error:
        return unreadable(error, path, "B")
    return Signal(blocks(state) * state.f_frsize, unit="B", source=str(path))


def _kind_of(text: str, path: str) -> str | None:
    return next((mount.kind for mount in reversed(host.mounts(text)) if mount.path == path), None)


def _limits(root: Path) -> dict[str, Source]:
    def limit(name: str, unit: str) -> Signal:
        return _file(root / "proc/self/limits", lambda content: host.soft_limit(content, name), unit)

    return {
        "limits.memlock": Source(unlimited, lambda: limit("Max locked memory", "B")),
        "limits.nofile": Source(unlimited, lambda: limit("Max open files", "files")),
    }


def _environment(environ: Mapping[str, str]) -> dict[str, Source]:
    """Keep what steers CUDA, NCCL and the loader. Of what looks like a secret only the name is ever kept."""
    steering = {n: v for n, v in environ.items() if n.startswith(_ENVIRONMENT) or n in _ENVIRONMENT_NAMES}
    kept = {n: v for n, v in sorted(steering.items()) if not _SECRET.search(n)}
    secret = sorted(n for n in environ if _SECRET.search(n))
    return {
        "env": Source(mapped(string), lambda: Signal(kept, source=_OWN)),
        "env.secret_names": Source(listed(text), lambda: Signal(secret, source=_OWN)),
    }


NODE: Final[dict[str, ValueType]] = {
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
