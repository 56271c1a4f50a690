"""Read this node: every signal has its value, or the reason why it could not be read."""

from __future__ import annotations

import datetime as dt
import functools
import os
import platform
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from envcheck.node import container, host, infiniband, kmsg, lanes, nvml, pci, proc, toolkit
from envcheck.node.lanes import Lane, Reading, Source
from envcheck.node.snapshot import Signal, Snapshot

_ROOT: Final = Path("/")
_ENVIRONMENT: Final = ("NVIDIA_", "CUDA_", "NCCL_", "TORCH_", "PYTORCH_", "OMP_", "UCX_", "FI_", "COMPUTE_", "OPENCL_")
_ENVIRONMENT_NAMES: Final = frozenset(
    {"LD_LIBRARY_PATH", "LD_PRELOAD", "NSIGHT_CUDA_DEBUGGER", "MASTER_ADDR", "WORLD_SIZE"}
)
_SECRET: Final = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_KEY|PRIVATE", re.IGNORECASE)
_GPU_MODULES: Final = ("nvidia", "nouveau", "gdrdrv", "nv_peer_mem", "efa_nv_peermem")
_OWN: Final = "environment"
_SHM: Final = ("shm.total", "shm.free", "shm.kind")
_LIBRARY_DIRS: Final = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/lib/wsl/lib",
    "usr/local/nvidia/lib64",
    "usr/local/nvidia/lib",
)


def collect(root: Path = _ROOT, environ: Mapping[str, str] = os.environ) -> Snapshot:
    """Read every signal of this node, all sources at once; takes well under a second where each of them answers.

    One that hangs costs its own time limit (lanes.TIMEOUT, nvml.TIMEOUT) and its own signals: they say so.
    """
    signals, gpus = lanes.read(sources(root, environ))
    return Snapshot(_now(), _with_driver(signals), list(gpus))


def identify(root: Path = _ROOT, environ: Mapping[str, str] = os.environ) -> Snapshot:
    """Read only what resolving needs: driver.version, driver.cuda, host.arch; each GPU's name, UUID and capability."""
    signals, gpus = lanes.read(_nvidia(root, environ, "identity"))
    return Snapshot(_now(), {**_with_driver(signals), "host.arch": Signal(platform.machine())}, list(gpus))


def sources(root: Path, environ: Mapping[str, str]) -> list[Lane]:
    """Return what is read off a node, in the order of the snapshot: each by itself what may hang by itself."""
    return [
        *_nvidia(root, environ, "all"),
        *lanes.each(_host(root) | _container(root, environ)),
        lanes.together(_SHM, lambda: _shm(root)),
        *lanes.each(_limits(root) | _environment(environ)),
        lanes.together(kmsg.NAMES, lambda: kmsg.signals(root)),
        *lanes.each(host.sources(root, environ) | pci.sources(root)),
        *lanes.each({"ib.ports": lambda: infiniband.ports(root), **toolkit.sources(root, environ)}),
    ]


def _now() -> str:
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")


def _nvidia(root: Path, environ: Mapping[str, str], what: str) -> list[Lane]:
    """Return what asks NVML, and what reads the versions of kernel module and libraries off files."""
    version = root / "proc/driver/nvidia/version"
    find = functools.partial(find_library, root=root, environ=environ)
    files: dict[str, Source] = {
        "driver.kernel": lambda: _file(version, _kernel_version),
        "driver.kernel_flavour": lambda: _file(version, _kernel_flavour),
        "driver.library": lambda: _library_version("libnvidia-ml.so.1", find("libnvidia-ml.so.1")),
        "driver.libcuda": lambda: _library_version("libcuda.so.1", find("libcuda.so.1")),
    }
    # It says itself when NVML's time is up; a library's directory may hang before that.
    return [Lane(nvml.NAMES, lambda: _nvml(find("libnvidia-ml.so.1"), what), nvml.TIMEOUT + 5), *lanes.each(files)]


def _nvml(library: Path | None, what: str) -> Reading:
    return nvml.ask(what) if library else nvml.unread("libnvidia-ml.so.1 is not on the loader's path")


def _with_driver(signals: dict[str, Signal]) -> dict[str, Signal]:
    """Return the signals with the kernel module's version as the driver's, where NVML does not say it."""
    silent = signals["driver.version"].value is None and signals["driver.kernel"].value is not None
    return {**signals, "driver.version": signals["driver.kernel"]} if silent else signals


