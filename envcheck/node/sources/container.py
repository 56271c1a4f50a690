"""Whether this is a container, which one, and what it may use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

UNLIMITED: Final = "unlimited"
# cgroup v1 has no word for "no limit": it prints the largest page-aligned int64.
_V1_UNLIMITED: Final = 1 << 62


def runtime(*, dockerenv: bool, containerenv: bool, environ: Mapping[str, str], init_cgroup: str) -> str:
    """Name the container runtime by the marks each leaves: docker, podman, kubernetes …; "none" outside."""
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    if "APPTAINER_CONTAINER" in environ or "SINGULARITY_CONTAINER" in environ:
        return "apptainer"
    if containerenv:
        return "podman"
    if dockerenv:
        return "docker"
    if environ.get("container"):
        return environ["container"]
    return next((name for name in ("kubepods", "docker", "containerd", "lxc") if f"/{name}" in init_cgroup), "none")


def memory_limit(text: str) -> int | str:
    """Read memory.max (cgroup v2) or memory.limit_in_bytes (v1), in bytes. Raises ValueError on anything else."""
    word = text.strip()
    if word == "max" or (word.isdecimal() and int(word) >= _V1_UNLIMITED):
        return UNLIMITED
    return int(word)


def cpu_limit(text: str) -> float | str:
    """Read cpu.max (cgroup v2: quota and period), in CPUs. Raises ValueError on anything else."""
    quota, period = text.split()
    return UNLIMITED if quota == "max" else int(quota) / int(period)


def cgroup_path(text: str) -> str | None:
    """Read this process's cgroup v2 path off /proc/self/cgroup; None on pure v1."""
    return next((line[3:] for line in text.splitlines() if line.startswith("0::/")), None)
