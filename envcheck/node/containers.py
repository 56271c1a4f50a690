"""Whether this is a container and what it may use; and NVIDIA's container toolkit on this host."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from envcheck.node import subprocesses
from envcheck.node.signal_source import (
    Source,
    fields,
    listed,
    mapped,
    parsed,
    string,
    text,
    unlimited,
    version,
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
_SPECIFICATIONS = listed(fields(path=text, kind=string, drivers=listed(version)))
_RUNTIMES = fields(runtimes=listed(text))


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
    rows = [
        {"path": f"/{path.relative_to(root)}", "kind": kind[1], "drivers": sorted(set(_DRIVER.findall(text)))}
        for path, text in texts.items()
        if (kind := _KIND.search(text))
    ]
    return Signal(rows, source=source)


def _docker(path: Path) -> Signal:
    """Read the names of docker's runtimes; settings that are no JSON object keep docker from starting."""
    if not path.exists():
        return Signal({"runtimes": []}, source=str(path))
    return parsed(path, lambda text: {"runtimes": sorted({**json.loads(text)}.get("runtimes") or {})})
