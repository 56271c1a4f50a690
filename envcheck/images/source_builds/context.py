"""The files that a build from source gets: the sdist, what builds it, and the scripts; no mirror and no credential."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from envcheck.data import data_path
from envcheck.images.locks.lockfile import format_lock
from envcheck.images.locks.model import Lock
from envcheck.images.locks.prefetch import held
from envcheck.images.source_builds.recipe import ExtensionBuild, jobs
from envcheck.mirrors.store.objects import Store
from envcheck.node import containers, host

_SCRIPTS: Final = ("Dockerfile", "build_wheel.sh", "torch_symbols.py")
_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def required(build: ExtensionBuild) -> list[Lock]:
    """Return the lock of what a build needs besides `devel`, nothing where it needs nothing."""
    pins = build.sdist.requires
    return [Lock(group="devel", index="pypi", pins=pins)] if pins else []


def write(build: ExtensionBuild, store: Store, directory: Path, epoch: int, most_jobs: int | None) -> int:
    """Write the context of a build, whose files are in the store, into a new directory; return the number of jobs."""
    (directory / "sdist").mkdir(parents=True)
    (directory / "wheels").mkdir()
    for name in _SCRIPTS:
        shutil.copyfile(data_path("templates") / "context/extension" / name, directory / name)
    sdist = store.name(build.sdist.sha256) or f"{build.sdist.name}-{build.sdist.version}.tar.gz"
    store.view(build.sdist.sha256, directory / "sdist" / sdist)
    for lock in required(build):
        (directory / "build.lock").write_text(format_lock(lock, f"what builds {build.what}"))
    for wheel in held(store, required(build), build.devel.cell.python):
        store.view(wheel.sha256, directory / "wheels" / wheel.name)
    number = jobs(available_memory(), len(os.sched_getaffinity(0)), cuda=bool(build.gpus), most=most_jobs)
    lines = [f"{name}={value}\n" for name, value in build.environment(number, epoch).items()]
    (directory / "environment").write_text("".join(lines))
    # Who builds may be another user's daemon, and compiles as the image's user.
    for path in [directory, *directory.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
    return number


def available_memory() -> float:
    """Return the bytes that processes may still use here: the kernel's estimate, or the container's limit; 0 unread."""
    amounts = [host.meminfo(_text("/proc/meminfo")).get("MemAvailable", 0)]
    limits = [text for text in map(_text, _LIMITS) if text]
    amounts += [limit for limit in map(containers.memory_limit, limits) if isinstance(limit, int)]
    return min(amounts)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
