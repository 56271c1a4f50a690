"""The nvcc that an extension would take when it compiles at first use."""

from __future__ import annotations

import os
import re
import shutil
from typing import NamedTuple

from envcheck.checks.env.support.process import subprocesses

# Packages that hold the kernels which an extension would compile otherwise.
PRECOMPILED = {"flashinfer-python": ("flashinfer-jit-cache",)}
_DEFAULT = "/usr/local/cuda"
_RELEASE = re.compile(r"\brelease (\d+\.\d+)")
_SECONDS = 20.0


class FoundCompiler(NamedTuple):
    """The path of nvcc, and its CUDA ("13.0"). `why` says why there is no CUDA: it is absent, or does not run."""

    path: str
    cuda: str
    why: str


def found() -> FoundCompiler:
    """Return the nvcc of this environment, where torch.utils.cpp_extension looks: CUDA_HOME, CUDA_PATH, then PATH."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    path = f"{home}/bin/nvcc" if home else shutil.which("nvcc") or f"{_DEFAULT}/bin/nvcc"
    if not os.access(path, os.X_OK):
        return FoundCompiler(path, "", f"{path} does not exist" if home else "there is no nvcc")
    try:
        finished = subprocesses.run([path, "--version"], _SECONDS)
    except OSError as error:
        return FoundCompiler(path, "", f"{path} does not run: {error.strerror}")
    release = _RELEASE.search(finished.output)
    if finished.code != 0 or release is None:
        return FoundCompiler(path, "", f"{path} does not say its version")
    return FoundCompiler(path, release[1], "")
