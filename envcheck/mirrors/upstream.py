"""The clients' own defaults: where they go when nobody configured anything. No host is written down here."""

from __future__ import annotations

import re
import subprocess
from typing import Final

import uv

from envcheck.errors import UnavailableError

_INDEX: Final = re.compile(r"^--index-url (\S+)$", re.MULTILINE)


def python_index() -> str:
    """Return the URL of the index that uv asks by default, as uv itself says it."""
    command = [uv.find_uv_bin(), "pip", "compile", "--no-config", "--emit-index-url", "--no-header", "--quiet", "-"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "UV_NO_CACHE": "1"}
    done = subprocess.run(command, input="", env=environment, capture_output=True, text=True, check=False, timeout=60)
    found = _INDEX.search(done.stdout)
    if found is None:
        message = "uv does not say which index it asks by default"
        raise UnavailableError(message, fix="name one in a mirror profile, under `pypi:`")
    return found[1]
