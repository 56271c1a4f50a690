"""Whether this is a container and what it may use; and NVIDIA's container toolkit on this host."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envcheck.node import subprocesses
from envcheck.node.signal_source import (
    Source,
    fields,
    flag,
    listed,
    mapped,
    maybe,
    parsed,
    string,
    text,
    unlimited,
    version,
    whole,
    word,
)
from envcheck.node.snapshot import Signal, unreadable

UNLIMITED = "unlimited"
# cgroup v1 has no word for "no limit": it prints the largest page-aligned int64.
_V1_UNLIMITED = 1 << 62
_TOOLS = ("nvidia-ctk", "nvidia-container-cli")
_ENGINES = ("docker", "podman", "nerdctl", "apptainer", "enroot")
# Later directories win over earlier ones (CDI specification, "Spec directories").
_CDI = ("etc/cdi", "var/run/cdi")
_VERSION = re.compile(r"\d+\.\d+\.\d+\S*")
_KIND = re.compile(r"^\W*kind\W+(nvidia\.com/[\w.-]+)", re.MULTILINE)
_DRIVER = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.(\d+\.\d+(?:\.\d+)?)\b")
_SPECIFICATIONS = listed(fields(path=text, kind=string, drivers=listed(version), devices=whole))
_RUNTIMES = fields(runtimes=listed(text), default=text, cdi=maybe(flag))
_DEVICE = re.compile(r"^\W*name\W+([\w:.-]+)\W*$", re.MULTILINE)


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


def cgroup_path(text: str) -> str | None:
    """Read this process's cgroup v2 path off /proc/self/cgroup; None on pure v1."""
    return next((line[3:] for line in text.splitlines() if line.startswith("0::/")), None)


def sources(root: Path, environ: Mapping[str, str]) -> dict[str, Source]:
    """Return what reads the container, and toolkit.tools, engines, cdi and docker; absent is what is not installed."""

    def tools() -> Signal:
        return Signal({n: _version(p) for n in _TOOLS if (p := _which(n, root, environ))}, source="PATH")

    def engines() -> Signal:
        return Signal([name for name in _ENGINES if _which(name, root, environ)], source="PATH")

    return {
        "container.runtime": Source(text, lambda: _runtime(root, environ)),
        "container.memory_limit": Source(unlimited, lambda: _memory_limit(root)),
        "toolkit.tools": Source(mapped(text), tools),
        "toolkit.engines": Source(listed(text), engines),
        "toolkit.cdi": Source(_SPECIFICATIONS, lambda: _specifications(root)),
        "toolkit.docker": Source(_RUNTIMES, lambda: _docker(root / "etc/docker/daemon.json")),
    }


def _runtime(root: Path, environ: Mapping[str, str]) -> Signal:
    name = runtime(
        dockerenv=(root / ".dockerenv").exists(),
        containerenv=(root / "run/.containerenv").exists(),
        environ=environ,
        init_cgroup=word(root / "proc/1/cgroup") or "",
    )
    return Signal(name, source="/.dockerenv, /run/.containerenv, environment, /proc/1/cgroup")


def _memory_limit(root: Path) -> Signal:
    """Read the limit of cgroup v1, or of this process's own group, or of the top where that is hidden."""
    cgroup, v1 = root / "sys/fs/cgroup", "memory/memory.limit_in_bytes"
    own = (cgroup_path(word(root / "proc/self/cgroup") or "") or "/").strip("/")
    places = (cgroup / v1, cgroup / own / "memory.max")
    return parsed(next((p for p in places if p.exists()), cgroup / "memory.max"), memory_limit, "B")


def _which(name: str, root: Path, environ: Mapping[str, str]) -> Path | None:
    places = [str(root / place.lstrip("/")) for place in environ.get("PATH", "").split(":") if place.startswith("/")]
    path = shutil.which(name, path=":".join(places)) if places else None
    return Path(path) if path else None


def _version(tool: Path) -> str:
    try:
        match = _VERSION.search(subprocesses.output(tool, "--version"))
    except OSError as error:
        return f"unknown: {error.strerror}"
    return match[0] if match else "unknown: it does not say"


def _specifications(root: Path) -> Signal:
    """Read each specification of NVIDIA's: its file, its kind, and the driver whose files it names."""
    source = ", ".join(f"/{place}" for place in _CDI)
    try:
        files = [p for place in _CDI if (root / place).is_dir() for p in sorted((root / place).iterdir())]
        texts = {p: p.read_text(errors="replace") for p in files if p.suffix in (".yaml", ".json")}
    except OSError as error:
        return unreadable(error, error.filename, source=source)
    specifications = [_specification(path, text, root) for path, text in texts.items() if _KIND.search(text)]
    return Signal(specifications, source=source)


def _specification(path: Path, text: str, root: Path) -> dict[str, Any]:
    kind = _KIND.search(text)
    return {
        "path": f"/{path.relative_to(root)}",
        "kind": kind[1] if kind else "",
        "drivers": sorted(set(_DRIVER.findall(text))),
        "devices": len(set(_DEVICE.findall(text))),
    }


def _docker(path: Path) -> Signal:
    """Read docker's runtimes: their names, which is the default, and whether CDI is switched on."""
    try:
        settings = json.loads(path.read_text(errors="replace"))
    except FileNotFoundError:
        return Signal({"runtimes": [], "default": "runc", "cdi": None}, source=str(path))
    except OSError as error:
        return unreadable(error, path)
    except (ValueError, RecursionError) as error:
        return Signal(reason=f"{path} is not JSON: {error}", why="failed", source=str(path))
    if not isinstance(settings, dict):
        return Signal(reason=f"{path} is no object", why="failed", source=str(path))
    features, runtimes = settings.get("features"), settings.get("runtimes")
    return Signal(
        {
            "runtimes": sorted(runtimes) if isinstance(runtimes, dict) else [],
            "default": str(settings.get("default-runtime", "runc")),
            "cdi": features.get("cdi") if isinstance(features, dict) else None,
        },
        source=str(path),
    )