def find_library(name: str, root: Path = _ROOT, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file the loader would take: LD_LIBRARY_PATH first, then its cache, then the usual places."""
    cache = root / "etc/ld.so.cache"
    known = proc.cached_libraries(cache.read_bytes(), name) if cache.is_file() else []
    paths = [Path(p) / name for p in environ.get("LD_LIBRARY_PATH", "").split(":") if p]
    paths += [Path(path) for path in known] + [Path("/") / directory / name for directory in _LIBRARY_DIRS]
    found = (root / path.relative_to("/") for path in paths if path.is_absolute())
    return next((path for path in found if path.exists()), None)


def _library_version(name: str, path: Path | None) -> Signal:
    if path is None:
        return Signal(reason=f"{name} is not on the loader's path")
    version = proc.library_version(str(path.resolve()))
    return Signal(version, None if version else f"{path.resolve().name} has no version in its name", source=str(path))


def _kernel_version(text: str) -> str | None:
    module = proc.kernel_module(text)
    return module.version if module else None


def _kernel_flavour(text: str) -> str | None:
    module = proc.kernel_module(text)
    return None if module is None else "open" if module.open else "proprietary"


def _file(path: Path, parse: Callable[[str], Any], unit: str | None = None) -> Signal:
    """Read and parse one file; what cannot be read or understood becomes the reason."""
    try:
        value = parse(path.read_text(errors="replace"))
    except OSError as error:
        return Signal(reason=f"{path}: {error.strerror}", unit=unit, source=str(path))
    except ValueError as error:
        return Signal(reason=f"{path}: {error}", unit=unit, source=str(path))
    if value is None:
        return Signal(reason=f"{path} does not say", unit=unit, source=str(path))
    return Signal(value, None, unit, str(path))


def _host(root: Path) -> dict[str, Source]:
    here, memory = platform.uname(), functools.partial(_memory, root / "proc/meminfo")
    return {
        "host.name": lambda: Signal(here.node, source="uname") if here.node else Signal(reason="uname: no host name"),
        "host.arch": lambda: Signal(here.machine, source="uname"),
        "host.kernel": lambda: Signal(here.release, source="uname"),
        "host.os": lambda: _file(root / "etc/os-release", proc.os_name),
        "host.python": lambda: Signal(platform.python_version(), source="envcheck's own"),
        "host.uid": lambda: Signal(os.getuid(), source="getuid"),
        "host.cpus": lambda: Signal(len(os.sched_getaffinity(0)), unit="CPUs", source="sched_getaffinity"),
        "host.cpu": lambda: _file(root / "proc/cpuinfo", proc.cpu_model),
        "host.memory_total": lambda: memory("MemTotal"),
        "host.memory_available": lambda: memory("MemAvailable"),
        "host.gpu_modules": lambda: _file(root / "proc/modules", _gpu_modules),
    }


def _memory(path: Path, name: str) -> Signal:
    return _file(path, lambda text: proc.meminfo(text).get(name), "B")


def _gpu_modules(text: str) -> list[str]:
    return [name for name in proc.modules(text) if name.startswith(_GPU_MODULES)]


def _container(root: Path, environ: Mapping[str, str]) -> dict[str, Source]:
    cgroup, v1 = root / "sys/fs/cgroup", "memory/memory.limit_in_bytes"
    return {
        "container.runtime": lambda: _runtime(root, environ),
        "container.memory_limit": lambda: _file(
            cgroup / (v1 if (cgroup / v1).exists() else _beside(root, "memory.max")), container.memory_limit, "B"
        ),
        "container.cpu_limit": lambda: _file(cgroup / _beside(root, "cpu.max"), container.cpu_limit, "CPUs"),
    }


def _runtime(root: Path, environ: Mapping[str, str]) -> Signal:
    init = root / "proc/1/cgroup"
    name = container.runtime(
        dockerenv=(root / ".dockerenv").exists(),
        containerenv=(root / "run/.containerenv").exists(),
        environ=environ,
        init_cgroup=init.read_text(errors="replace") if os.access(init, os.R_OK) else "",
    )
    return Signal(name, source="/.dockerenv, /run/.containerenv, environment, /proc/1/cgroup")


def _beside(root: Path, name: str) -> str:
    """Return where a cgroup v2 file of this process is: its own group's, or the top's where that is hidden."""
    own = root / "proc/self/cgroup"
    path = (container.cgroup_path(own.read_text()) or "/") if os.access(own, os.R_OK) else "/"
    inner = f"{path.strip('/')}/{name}".lstrip("/")
    return inner if (root / "sys/fs/cgroup" / inner).exists() else name


def _shm(root: Path) -> dict[str, Signal]:
    path = root / "dev/shm"
    try:
        state = os.statvfs(path)
    except OSError as error:
        gone = Signal(reason=f"{path}: {error.strerror}", unit="B", source=str(path))
        return dict.fromkeys(_SHM, gone)
    kinds = _file(root / "proc/self/mounts", lambda text: _kind_of(text, str(path)))
    return {
        "shm.total": Signal(state.f_blocks * state.f_frsize, unit="B", source=str(path)),
        "shm.free": Signal(state.f_bavail * state.f_frsize, unit="B", source=str(path)),
        "shm.kind": kinds,
    }


def _kind_of(text: str, path: str) -> str | None:
    return next((mount.kind for mount in reversed(proc.mounts(text)) if mount.path == path), None)


def _limits(root: Path) -> dict[str, Source]:
    path = root / "proc/self/limits"
    return {
        "limits.memlock": lambda: _file(path, lambda text: proc.soft_limit(text, "Max locked memory"), "B"),
        "limits.nofile": lambda: _file(path, lambda text: proc.soft_limit(text, "Max open files"), "files"),
    }


def _environment(environ: Mapping[str, str]) -> dict[str, Source]:
    """Keep what steers CUDA, NCCL and the loader. Of what looks like a secret only the name is ever kept."""
    steering = {n: v for n, v in environ.items() if n.startswith(_ENVIRONMENT) or n in _ENVIRONMENT_NAMES}
    return {
        "env": lambda: Signal({n: v for n, v in sorted(steering.items()) if not _SECRET.search(n)}, source=_OWN),
        "env.secret_names": lambda: Signal(sorted(n for n in environ if _SECRET.search(n)), source=_OWN),
    }
