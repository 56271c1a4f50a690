"""Load a profile by name (a preset, `host`, `user`, `none`) or from a YAML file. Only this module reads that YAML."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from envcheck.errors import ConfigError
from envcheck.mirrors.profiles import user_choice
from envcheck.mirrors.profiles.host_config import host_profile
from envcheck.mirrors.profiles.model import Conda, Credential, HuggingFace, Index, Profile, has_userinfo, redacted
from envcheck.mirrors.profiles.presets import Preset, preset_profile
from envcheck.mirrors.profiles.validate import check_files, validate

# Names that are not presets: the clients' defaults, this machine's configuration, the choice of `envcheck mirror use`.
BUILT_IN_NAMES: Final = ("none", "host", "user")
_DEEPEST: Final = 32


def load(name: str | Path) -> Profile:
    """Return the profile called `name`, or the one in that YAML file. Paths in the file are relative to it."""
    if str(name) == "user":
        return _load_user_choice()
    if str(name) == "none":
        return Profile(name="none")
    if str(name) == "host":
        return check_files(host_profile(), Path("this machine's configuration"))
    if str(name) in presets():
        return preset_profile(str(name), presets()[str(name)])
    path = Path(name)
    if "://" in str(name) and not path.is_file():
        message = f"{redacted(str(name))!r} is a URL, not a mirror profile"
        fix = "write the URL to a YAML file under `pypi:`, `pytorch:` or `hf:`, and pass the file's path"
        raise ConfigError(message, fix=fix)
    if not path.is_file():
        message = f"no mirror profile {redacted(str(name))!r}"
        fix = "pass none or host, a name from `envcheck mirror list`, or the path of a profile's YAML file"
        raise ConfigError(message, fix=fix)
    return parse(path.read_bytes(), path)


def _load_user_choice() -> Profile:
    """Return the profile that the user chose. Raise ConfigError if it no longer exists."""
    name = user_choice.read() or "none"
    try:
        return load(name) if name != "user" else Profile(name="none")
    except ConfigError as error:
        fix = f"correct it, or remove the choice with `envcheck mirror use none` ({user_choice.path()})"
        raise ConfigError(error.message, fix=fix) from error


@functools.cache
def presets() -> dict[str, Preset]:
    """Return the presets by name."""
    text = Path(__file__).with_name("presets.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), dict[str, Preset])


def parse(data: bytes, path: Path) -> Profile:
    """Return the profile in YAML `data`. Raise ConfigError that names the key path and the line."""
    node, value = _read_yaml(data, path)
    if not isinstance(value, dict):
        message = f"{path}: not a mirror profile: expected a mapping"
        raise ConfigError(message, fix="see `envcheck render --help` for an example")
    value.setdefault("name", path.stem)
    lines = _lines(node)
    _refuse_userinfo(value, lines, path)
    try:
        profile = msgspec.convert(value, Profile)
    except msgspec.ValidationError as error:
        raise _error_with_line(error, lines, path) from error
    profile = validate(_with_absolute_paths(profile, path), lambda key_path: _location(key_path, lines, path))
    hosts = {host.lower(): secret for host, secret in profile.credentials.items()}
    return check_files(msgspec.structs.replace(profile, credentials=hosts), path)


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
        _refuse_duplicates_and_empty_lists(node, path)
        return node, yaml.safe_load(data)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"{path}:{mark.line + 1}" if mark else str(path)
        # The quoted part may be a password: "could not determine a constructor for the tag '!...'".
        problem = re.sub(r"'[^']{2,}'", "'...'", getattr(error, "problem", None) or "unreadable")
        message = f"{line}: not YAML: {problem}"
        raise ConfigError(message, fix="correct the line") from error
    except (ValueError, RecursionError) as error:
        message = f"{path}: not YAML: {str(error).splitlines()[0]}"
        raise ConfigError(message, fix="use only text, true or false, lists and mappings") from error


def _refuse_duplicates_and_empty_lists(node: yaml.Node | None, path: Path, name: str = "") -> None:
    """Refuse a duplicate key, of which YAML takes the last, and an empty list of indexes."""
    if node is not None and name in {"pypi", "pytorch"} and not node.value:
        message = f"{path}:{node.start_mark.line + 1}: {name}: the list is empty"
        raise ConfigError(message, fix="remove the key, or name an index or a directory")
    if isinstance(node, yaml.MappingNode):
        first_lines: dict[str, int] = {}
        for key, value in node.value:
            key_path, line = redacted(f"{name}.{key.value}".lstrip(".")), key.start_mark.line + 1
            if str(key.value) in first_lines:
                message = f"{path}:{line}: {key_path}: duplicate key, first in line {first_lines[str(key.value)]}"
                raise ConfigError(message, fix="join the two, or remove one")
            first_lines[str(key.value)] = line
            _refuse_duplicates_and_empty_lists(value, path, key_path)
    if isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            _refuse_duplicates_and_empty_lists(value, path, f"{name}[{number}]")


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


def _texts(value: Any, key_path: str = "$") -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [pair for key, item in value.items() for pair in _texts(item, f"{key_path}.{key}")]
    if isinstance(value, list):
        return [pair for number, item in enumerate(value) for pair in _texts(item, f"{key_path}[{number}]")]
    return [(key_path, value)] if isinstance(value, str) else []


def _location(key_path: str, lines: dict[str, int], path: Path) -> str:
    # msgspec writes "[...]" for the key of a mapping.
    pattern = re.escape(key_path).replace(re.escape("[...]"), r"\..+")
    key_path = next((candidate for candidate in lines if re.fullmatch(pattern, candidate)), key_path)
    return f"{path}:{lines.get(key_path, 1)}: {redacted(key_path.removeprefix('$').removeprefix('.')) or 'profile'}"


def _refuse_userinfo(value: Any, lines: dict[str, int], path: Path) -> None:
    for key_path, text in _texts(value):
        if has_userinfo(text):
            message = f"{_location(key_path, lines, path)}: a user or password in {redacted(text)}"
            raise ConfigError(message, fix="move it to a netrc file, and name the file under `netrc:`")


def _error_with_line(error: msgspec.ValidationError, lines: dict[str, int], path: Path) -> ConfigError:
    problem, _, key_path = str(error).partition(" - at `")
    key_path = key_path.rstrip("`") or "$"
    if key_path == "$.hf.token":
        fix = "write never or allow; keep the token itself in HF_TOKEN, or in a file that `credentials:` names"
        return ConfigError(f"{_location(key_path, lines, path)}: expected never or allow", fix=fix)
    unknown = problem.partition("unknown field `")[2].rstrip("`")
    if unknown:
        fix = f"use one of {', '.join(_keys_at(key_path))}"
        return ConfigError(f"{_location(f'{key_path}.{unknown}', lines, path)}: unknown key", fix=fix)
    problem = problem.replace("`object`", "a mapping").replace("`array`", "a list")  # as YAML calls them
    return ConfigError(
        f"{_location(key_path, lines, path)}: {problem}", fix="see the example in `envcheck render --help`"
    )


def _keys_at(key_path: str) -> list[str]:
    kinds: dict[str, type[msgspec.Struct]] = {
        "hf": HuggingFace,
        "conda": Conda,
        "credentials": Credential,
        "pypi": Index,
        "pytorch": Index,
    }
    struct = kinds.get(key_path.removeprefix("$.").split(".")[0].partition("[")[0], Profile)
    return [field.name for field in msgspec.structs.fields(struct)]


def _with_absolute_paths(profile: Profile, path: Path) -> Profile:
    """Return the profile with absolute paths; relative ones are relative to the profile's file."""

    def absolute(value: str) -> str:
        return str((path.parent / Path(value).expanduser()).absolute())

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
