"""Read this node: every signal has its value, or the reason why it could not be read."""

from __future__ import annotations

import datetime as dt
import importlib
import os
import platform
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from envcheck.node import container, host, infiniband, kmsg, nvml, pci, proc, toolkit
from envcheck.node.snapshot import Gpu, Signal, Snapshot

_ROOT: Final = Path("/")
_ENVIRONMENT: Final = ("NVIDIA_", "CUDA_", "NCCL_", "TORCH_", "PYTORCH_", "OMP_", "UCX_", "FI_", "COMPUTE_", "OPENCL_")
_ENVIRONMENT_NAMES: Final = frozenset(
    {"LD_LIBRARY_PATH", "LD_PRELOAD", "NSIGHT_CUDA_DEBUGGER", "MASTER_ADDR", "WORLD_SIZE"}
)
_SECRET: Final = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_KEY|PRIVATE", re.IGNORECASE)
_GPU_MODULES: Final = ("nvidia", "nouveau", "gdrdrv", "nv_peer_mem", "efa_nv_peermem")
NVML_TIMEOUT: Final = 20.0
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
    """Read every signal of this node; takes well under a second where the driver answers."""
    signals, gpus = _nvidia(root, environ, nvml.QUERIES)
    signals |= _host(root) | _container(root, environ) | _shm(root) | _limits(root) | _environment(environ)
    signals |= (
        kmsg.signals(root)
        | host.signals(root, environ)
        | pci.signals(root)
        | infiniband.signals(root)
        | toolkit.signals(root, environ)
    )
    return Snapshot(_now(), signals, gpus)


def identify(root: Path = _ROOT, environ: Mapping[str, str] = os.environ) -> Snapshot:
    """Read only what resolving needs: driver.version, driver.cuda, host.arch; each GPU's name, UUID and capability."""
    signals, gpus = _nvidia(root, environ, nvml.IDENTITY)
    return Snapshot(_now(), {**signals, "host.arch": Signal(platform.machine())}, gpus)


def _now() -> str:
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")


def _nvidia(
    root: Path, environ: Mapping[str, str], queries: tuple[nvml.Query, ...]
) -> tuple[dict[str, Signal], list[Gpu]]:
    """Ask NVML where its library is; the versions of kernel module and libraries are read off files beside it."""
    library = find_library("libnvidia-ml.so.1", root, environ)
    libcuda = find_library("libcuda.so.1", root, environ)
    signals, gpus = nvml.unread("libnvidia-ml.so.1 is not on the loader's path") if library is None else ask(queries)
    signals |= {
        "driver.kernel": _file(root / "proc/driver/nvidia/version", _kernel_version),
        "driver.kernel_flavour": _file(root / "proc/driver/nvidia/version", _kernel_flavour),
        "driver.library": _library_version("libnvidia-ml.so.1", library),
        "driver.libcuda": _library_version("libcuda.so.1", libcuda),
    }
    if signals["driver.version"].value is None and signals["driver.kernel"].value is not None:
        signals["driver.version"] = signals["driver.kernel"]
    return signals, gpus


def ask(queries: tuple[nvml.Query, ...], timeout: float = NVML_TIMEOUT) -> nvml.Reading:
    """Ask NVML on a thread of its own: a wedged driver never answers; after `timeout` seconds that is the reason."""
    try:
        module = load_nvml()
    except ImportError as error:
        return nvml.unread(f"nvidia-ml-py: {error}")
    answer: list[nvml.Reading] = []
    thread = threading.Thread(target=lambda: answer.append(nvml.read(module, queries)), daemon=True)
    thread.start()
    thread.join(timeout)
    return answer[0] if answer else nvml.unread(f"NVML gave no answer in {timeout:g} s")


def load_nvml() -> Any:
    """Import nvidia-ml-py, which only a machine with the library has use for."""
    return importlib.import_module("pynvml")


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


def _host(root: Path) -> dict[str, Signal]:
    here = platform.uname()
    return {
        "host.name": Signal(here.node, source="uname") if here.node else Signal(reason="uname: no host name"),
        "host.arch": Signal(here.machine, source="uname"),
        "host.kernel": Signal(here.release, source="uname"),
        "host.os": _file(root / "etc/os-release", proc.os_name),
        "host.python": Signal(platform.python_version(), source="envcheck's own"),
        "host.uid": Signal(os.getuid(), source="getuid"),
        "host.cpus": Signal(len(os.sched_getaffinity(0)), unit="CPUs", source="sched_getaffinity"),
        "host.cpu": _file(root / "proc/cpuinfo", proc.cpu_model),
        "host.memory_total": _file(root / "proc/meminfo", lambda text: proc.meminfo(text).get("MemTotal"), "B"),
        "host.memory_available": _file(root / "proc/meminfo", lambda text: proc.meminfo(text).get("MemAvailable"), "B"),
        "host.gpu_modules": _file(root / "proc/modules", _gpu_modules),
    }


def _gpu_modules(text: str) -> list[str]:
    return [name for name in proc.modules(text) if name.startswith(_GPU_MODULES)]


def _container(root: Path, environ: Mapping[str, str]) -> dict[str, Signal]:
    init = root / "proc/1/cgroup"
    cgroup = root / "sys/fs/cgroup"
    v1 = (cgroup / "memory/memory.limit_in_bytes").exists()
    name = container.runtime(
        dockerenv=(root / ".dockerenv").exists(),
        containerenv=(root / "run/.containerenv").exists(),
        environ=environ,
        init_cgroup=init.read_text(errors="replace") if os.access(init, os.R_OK) else "",
    )
    memory = "memory/memory.limit_in_bytes" if v1 else _beside(root, "memory.max")
    return {
        "container.runtime": Signal(name, source="/.dockerenv, /run/.containerenv, environment, /proc/1/cgroup"),
        "container.memory_limit": _file(cgroup / memory, container.memory_limit, "B"),
        "container.cpu_limit": _file(cgroup / _beside(root, "cpu.max"), container.cpu_limit, "CPUs"),
    }


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
        return {"shm.total": gone, "shm.free": gone, "shm.kind": gone}
    kinds = _file(root / "proc/self/mounts", lambda text: _kind_of(text, str(path)))
    return {
        "shm.total": Signal(state.f_blocks * state.f_frsize, unit="B", source=str(path)),
        "shm.free": Signal(state.f_bavail * state.f_frsize, unit="B", source=str(path)),
        "shm.kind": kinds,
    }


def _kind_of(text: str, path: str) -> str | None:
    return next((mount.kind for mount in reversed(proc.mounts(text)) if mount.path == path), None)


def _limits(root: Path) -> dict[str, Signal]:
    path = root / "proc/self/limits"
    return {
        "limits.memlock": _file(path, lambda text: proc.soft_limit(text, "Max locked memory"), "B"),
        "limits.nofile": _file(path, lambda text: proc.soft_limit(text, "Max open files"), "files"),
    }


def _environment(environ: Mapping[str, str]) -> dict[str, Signal]:
    """Keep what steers CUDA, NCCL and the loader. Of what looks like a secret only the name is ever kept."""
    steering = {n: v for n, v in environ.items() if n.startswith(_ENVIRONMENT) or n in _ENVIRONMENT_NAMES}
    return {
        "env": Signal({n: v for n, v in sorted(steering.items()) if not _SECRET.search(n)}, source="environment"),
        "env.secret_names": Signal(sorted(n for n in environ if _SECRET.search(n)), source="environment"),
    }
