"""The driver was upgraded, the node works, and every container on it looks for libraries of yesterday's driver.

Seen in the wild: a CDI specification that `nvidia-ctk cdi generate` wrote once and nobody writes again, so that podman,
Kubernetes or docker's `--device nvidia.com/gpu=all` end in "no such file: libcuda.so.550.54.14"; a daemon.json that is
no JSON after an edit by hand, and a docker that does not start at the next reboot.
"""

from __future__ import annotations

from typing import Any, Final

from envcheck.checks import Check, Limit, Outcome, View, passed, skipped, undecided, warned, worst
from envcheck.counting import counted

CHECK = Check(
    promise="containers are given the driver that is loaded",
    level="quick",
    seconds=0.05,
    gpus=1,
)

_SOURCE: Final = "Container Device Interface: a specification lists the driver's files by version"
_GENERATE: Final = "nvidia-ctk cdi generate --output={path}, or start nvidia-cdi-refresh (toolkit 1.18 and newer)"
_NAMES: Final = ("toolkit.tools", "toolkit.engines", "toolkit.cdi", "toolkit.docker")


def judge(view: View) -> Outcome:
    """Warn of what will keep the next container from its GPU; inside a container the toolkit is somebody else's."""
    runtime = view.snapshot.signal("container.runtime").value
    if runtime not in (None, "none"):
        return skipped(f"in a container ({runtime}): the toolkit is the host's", code="container-toolkit.in-container")
    if view.snapshot.signal("toolkit.tools").why == "not-collected":
        return skipped(
            "this snapshot is older than the question: the container toolkit was not collected",
            code="signal.not-collected",
        )
    tools, engines, cdi, docker = (view.snapshot.signal(name) for name in _NAMES)
    if not isinstance(tools.value, dict) or not isinstance(engines.value, list) or not _listed(cdi.value or []):
        return undecided(
            "the toolkit's signals have an unexpected type or value",
            fix="take the snapshot again",
            code="container-toolkit.unexpected-value",
        )
    findings = []
    if docker.reason is not None and "docker" in engines.value:
        fix = "correct /etc/docker/daemon.json, then: nvidia-ctk runtime configure --runtime=docker"
        text = f"docker's settings cannot be read: {docker.reason}"
        findings.append(warned(text, fix=fix, code="container-toolkit.docker", culprit="/etc/docker/daemon.json"))
    if cdi.value is None:
        reason = f"the CDI specifications cannot be read: {cdi.reason}"
        findings.append(undecided(reason, fix="run as root", code="container-toolkit.cdi-unread"))
    findings += _stale(view, cdi.value or [])
    return worst(findings, _installed(tools.value, engines.value, cdi.value or []))


def _listed(specifications: Any) -> bool:
    return isinstance(specifications, list) and all(
        isinstance(row, dict) and isinstance(row.get("path"), str) and isinstance(row.get("drivers"), list)
        for row in specifications
    )


def _stale(view: View, specifications: list[dict[str, Any]]) -> list[Outcome]:
    """Compare the specification of each kind that counts, the last one read, with the loaded driver."""
    driver = view.snapshot.signal("driver.kernel").value or view.snapshot.signal("driver.version").value
    limit, findings = Limit(driver, "driver version", _SOURCE, "equal"), []
    for row in {str(row.get("kind")): row for row in specifications}.values():
        others = [version for version in row["drivers"] if version != driver]
        if driver is not None and others:
            why = f"{row['path']} names files of driver {', '.join(map(str, others))}; loaded is {driver}"
            fix, code = _GENERATE.format(path=row["path"]), "container-toolkit.stale"
            findings.append(warned(why, fix=fix, value=others[0], limit=limit, code=code, culprit=row["path"]))
    return findings


def _installed(tools: dict[str, Any], engines: list[Any], specifications: list[dict[str, Any]]) -> Outcome:
    if not tools:
        also = f"; {', '.join(map(str, engines))} here cannot give a container its GPUs" if engines else ""
        return skipped(f"no NVIDIA container toolkit is installed{also}", code="container-toolkit.not-installed")
    versions = ", ".join(f"{name} {version}" for name, version in sorted(tools.items()))
    written = counted(len(specifications), "CDI specification") if specifications else "no CDI specification"
    return passed(f"{versions}; {written}", value=versions, specifications=specifications)
