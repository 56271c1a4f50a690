"""The clients' own defaults: where they go when nobody configured anything. No host is written down here."""

from __future__ import annotations

import re
import subprocess
from typing import Final

import uv

from envcheck.errors import UnavailableError

_INDEX: Final = re.compile(r"^--index-url (\S+)$", re.MULTILINE)
_PYTORCH: Final = re.compile(r"(https?://\S+)/cpu/torch/")


def python_index() -> str:
    """Return the URL of the index that uv asks by default, as uv itself says it."""
    done = _uv("--emit-index-url", "--quiet", wanted="")
    found = _INDEX.search(done.stdout)
    if found is None:
        message = "uv does not say which index it asks by default"
        raise UnavailableError(message, fix="name one in a mirror profile, under `pypi:`")
    return found[1]


def pytorch_index() -> str:
    """Return the URL above PyTorch's indexes (`/cpu`, `/cu128`, ... follow it), where uv's --torch-backend goes.

    uv is asked offline and says which page it would have read.
    """
    done = _uv("--torch-backend", "cpu", "--offline", "--verbose", wanted="torch")
    found = _PYTORCH.search(done.stderr)
    if found is None:
        message = "uv does not say where it looks for PyTorch's wheels"
        raise UnavailableError(message, fix="name an index in a mirror profile, under `pytorch:`")
    return found[1]


def _uv(*options: str, wanted: str) -> subprocess.CompletedProcess[str]:
    command = [uv.find_uv_bin(), "pip", "compile", "--no-config", "--no-header", *options, "-"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "UV_NO_CACHE": "1"}
    return subprocess.run(
        command, input=wanted, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
