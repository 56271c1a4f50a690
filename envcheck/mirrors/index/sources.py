"""The indexes of a profile on the network, with the URLs of the clients' own defaults. No host is written here."""

from __future__ import annotations

import functools
import re
import subprocess
from typing import Final

import uv

from envcheck.errors import UnavailableError
from envcheck.mirrors.profiles.model import CLIENT_DEFAULT, Index, Profile

PYPI: Final = "pypi"
# Profiles that mean the clients' defaults. Any other profile without an index has none.
CLIENT_PROFILES: Final = ("none", "host")
_INDEX: Final = re.compile(r"^--index-url (\S+)$", re.MULTILINE)
_PYTORCH: Final = re.compile(r"(https?://\S+)/cpu/torch/")


def python_index() -> str:
    """Return the URL of uv's default index, as uv reports it."""
    match = _INDEX.search(_uv("--emit-index-url", "--quiet", requirements="").stdout)
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


@functools.cache
def _uv(*options: str, requirements: str) -> subprocess.CompletedProcess[str]:
    command = [uv.find_uv_bin(), "pip", "compile", "--no-config", "--no-header", *options, "-"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "UV_NO_CACHE": "1"}
    return subprocess.run(
        command, input=requirements, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def with_default_url(index: Index, family: str) -> Index:
    """Return the index, with the client's own URL where it stands for that."""
    if index.url != CLIENT_DEFAULT:
        return index
    return Index(url=f"{pytorch_index()}/{{variant}}" if family == "pytorch" else python_index(), kind=index.kind)


def network_sources(profile: Profile, part: str) -> list[Index]:
    """Return the indexes on the network that a profile has for a part of a lock: "pypi" or "pytorch/cu128"."""
    family, _, variant = part.partition("/")
    indexes = [index for index in (profile.pypi if family == PYPI else profile.pytorch) if index.local is None]
    if not indexes and profile.name in CLIENT_PROFILES:
        indexes = [Index(url=CLIENT_DEFAULT)]
    named = (with_default_url(index, family) for index in indexes)
    return [Index(url=index.url.replace("{variant}", variant), kind=index.kind) for index in named]


def has_source(profile: Profile, part: str) -> bool:
    """Tell whether a profile has a source for a part: an index on the network, or a directory."""
    indexes = profile.pypi if part == PYPI else profile.pytorch
    return any(index.local is not None for index in indexes) or bool(network_sources(profile, part))
