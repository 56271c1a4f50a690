"""Load a profile by name (a preset, `host`, `user`, `none`) or from a YAML file. Only this module reads that YAML.

The presets are in presets.yaml; `docs/adding-a-mirror.md` says what one holds.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec
import yaml

from envcheck.errors import ConfigError
from envcheck.mirrors.profiles import model
from envcheck.mirrors.profiles.host_config import host_profile
from envcheck.mirrors.profiles.model import Conda, Credential, HuggingFace, Index, Profile, redacted
from envcheck.mirrors.profiles.validate import LocateKey, check_files, refuse_userinfo, validate

Kind = Literal["pypi", "pytorch", "hf", "apt", "conda", "npm", "registry", "modelscope"]
Layout = Literal["simple", "find-links", "endpoint", "archive", "anaconda", "npm", "registry"]
# The layout at the URL of a kind, unless the preset names another one.
LAYOUTS: Final[Mapping[Kind, Layout]] = {
    "pypi": "simple",
    "pytorch": "simple",
    "hf": "endpoint",
    "modelscope": "endpoint",
    "apt": "archive",
    "conda": "anaconda",
    "npm": "npm",
    "registry": "registry",
}
_CONDA_DEFAULTS: Final = ("main", "r", "msys2")


class PresetEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One URL of a mirror. `source` documents it; `last_verified` is the last day on which it was seen to work.

    `upstream` is the registry that is mirrored; `channels` are the cloud channels that a conda mirror has.
    """

    kind: Kind
    url: str
    source: str
    last_verified: dt.date | None
    layout: Layout | None = None
    lacks: list[str] = []
    upstream: str | None = None
    channels: list[str] = []


class Preset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mirror site. `lacks` lists what none of its entries offers."""

    title: str
    region: str
    entries: list[PresetEntry]
    lacks: list[str] = []


def preset_profile(name: str, preset: Preset) -> Profile:
    """Return the profile of a preset."""
    by_kind = {kind: [entry for entry in preset.entries if entry.kind == kind] for kind in LAYOUTS}
    return Profile(
        name=name,
        pypi=_indexes(by_kind["pypi"]),
        pytorch=_indexes(by_kind["pytorch"]),
        hf=HuggingFace(endpoint=_first(by_kind["hf"])),
        apt=[entry.url for entry in by_kind["apt"]],
        conda=_conda(by_kind["conda"]),
        npm=_first(by_kind["npm"]),
        registries=_registries(by_kind["registry"]),
        modelscope=_first(by_kind["modelscope"]),
    )


def _indexes(entries: Iterable[PresetEntry]) -> list[Index]:
    return [Index(url=e.url, kind="find-links" if e.layout == "find-links" else "simple") for e in entries]


def _first(entries: Iterable[PresetEntry]) -> str | None:
    return next((entry.url for entry in entries), None)


def _conda(entries: list[PresetEntry]) -> Conda:
    if not entries:
        return Conda()
    first = entries[0]
    return Conda(
        default_channels=[f"{first.url}/pkgs/{channel}" for channel in _CONDA_DEFAULTS],
        custom_channels=dict.fromkeys(first.channels, f"{first.url}/cloud"),
    )


def _registries(entries: Iterable[PresetEntry]) -> dict[str, list[str]]:
    mirrors: dict[str, list[str]] = {}
    for entry in entries:
        mirrors.setdefault(entry.upstream or "docker.io", []).append(entry.url)
    return mirrors


# Names that are not presets: the clients' defaults, this machine's configuration, the choice of `envcheck mirror use`.
BUILT_IN_NAMES: Final = ("none", "host", "user")
# What `--mirror` of build and fetch takes too: a choice by a probe, not a profile.
AUTO: Final = "auto"
_DEEPEST: Final = 32
# The parts of a profile and of a preset that are mappings of known keys.
_PARTS: Final[Mapping[str, type[msgspec.Struct]]] = {
    "hf": HuggingFace,
    "conda": Conda,
    "pypi": Index,
    "pytorch": Index,
    "entries": PresetEntry,
}
_TEXT_TAG: Final = "tag:yaml.org,2002:str"
# A quoted part of YAML's problem that is no content of the file: a sign, an escape, a token such as <stream end>.
_YAML_SIGN: Final = r"""'(?:.|\\.|<[a-z ]+>)'|"'\""""
T = TypeVar("T")


