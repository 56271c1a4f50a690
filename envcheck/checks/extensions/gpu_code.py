"""Compare the GPU code of an extension's libraries with the GPUs of this node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from envcheck.checks import Limit, Outcome, View, failed, skipped, undecided
from envcheck.checks.node.support import gpu_readings, matrix_facts
from envcheck.errors import ConfigError
from envcheck.matrix.resolver.verdict import OK, driver_verdict, runs_on
from envcheck.node.snapshot import Gpu

SOURCE: Final = "CUDA C++ Programming Guide: binary compatibility within a major, PTX compatibility upwards"


def findings(view: View, row: Mapping[str, Any]) -> list[Outcome]:
    """Return what is wrong with an extension's GPU code; a skip where there is no GPU to compare it with."""
    libraries = row.get("libraries") or []
    sass = sorted({code for library in libraries for code in library.get("sass") or ()}, key=_number)
    ptx = sorted({code for library in libraries for code in library.get("ptx") or ()}, key=_number)
    if not sass and not ptx:
        return []
    name = str(row["name"])
    if not view.snapshot.gpus:
        text = f"{name} {row.get('version')}: every library fits; no GPU to compare its code with"
        return [skipped(text, code="extensions.cpu-only", culprit=name)]
    return [finding for gpu in view.snapshot.gpus for finding in _on(view, row, gpu, sass, ptx)]


def _number(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in capability.split("."))


def _on(view: View, row: Mapping[str, Any], gpu: Gpu, sass: list[str], ptx: list[str]) -> list[Outcome]:
    capability, name = gpu.signal("compute_capability"), str(row["name"])
    culprit = gpu_readings.culprit(view, gpu_readings.label(gpu))
    if capability.value is None:
        text = f"{name}: the compute capability of GPU {gpu.uuid} is unread: {capability.reason}"
        return [undecided(text, fix="look at NVML", code="extensions.gpu-unread", culprit=culprit)]
    cc, cuda = str(capability.value), str(view.environment.get("cuda") or "")
    try:
        matrix = matrix_facts.matrix(view)
        if runs_on(matrix, sass, [], cc, cuda):
            return []
        driver = view.snapshot.signal("driver.version").value
        by_ptx = runs_on(matrix, [], ptx, cc, cuda)
        native = bool(driver) and driver_verdict(matrix, cuda, str(driver), matrix_facts.datacenter(view)).name == OK
    except ConfigError as error:
        text = f"{name}: its code cannot be compared with GPU {gpu.uuid}: {error.message}"
        return [undecided(text, fix="update envcheck's facts", code="extensions.gpu-unread", culprit=culprit)]
    if by_ptx and native:
        return []
    has = " ".join([*sass, *(f"{code}+PTX" for code in ptx)])
    why = f"only PTX fits, and driver {driver} compiles none of CUDA {cuda}" if by_ptx else f"it has code for {has}"
    code = "extensions.ptx" if by_ptx else "extensions.no-gpu-code"
    fix = f"install a {name} with code for {cc} (`envcheck resolve --with {name} --cc {cc}`), or use another GPU"
    text = f"{name} {row.get('version')}: no code runs on compute capability {cc}: {why}"
    limit = Limit(f"code for {cc}", "", SOURCE, "equal")
    return [failed(text, fix=fix, code=code, culprit=culprit, value=has, limit=limit, gpus=[gpu.uuid])]
