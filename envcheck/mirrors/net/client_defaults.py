"""The default URLs of the clients, read from the clients themselves. No host is written here."""

from __future__ import annotations

import re
import subprocess
from typing import Final

import uv

from envcheck.errors import UnavailableError

_INDEX: Final = re.compile(r"^--index-url (\S+)$", re.MULTILINE)
_PYTORCH: Final = re.compile(r"(https?://\S+)/cpu/torch/")


def python_index() -> str:
    """Return the URL of uv's default index, as uv reports it."""
    process = _uv("--emit-index-url", "--quiet", requirements="")
    match = _INDEX.search(process.stdout)
    if match is None:
        message = "uv does not report its default index"
        raise UnavailableError(message, fix="name one in a mirror profile, under `pypi:`")
    return match[1]


def pytorch_index() -> str:
    """Return the base URL of PyTorch's indexes (`/cpu`, `/cu128`, ... follow it), as uv's --torch-backend uses it.

    uv runs offline and reports which page it would have read.
    """
    process = _uv("--torch-backend", "cpu", "--offline", "--verbose", requirements="torch")
    match = _PYTORCH.search(process.stderr)
    if match is None:
        message = "uv does not report the index of PyTorch's wheels"
        raise UnavailableError(message, fix="name an index in a mirror profile, under `pytorch:`")
    return match[1]


def _uv(*options: str, requirements: str) -> subprocess.CompletedProcess[str]:
    command = [uv.find_uv_bin(), "pip", "compile", "--no-config", "--no-header", *options, "-"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "UV_NO_CACHE": "1"}
    return subprocess.run(
        command, input=requirements, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
