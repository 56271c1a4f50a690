"""Find what no program reads, or is dangerous, in the named files and the settings of this machine and this user."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from envcheck.errors import ConfigError
from envcheck.mirrors.doctor.rules import RULES, Document, Level, kind_of, prepare
from envcheck.mirrors.net.credentials import token_path


class DoctorFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A fault at one place. `danger`: leaks a secret or accepts wrong bytes; `unreal`: fails or has no effect.

    `outdated`: will soon fail or have no effect.
    """

    id: str
    level: Level
    where: str
    line: int
    what: str
    fix: str


def examine(documents: Iterable[Document]) -> list[DoctorFinding]:
    """Return the findings in each document, by line, without duplicates of one line."""
    findings: dict[tuple[str, int, str, str], DoctorFinding] = {}
    for document in documents:
        source = prepare(document)
        for rule in RULES:
            for at, problem, fix in rule.find(source):
                finding = DoctorFinding(
                    id=rule.id, level=rule.level, where=document.name, line=source.line(at), what=problem, fix=fix
                )
                findings.setdefault((finding.where, finding.line, finding.id, finding.what), finding)
    return sorted(findings.values(), key=lambda finding: (finding.where, finding.line, finding.id))


def has_faults(findings: Iterable[DoctorFinding]) -> bool:
    """Tell whether any finding is worse than outdated."""
    return any(finding.level != "outdated" for finding in findings)


# Settings are small: do not read larger files, which were named by mistake.
LARGEST: Final = 8 << 20
_EXPECTED_FILES: Final = "name Dockerfiles, scripts, requirements and settings"
_MACHINE_FILES: Final = (
    *("etc/environment", "etc/profile", "etc/bash.bashrc", "etc/pip.conf", "etc/xdg/pip/pip.conf", "etc/uv/uv.toml"),
    *("etc/npmrc", "etc/conda/.condarc", "etc/docker/daemon.json", "etc/buildkit/buildkitd.toml"),
    *("etc/containers/registries.conf", "etc/wgetrc"),
)
_USER_FILES: Final = (
    *(".profile", ".bash_profile", ".bashrc", ".zshenv", ".zprofile", ".zshrc", ".config/fish/config.fish"),
    *(".pip/pip.conf", ".config/pip/pip.conf", ".config/uv/uv.toml", ".npmrc", ".condarc", ".wgetrc", ".curlrc"),
    *(".config/containers/registries.conf", ".config/buildkit/buildkitd.toml", ".config/docker/daemon.json"),
    ".aria2/aria2.conf",
)
_DIRECTORIES: Final = (("etc/profile.d", "*.sh"), ("etc/containers/registries.conf.d", "*.conf"))
_PATH_VARIABLES: Final = ("PIP_CONFIG_FILE", "UV_CONFIG_FILE", "NPM_CONFIG_USERCONFIG", "CONDARC", "BASH_ENV")


def read_files(paths: Iterable[Path]) -> tuple[list[Document], list[ConfigError]]:
    """Return the documents, and an error for each file that is not text, is too large, or cannot be read."""
    texts, errors = list[Document](), list[ConfigError]()
    for path in paths:
        try:
            texts.append(Document(str(path), _decoded(path), kind_of(path.name)))
        except ConfigError as error:  # noqa: PERF203 (files are few)
            errors.append(error)
        except OSError as error:
            errors.append(ConfigError(f"{path}: {error.strerror}", fix="make the file readable for this user"))
    return texts, errors


def _decoded(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)  # a pipe has no size to check before
    if len(content) > LARGEST:
        size = path.stat().st_size
        message = f"{path} has {f'{size / 1e6:.0f}' if size > LARGEST else f'more than {LARGEST / 1e6:.0f}'} MB"
        raise ConfigError(message, fix=_EXPECTED_FILES)
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", "replace")
    if b"\0" in content:
        message = f"{path} is not a text file"
        raise ConfigError(message, fix=_EXPECTED_FILES)
    return content.decode("utf-8-sig", "replace")


def read_machine(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> list[Document]:
    """Return the environment and the readable settings of this machine and user."""
    environ = os.environ if environ is None else environ
    paths = [root / name for name in _MACHINE_FILES]
    paths += [path for directory, names in _DIRECTORIES for path in sorted((root / directory).glob(names))]
    paths += _user_paths(environ, root)
    return [_environment(environ), *(_lenient_document(path) for path in dict.fromkeys(paths) if _readable(path))]


def _home(environ: Mapping[str, str], root: Path) -> Path:
    return Path(environ.get("HOME") or root / "root")


def _user_paths(environ: Mapping[str, str], root: Path) -> list[Path]:
    configured = [Path(environ[name]) for name in _PATH_VARIABLES if environ.get(name, os.devnull) != os.devnull]
    return [*(_home(environ, root) / name for name in _USER_FILES), *configured]


def _lenient_document(path: Path) -> Document:
    """Return a file of this machine; replace undecodable bytes, so that the others are examined too."""
    return Document(str(path), path.read_bytes().decode("utf-8", "replace"), kind_of(path.name))


def _readable(path: Path) -> bool:
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            return False
        path.open("rb").close()
    except OSError:
        return False
    return True


def _environment(environ: Mapping[str, str]) -> Document:
    # A token of `hf auth login` is sent like HF_TOKEN; its file is not read.
    stored_token = {"HF_TOKEN": "kept"} if environ.get("HOME") and _readable(token_path(environ)) else {}
    lines = [f"{name}={' '.join(value.split())}" for name, value in sorted({**stored_token, **environ}.items())]
    return Document("environment", "\n".join(lines), "environment")
