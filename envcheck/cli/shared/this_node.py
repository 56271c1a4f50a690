"""Fill in what a question leaves out from this node, and say what was read off it."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, get_args

from envcheck.errors import UnavailableError
from envcheck.matrix.facts.model import HostArch, Matrix
from envcheck.matrix.resolver.resolve import Query, find_gpu
from envcheck.node.snapshot import Snapshot

_VERSION: Final = re.compile(r"^version(?:_info)?\s*=\s*(3\.\d+)", re.MULTILINE)
_NAME: Final = re.compile(r"python(3\.\d+t?)")


class FilledQuery(NamedTuple):
    """A question filled in: `read` says what came off this node, `notes` what was not there."""

    query: Query
    read: dict[str, str]
    notes: list[str]


def fill(matrix: Matrix, query: Query, snapshot: Snapshot, python: str) -> FilledQuery:
    """Return `wanted` with every free axis of the machine and the Python read off this node.

    Without an NVIDIA GPU that is the cpu variant, unless another variant was asked for. Raises UnavailableError for
    GPUs that cannot be identified or whose driver cannot be read: leaving those free would be a guess.
    """
    read: dict[str, str] = {}
    notes: list[str] = []
    if query.python is None:
        query, read["python"] = query.replace(python=python), python
    arch = snapshot.signal("host.arch").value
    if query.arch is None and not query.gpus and arch in get_args(HostArch):
        query, read["arch"] = query.replace(arch=arch), str(arch)
    if query.variant != "cpu":
        query = _machine(matrix, query, snapshot, read, notes)
    return FilledQuery(query, read, notes)


def _machine(matrix: Matrix, query: Query, snapshot: Snapshot, read: dict[str, str], notes: list[str]) -> Query:
    driver = snapshot.signal("driver.version")
    if not snapshot.gpus:
        why = driver.reason or f"driver {driver.value} is loaded, but NVML lists no GPU"
        if query.driver or query.gpus or query.cc or query.variant or query.cuda:
            notes.append(f"no NVIDIA GPU on this node ({why}): its driver and GPU are left free")
            return query
        notes.append(f"no NVIDIA GPU on this node ({why}): the cpu variant")
        return query.replace(variant="cpu")
    if query.driver is None:
        if not isinstance(driver.value, str):
            message = f"this node has a GPU, but its driver version could not be read: {driver.reason}"
            raise UnavailableError(message, fix="give it with --driver")
        query, read["driver"] = query.replace(driver=driver.value), driver.value
    if not query.gpus and not query.cc:
        query = _gpus(matrix, query, snapshot, read)
    return query


def _gpus(matrix: Matrix, query: Query, snapshot: Snapshot, read: dict[str, str]) -> Query:
    names, capabilities = [], []
    for gpu in snapshot.gpus:
        name, capability = gpu.signal("name"), gpu.signal("compute_capability")
        if isinstance(name.value, str) and find_gpu(matrix, name.value) is not None:
            names.append(name.value)
        elif isinstance(capability.value, str):
            capabilities.append(capability.value)
        else:
            why = capability.reason or name.reason or "NVML gives neither a known name nor a compute capability"
            message = f"GPU {gpu.uuid} cannot be identified: {why}"
            raise UnavailableError(message, fix="give it with --gpu or --cc")
    read["gpu"] = ", ".join([*names, *(f"compute capability {cc}" for cc in capabilities)])
    return query.replace(gpus=list(dict.fromkeys(names)), cc=list(dict.fromkeys(capabilities)))


def active_python(environ: Mapping[str, str] = os.environ) -> str:
    """Return the version (3.12, 3.13t) of the Python that `python3` is here, without starting it.

    An active virtual environment comes first, then `python3` on PATH; when neither tells, the Python this runs on.
    """
    venv = environ.get("VIRTUAL_ENV")
    python = shutil.which("python3", path=environ.get("PATH"))
    for executable in (Path(venv, "bin", "python3") if venv else None, Path(python) if python else None):
        version = _version_of(executable) if executable is not None else None
        if version is not None:
            return version
    return f"3.{sys.version_info.minor}"


def _version_of(executable: Path) -> str | None:
    named = _NAME.fullmatch(executable.resolve().name)
    if named is not None:
        return named[1]
    try:
        version = _VERSION.search(executable.parent.with_name("pyvenv.cfg").read_text())
    except (OSError, UnicodeDecodeError):
        return None
    return version[1] if version else None