def load(name: str | Path) -> Profile:
    """Return the profile called `name`, or the one in that YAML file. Paths in the file are relative to it."""
    plain = model.plain_profile(str(name))
    if plain is not None:
        return plain
    if str(name) == "user":
        return _load_user_choice()
    if str(name) == "host":
        return check_files(host_profile(), lambda key_path: f"this machine's configuration: {key_path[2:]}")
    if str(name) in presets():
        return preset_profile(str(name), presets()[str(name)])
    path = Path(name)
    if "://" in str(name) and not path.is_file():
        message = f"{redacted(str(name))!r} is a URL, not a mirror profile"
        fix = "write the URL to a YAML file under `pypi:`, `pytorch:` or `hf:`, and pass the file's path"
        raise ConfigError(message, fix=fix)
    if str(name) == AUTO:
        message = "auto is a choice among mirrors, only for build and fetch"
        raise ConfigError(message, fix="name a profile; `envcheck mirror probe` without --mirror compares all of them")
    if path.is_dir():
        message = f"{redacted(str(name))} is a directory, not a mirror profile"
        raise ConfigError(message, fix="pass a profile's YAML file; it names a directory of wheels under `pypi:`")
    if not path.is_file():
        raise _unknown_profile(str(name))
    return parse(path.read_bytes(), path)


def _unknown_profile(name: str) -> ConfigError:
    near = difflib.get_close_matches(name, [*BUILT_IN_NAMES, *presets()], n=3, cutoff=0.5)
    fix = "pass none, host, user, a name from `envcheck mirror list`, a YAML file, or auto (build and fetch)"
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else fix
    return ConfigError(f"no mirror profile {redacted(name)!r}", fix=hint)


def _load_user_choice() -> Profile:
    name = model.read_choice() or "none"
    try:
        return load(name)
    except ConfigError as error:
        fix = f"correct it, or remove the choice with `envcheck mirror use none` ({model.choice_path()})"
        raise ConfigError(error.message, fix=fix) from error


@functools.cache
def presets() -> dict[str, Preset]:
    """Return the presets by name."""
    path = Path(__file__).with_name("presets.yaml")
    return parse_presets(path.read_bytes(), path)


def parse_presets(data: bytes, path: Path) -> dict[str, Preset]:
    """Return the presets in YAML `data`, by name. Raise ConfigError that names the key path and the line."""
    value, locate = _read_mapping(data, path, "presets")
    fix = "docs/adding-a-mirror.md says what a preset holds"
    return {str(name): _convert(preset, Preset, locate, f"$.{name}", fix) for name, preset in value.items()}


def parse(data: bytes, path: Path) -> Profile:
    """Return the profile in YAML `data`. Raise ConfigError that names the key path and the line."""
    value, locate = _read_mapping(data, path, "a mirror profile")
    value.setdefault("name", path.stem)
    fix = "docs/mirrors.md has an example"
    for key_path, item, kind in _mapped_items(value):
        _convert(item, kind, locate, key_path, fix)
    profile = _convert(value, Profile, locate, "$", fix)
    profile = check_files(validate(_with_absolute_paths(profile, path), locate), locate)
    hosts = {host.lower(): secret for host, secret in profile.credentials.items()}
    return msgspec.structs.replace(profile, credentials=hosts)


def _read_mapping(data: bytes, path: Path, kind: str) -> tuple[dict[Any, Any], LocateKey]:
    """Return the mapping in a YAML file, and what names a key path with file and line. Refuse credentials in it."""
    node, value = _read_yaml(data, path)
    if not isinstance(value, dict):
        message = f"{path}: not {kind}: expected a mapping"
        raise ConfigError(message, fix="docs/mirrors.md has an example of a profile")
    lines = _lines(node)

    def locate(key_path: str) -> str:
        return _location(key_path, lines, path)

    refuse_userinfo(value, locate)
    return value, locate


