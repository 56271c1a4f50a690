"""What a verdict is bound to, read in a millisecond: this boot, this driver, and the files of a Python."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from envcheck.fleet.gate.verdict import Boot
from envcheck.node.sources.proc import kernel_module
from envcheck.runner.planning.resume import boot_id

_DRIVER: Final = Path("/proc/driver/nvidia")


def this_boot(environ: Mapping[str, str] = os.environ, driver: Path = _DRIVER) -> Boot:
    """Return this node as it is now. The name is Slurm's or Kubernetes' where they give one, else the host's."""
    name = environ.get("SLURMD_NODENAME") or environ.get("NODE_NAME") or platform.node().partition(".")[0]
    version = gpus = None
    with contextlib.suppress(OSError, UnicodeDecodeError):
        version = kernel_module((driver / "version").read_text(encoding="utf-8"))
    with contextlib.suppress(OSError):
        gpus = len(list((driver / "gpus").iterdir()))
    return Boot(
        node=name,
        boot=boot_id(),
        driver=version.version if version else "",
        gpus=gpus or 0,
        uptime=time.clock_gettime(time.CLOCK_BOOTTIME),
    )


def in_pod(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether this process is in a pod of Kubernetes and not on a node of Slurm."""
    return "KUBERNETES_SERVICE_HOST" in environ and "SLURMD_NODENAME" not in environ


def fingerprint(python: Path) -> str:
    """Return what changes when an interpreter is replaced, or a package is installed beside it or removed."""
    prefix = python.parent.parent
    looked_at = [python, prefix / "pyvenv.cfg", prefix / "envcheck-promises.json"]
    looked_at += sorted(prefix.glob("lib*/python3*/*-packages"))
    return hashlib.sha256("\n".join(map(_state, looked_at)).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _state(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return f"{path}: absent"
    size = 0 if path.is_dir() else status.st_size
    return f"{path}: {status.st_dev} {status.st_ino} {status.st_mtime_ns} {size}"
