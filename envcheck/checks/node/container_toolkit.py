"""The driver was upgraded, the node works, and every container on it looks for libraries of yesterday's driver.

`nvidia-ctk cdi generate` writes a CDI specification once, and nobody writes it again. It holds device numbers, too,
which the kernel gives anew at each boot (NVIDIA/NemoClaw#4733, NVIDIA/nvidia-container-toolkit#1934).
"""

import re
from typing import Any

from envcheck.checks import Check, Limit, Outcome, View, passed, skipped, undecided, warned, worst
from envcheck.checks.gpu_readings import unreadable
from envcheck.counting import counted

CHECK = Check("containers are given the driver that is loaded", "quick", 0.05, gpus=1)

_SOURCE = "Container Device Interface: a specification lists the driver's files by version"
_GENERATE = "nvidia-ctk cdi generate --output={path}, or start nvidia-cdi-refresh (toolkit 1.18 and newer)"
_NAMES = ("toolkit.tools", "toolkit.engines", "toolkit.cdi", "toolkit.docker")
_DOCKER = "/etc/docker/daemon.json"


def judge(view: View) -> Outcome:
    """Warn of what will keep the next container from its GPU; inside a container the toolkit is somebody else's."""
    runtime = view.snapshot.signal("container.runtime").value
    if runtime not in (None, "none", "lxc", "systemd-nspawn"):  # those may hold a docker of their own
        return skipped(f"in a container ({runtime}): the toolkit is the host's", code="container-toolkit.in-container")
    tools, engines, cdi, docker = (view.snapshot.signal(name) for name in _NAMES)
    for name in _NAMES[:2]:
        missing = unreadable(view, name, "take the snapshot again", ())
        if missing is not None:
            return missing
    findings = []
    if docker.reason is not None and "docker" in engines.value:
        fix = f"correct {_DOCKER}, then: nvidia-ctk runtime configure --runtime=docker"
        text = f"docker's settings cannot be read: {docker.reason}"
        findings.append(warned(text, fix=fix, code="container-toolkit.docker", culprit=_DOCKER))
    chosen = (docker.value or {}).get("default")
    # containerd's own are named by their shim (io.containerd.runc.v2), or by a path.
    if chosen not in (None, "runc", *(docker.value or {}).get("runtimes", ())) and not re.search("[./]", str(chosen)):
        fix = f"nvidia-ctk runtime configure --runtime=docker, or take default-runtime out of {_DOCKER}; restart docker"
        where = "is not among its runtimes in daemon.json"
        text = f"docker's default runtime {chosen} {where}: docker does not start unless --add-runtime names it"
        findings.append(warned(text, fix=fix, code="container-toolkit.default", culprit=_DOCKER))
    if cdi.value is None:
        reason = f"the CDI specifications cannot be read: {cdi.reason}"
        findings.append(undecided(reason, fix="run as root", code="container-toolkit.cdi-unread"))
    findings += _stale(view, cdi.value or [])
    return worst(findings, _installed(tools.value, engines.value, cdi.value or []))


def _stale(view: View, specifications: list[dict[str, Any]]) -> list[Outcome]:
    driver = view.snapshot.signal("driver.kernel").value or view.snapshot.signal("driver.version").value
    limit, findings = Limit(driver, "driver version", _SOURCE, "equal"), []
    for row in {row.get("kind"): row for row in specifications}.values():
        fix, others = _GENERATE.format(path=row["path"]), [one for one in row["drivers"] if one != driver]
        if driver is not None and others:
            why = f"{row['path']} names files of driver {', '.join(others)}; loaded is {driver}"
            code = "container-toolkit.stale"
            findings.append(warned(why, fix=fix, value=others[0], limit=limit, code=code, culprit=row["path"]))
        major = (view.snapshot.signal("toolkit.cdi_uvm").value or {}).get(row["path"])
        if major is not None:
            why = f"{row['path']} gives /dev/nvidia-uvm a number ({major}) that is not its own: no CUDA in containers"
            findings.append(warned(why, fix=fix, value=major, code="container-toolkit.moved", culprit=row["path"]))
    return findings


def _installed(tools: dict[str, Any], engines: list[Any], specifications: list[dict[str, Any]]) -> Outcome:
    if not tools:
        also = f"; {', '.join(engines)} here cannot give a container its GPUs" if engines else ""
        return skipped(f"no NVIDIA container toolkit is installed{also}", code="container-toolkit.not-installed")
    versions = ", ".join(f"{name} {version}" for name, version in sorted(tools.items()))
    written = counted(len(specifications), "CDI specification") if specifications else "no CDI specification"
    return passed(f"{versions}; {written}", value=versions, specifications=specifications)