def _read_yaml(data: bytes, path: Path) -> tuple[yaml.Node | None, Any]:
    """Return the document as nodes, which know their lines, and as values.

    Refuse aliases, which can be recursive, and nesting that no profile has.
    """
    depth = 0
    try:
        for event in yaml.parse(data, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            line = f"{path}:{event.start_mark.line + 1}" if event.start_mark else str(path)
            if depth > _DEEPEST:
                message = f"{line}: nested more than {_DEEPEST} deep"
                raise ConfigError(message, fix="close the brackets, or correct the indentation")
            if isinstance(event, yaml.AliasEvent):
                message = f"{line}: YAML aliases are not supported"
                raise ConfigError(message, fix="write the value out, or quote a text that begins with *")
        node = yaml.compose(data, Loader=yaml.SafeLoader)
        _check_keys(node, path)
        return node, None if node is None else yaml.SafeLoader("").construct_document(node)
    except yaml.reader.ReaderError as error:
        message = f"{path} is not a text file"
        raise ConfigError(message, fix="write it in UTF-8, without control characters") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"{path}:{mark.line + 1}" if mark else str(path)
        # The quoted part may be a password: "could not determine a constructor for the tag '!...'".
        problem = getattr(error, "problem", None) or "unreadable"
        problem = re.sub(rf"""({_YAML_SIGN})|["'].*["']""", lambda match: match[1] or "'...'", problem)
        message = f"{line}: not YAML: {problem}"
        raise ConfigError(message, fix="correct the line") from error
    except (ValueError, RecursionError) as error:
        message = f"{path}: not YAML: {str(error).splitlines()[0]}"
        raise ConfigError(message, fix="use only text, true or false, lists and mappings") from error


def _check_keys(node: yaml.Node | None, path: Path, name: str = "") -> None:
    """Refuse a key that is no text, a duplicate one, of which YAML takes the last, and an empty list of indexes."""
    if node is not None and name in {"pypi", "pytorch"} and not node.value:
        message = f"{path}:{node.start_mark.line + 1}: {name}: the list is empty"
        raise ConfigError(message, fix="remove the key, or name an index or a directory")
    if isinstance(node, yaml.MappingNode):
        first_lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag != _TEXT_TAG:
                message = f"{path}:{line}: {name or 'profile'}: a key that is not text"
                raise ConfigError(message, fix="quote the key, or correct it")
            key_path = _printable(redacted(f"{name}.{key.value}".lstrip(".")))
            if str(key.value) in first_lines:
                message = f"{path}:{line}: {key_path}: duplicate key, first in line {first_lines[str(key.value)]}"
                raise ConfigError(message, fix="join the two, or remove one")
            first_lines[str(key.value)] = line
            _check_keys(value, path, key_path)
    if isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            _check_keys(value, path, f"{name}[{number}]")


def _lines(node: yaml.Node | None, key_path: str = "$") -> dict[str, int]:
    """Map each key path ("$.pypi[0].url") to its line, counted from 1."""
    if node is None:
        return {}
    lines = {key_path: node.start_mark.line + 1}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            lines |= _lines(value, f"{key_path}.{key.value}")
            lines[f"{key_path}.{key.value}"] = key.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            lines |= _lines(value, f"{key_path}[{number}]")
    return lines


def _location(key_path: str, lines: dict[str, int], path: Path) -> str:
    name = _printable(redacted(key_path.removeprefix("$").removeprefix(".")))
    return f"{path}:{lines.get(key_path, 1)}: {name or 'profile'}"


def _printable(text: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _mapped_items(value: dict[Any, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield key path, value and type of each item of a profile's mappings, of which msgspec's errors name no key."""
    conda = value.get("conda")
    channels = conda.get("custom_channels") if isinstance(conda, dict) else None
    mappings = [("registries", value.get("registries"), list[str]), ("conda.custom_channels", channels, str)]
    for name, mapping, kind in [*mappings, ("credentials", value.get("credentials"), Credential)]:
        if isinstance(mapping, dict):
            yield from ((f"$.{name}.{key}", item, kind) for key, item in mapping.items())


def _convert(value: Any, kind: type[T], locate: LocateKey, root: str, fix: str) -> T:
    """Return the value as this type. Raise ConfigError with file, line and key; `root` is the value's key path."""
    fields = getattr(kind, "__struct_fields__", ())
    if fields and isinstance(value, dict):
        for key in value:
            if isinstance(key, str) and key not in fields:
                raise _unknown_key(root, key, kind, locate)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _error_with_line(error, kind, locate, root, fix) from error


def _error_with_line(error: msgspec.ValidationError, kind: Any, locate: LocateKey, root: str, fix: str) -> ConfigError:
    # The problem may quote the profile, so the key path is what follows the last mark. A message without a key path is
    # about the value itself and quotes no key: `_convert` has refused the value's own unknown keys.
    problem, _, inner = _printable(str(error)).rpartition(" - at `$")
    problem, inner = (problem, inner.rstrip("`")) if problem else (inner, "")
    key_path = root + inner
    if key_path == "$.hf.token":
        fix = "write never or allow; keep the token itself in HF_TOKEN, or in a file that `credentials:` names"
        return ConfigError(f"{locate(key_path)}: expected never or allow", fix=fix)
    unknown = problem.partition("unknown field `")[2].rstrip("`")
    if unknown:
        struct = _PARTS.get(re.split(r"[.\[]", f"{inner}.")[1], kind)
        return _unknown_key(key_path, unknown, struct, locate)
    problem = problem.replace("`object`", "a mapping").replace("`array`", "a list")  # as YAML calls them
    return ConfigError(
        f"{locate(key_path)}: {problem.replace('Object missing required field', 'missing key')}", fix=fix
    )


def _unknown_key(key_path: str, key: str, kind: Any, locate: LocateKey) -> ConfigError:
    fix = f"use one of {', '.join(kind.__struct_fields__)}"
    return ConfigError(f"{locate(f'{key_path}.{key}')}: unknown key", fix=fix)


def _with_absolute_paths(profile: Profile, path: Path) -> Profile:

    def absolute(value: str) -> str:
        # A ~user that this machine lacks stays as it is; the check of the files names it.
        with contextlib.suppress(RuntimeError):
            value = str(Path(value).expanduser())
        return str((path.parent / value).absolute())

    files = {key: absolute(value) for key in ("ca", "netrc") if (value := getattr(profile, key)) is not None}
    credentials = {
        host: msgspec.structs.replace(
            secret,
            password_file=absolute(secret.password_file) if secret.password_file else None,
            token_file=absolute(secret.token_file) if secret.token_file else None,
        )
        for host, secret in profile.credentials.items()
    }
    return msgspec.structs.replace(profile, **files, credentials=credentials)
