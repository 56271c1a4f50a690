"""Read what the doctor looks at: files that are named, and the settings of this machine and this user."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from envcheck.errors import ConfigError
from envcheck.mirrors.doctor_text import Text, kind_of
from envcheck.mirrors.hub import token_at

# Settings are small; a gigabyte by a mistaken name is not read.
LARGEST: Final = 8 << 20
_WANTED: Final = "name Dockerfiles, scripts, requirements and settings"
_OF_THE_MACHINE: Final = (
    "etc/environment",
    "etc/profile",
    "etc/bash.bashrc",
    "etc/pip.conf",
    "etc/xdg/pip/pip.conf",
    "etc/uv/uv.toml",
    "etc/npmrc",
    "etc/conda/.condarc",
    "etc/docker/daemon.json",
    "etc/buildkit/buildkitd.toml",
    "etc/containers/registries.conf",
    "etc/wgetrc",
)
_OF_THE_USER: Final = (
    ".profile",
    ".bash_profile",
    ".bashrc",
    ".zshenv",
    ".zprofile",
    ".zshrc",
    ".pip/pip.conf",
    ".config/pip/pip.conf",
    ".config/uv/uv.toml",
    ".config/fish/config.fish",
    ".config/containers/registries.conf",
    ".config/buildkit/buildkitd.toml",
    ".config/docker/daemon.json",
    ".npmrc",
    ".condarc",
    ".wgetrc",
    ".curlrc",
    ".aria2/aria2.conf",
)
_DIRECTORIES: Final = (("etc/profile.d", "*.sh"), ("etc/containers/registries.conf.d", "*.conf"))
_NAMING: Final = ("PIP_CONFIG_FILE", "UV_CONFIG_FILE", "NPM_CONFIG_USERCONFIG", "CONDARC", "BASH_ENV")


def files(paths: Iterable[Path]) -> list[Text]:
    """Return the texts of files. Raise ConfigError for what is no text, or too large to be settings."""
    return [Text(str(path), _decoded(path), kind_of(path.name)) for path in paths]


def _decoded(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)  # what is no file, as a pipe, tells no size
    if len(content) > LARGEST:
        size = path.stat().st_size
        message = f"{path} has {f'{size / 1e6:.0f}' if size > LARGEST else f'more than {LARGEST / 1e6:.0f}'} MB"
        raise ConfigError(message, fix=_WANTED)
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", "replace")
    if b"\0" in content:
        message = f"{path} is no text"
        raise ConfigError(message, fix=_WANTED)
    return content.decode("utf-8-sig", "replace")


def machine(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> list[Text]:
    """Return this process's environment and the settings of this machine and user that can be read."""
    environ = os.environ if environ is None else environ
    home = Path(environ.get("HOME") or root / "root")
    paths = [root / name for name in _OF_THE_MACHINE]
    paths += [path for directory, names in _DIRECTORIES for path in sorted((root / directory).glob(names))]
    paths += [home / name for name in _OF_THE_USER]
    paths += [Path(environ[name]) for name in _NAMING if environ.get(name, os.devnull) != os.devnull]
    return [_environment(environ), *(_as_it_is(path) for path in dict.fromkeys(paths) if _readable(path))]


def _as_it_is(path: Path) -> Text:
    """Return a file that nobody named; whatever is in it ends no look at the others."""
    return Text(str(path), path.read_bytes().decode("utf-8", "replace"), kind_of(path.name))


def _readable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.R_OK) and path.stat().st_size <= LARGEST


def _environment(environ: Mapping[str, str]) -> Text:
    # What `hf auth login` wrote is sent as HF_TOKEN is; it is not read here.
    kept = {"HF_TOKEN": "kept"} if environ.get("HOME") and token_at(environ).is_file() else {}
    lines = [f"{name}={' '.join(value.split())}" for name, value in sorted({**kept, **environ}.items())]
    return Text("environment", "\n".join(lines), "environment")
