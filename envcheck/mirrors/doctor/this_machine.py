"""Read what the doctor looks at: files that are named, and the settings of this machine and this user."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from envcheck.errors import ConfigError
from envcheck.mirrors.doctor.doctor import Finding
from envcheck.mirrors.doctor.document import Text, kind_of
from envcheck.mirrors.hub.api import token_path

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


def files(paths: Iterable[Path]) -> tuple[list[Text], list[ConfigError]]:
    """Return the texts of files, and the errors of those that are no text, too large to be settings or unreadable."""
    texts, errors = list[Text](), list[ConfigError]()
    for path in paths:
        try:
            texts.append(Text(str(path), _decoded(path), kind_of(path.name)))
        except ConfigError as error:  # noqa: PERF203 (files are few)
            errors.append(error)
        except OSError as error:
            errors.append(ConfigError(f"{path}: {error.strerror}", fix="give this user the right to read it"))
    return texts, errors


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
    paths = [root / name for name in _OF_THE_MACHINE]
    paths += [path for directory, names in _DIRECTORIES for path in sorted((root / directory).glob(names))]
    paths += _of_the_user(environ, root)
    return [_environment(environ), *(_as_it_is(path) for path in dict.fromkeys(paths) if _readable(path))]


def unread(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> list[Finding]:
    """Return which settings of this user may not be read by this user: nobody knows what is in them."""
    environ = os.environ if environ is None else environ
    home = _home(environ, root)
    shut = {path: why for path in _of_the_user(environ, root) if (why := _refused(path)) is not None}
    # Of a home that may not be entered each file would say the same.
    whole = next((why for path, why in shut.items() if home in path.parents), None) if _closed(home) else None
    places = {path: why for path, why in shut.items() if whole is None or home not in path.parents}
    places |= {home: whole} if whole is not None else {}
    return [
        Finding(
            id="W017",
            level="unreal",
            where=str(path),
            line=0,
            what=f"it could not be read ({why}): what pip, uv and the others make of it is not known",
            fix="give it to this user, or set HOME to this user's own",
        )
        for path, why in places.items()
    ]


def _home(environ: Mapping[str, str], root: Path) -> Path:
    return Path(environ.get("HOME") or root / "root")


def _of_the_user(environ: Mapping[str, str], root: Path) -> list[Path]:
    named = [Path(environ[name]) for name in _NAMING if environ.get(name, os.devnull) != os.devnull]
    return [*(_home(environ, root) / name for name in _OF_THE_USER), *named]


def _refused(path: Path) -> str | None:
    """Return why a file that is there, or may be, cannot be opened."""
    try:
        if path.is_file():
            path.open("rb").close()
    except OSError as error:
        return error.strerror
    return None


def _closed(folder: Path) -> bool:
    try:
        os.stat(f"{folder}/.")  # noqa: PTH116 (a Path drops the dot, which asks whether it may be entered)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _as_it_is(path: Path) -> Text:
    """Return a file that nobody named; whatever is in it ends no look at the others."""
    return Text(str(path), path.read_bytes().decode("utf-8", "replace"), kind_of(path.name))


def _readable(path: Path) -> bool:
    return _refused(path) is None and path.is_file() and path.stat().st_size <= LARGEST


def _environment(environ: Mapping[str, str]) -> Text:
    # What `hf auth login` wrote is sent as HF_TOKEN is; it is not read here.
    kept = {"HF_TOKEN": "kept"} if environ.get("HOME") and _readable(token_path(environ)) else {}
    lines = [f"{name}={' '.join(value.split())}" for name, value in sorted({**kept, **environ}.items())]
    return Text("environment", "\n".join(lines), "environment")
