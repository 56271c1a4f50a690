"""Whether this is a container and what it may use; and NVIDIA's container toolkit on this host."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envcheck.node import subprocesses
from envcheck.node.signal_source import Source, fields, listed, mapped, string, text, unlimited, version, word

# cgroup v1 has no word for "no limit": it prints the largest page-aligned int64.
_V1_UNLIMITED = 1 << 62
_TOOLS = ("nvidia-ctk", "nvidia-container-cli")
# Later directories win over earlier ones (CDI specification, "Spec directories").
_CDI = ("etc/cdi", "var/run/cdi")
_VERSION = re.compile(r"\d+\.\d+\.\d+\S*")
_KIND = re.compile(r"^\W*kind\W+(nvidia\.com/[\w.-]+)", re.MULTILINE)
_DRIVER = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.(\d+\.\d+(?:\.\d+)?)\b")
_SPECIFICATIONS = listed(fields(path=text, kind=string, drivers=listed(version)))
_RUNTIMES = fields(runtimes=listed(text))


def runtime(*, dockerenv: bool, containerenv: bool, environ: Mapping[str, str], init_cgroup: str) -> str:
    """Name the container runtime by the marks each leaves: docker, podman, kubernetes …; "none" outside."""
    marks = (
        ("kubernetes", "KUBERNETES_SERVICE_HOST" in environ),
        ("apptainer", "APPTAINER_CONTAINER" in environ or "SINGULARITY_CONTAINER" in environ),
        ("podman", containerenv),
        ("docker", dockerenv),
        (environ.get("container", ""), bool(environ.get("container"))),
        *((name, f"/{name}" in init_cgroup) for name in ("kubepods", "docker", "containerd", "lxc")),
    )
    return next((name for name, there in marks if there), "none")


def memory_limit(text: str) -> int | str:
    """Read memory.max (cgroup v2) or memory.limit_in_bytes (v1), in bytes. Raises ValueError on anything else."""
    word = text.strip()
    if word == "max" or (word.isdecimal() and int(word) >= _V1_UNLIMITED):
        return "unlimited"
    return int(word)


def cgroup_path(text: str) -> str | None:
    """Read this process's cgroup v2 path off /proc/self/cgroup; None on pure v1."""
    return next((line[3:] for line in text.splitlines() if line.startswith("0::/")), None)


def sources(root: Path, environ: Mapping[str, str]) -> dict[str, Source]:
    """Return what reads the container, and toolkit.tools, engines, cdi and docker; absent is what is not installed."""
    docker, cgroup = root / "etc/docker/daemon.json", root / "sys/fs/cgroup"
    marks = "/.dockerenv, /run/.containerenv, environment, /run/systemd/container, /proc/1/cgroup"

    def tools() -> dict[str, str]:
        return {name: _version(path) for name in _TOOLS if (path := _which(name, root, environ))}

    def engines() -> list[str]:
        return [name for name in ("docker", "podman", "nerdctl", "apptainer", "enroot") if _which(name, root, environ)]

    def settings() -> dict[str, Any]:
        """Return docker's runtimes and the default one; settings that are no JSON object keep it from starting."""
        said = {**json.loads(docker.read_text(errors="replace"))} if docker.exists() else {}
        return {"runtimes": sorted(said.get("runtimes") or {}), "default": said.get("default-runtime")}

    return {
        "container.runtime": Source(text, lambda: _runtime(root, environ), marks),
        "container.memory_limit": Source(unlimited, lambda: memory_limit(_limit_file(root).read_text()), cgroup, "B"),
        "toolkit.tools": Source(mapped(text), tools, "PATH"),
        "toolkit.engines": Source(listed(text), engines, "PATH"),
        "toolkit.cdi": Source(_SPECIFICATIONS, lambda: _specifications(root), ", ".join(f"/{one}" for one in _CDI)),
        "toolkit.docker": Source(_RUNTIMES, settings, docker),
    }


def _runtime(root: Path, environ: Mapping[str, str]) -> str:
    docker, podman = (root / ".dockerenv").exists(), (root / "run/.containerenv").exists()
    init = word(root / "proc/1/cgroup") or ""
    # systemd writes there which container it runs in (lxc, systemd-nspawn). WSL2 writes wsl, and is no container.
    told = word(root / "run/systemd/container")
    environ = {"container": told, **environ} if told and told != "wsl" else environ
    return runtime(dockerenv=docker, containerenv=podman, environ=environ, init_cgroup=init)


def _limit_file(root: Path) -> Path:
    """Return the limit of cgroup v1, or of this process's own group, or of the top where that is hidden."""
    cgroup, v1 = root / "sys/fs/cgroup", "memory/memory.limit_in_bytes"
    own = (cgroup_path(word(root / "proc/self/cgroup") or "") or "/").strip("/")
    places = (cgroup / v1, cgroup / own / "memory.max")
    return next((place for place in places if place.exists()), cgroup / "memory.max")


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


def _specifications(root: Path) -> list[dict[str, Any]]:
    """Return each specification of NVIDIA's: its file, its kind, and the driver whose files it names."""
    files = [p for place in _CDI if (root / place).is_dir() for p in sorted((root / place).iterdir())]
    texts = {p: p.read_text(errors="replace") for p in files if p.suffix in (".yaml", ".json")}
    return [
        {"path": f"/{path.relative_to(root)}", "kind": kind[1], "drivers": sorted(set(_DRIVER.findall(text)))}
        for path, text in texts.items()
        if (kind := _KIND.search(text))
    ]
