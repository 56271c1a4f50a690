"""Load a profile by name (a preset, `host`, `user`, `none`) or from a site's own YAML file. YAML is read here only."""

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
from envcheck.mirrors.profiles.presets import Preset, profile_of
from envcheck.mirrors.profiles.validate import accept, existing

# Beside the presets: every client's own default, this machine's configuration, and what `envcheck mirror use` chose.
NAMES: Final = ("none", "host", "user")


def load(name: str | Path) -> Profile:
    """Return the profile called `name`, or the one in that YAML file; relative paths in it are relative to it."""
    if str(name) == "user":
        return _chosen()
    if str(name) == "none":
        return Profile(name="none")
    if str(name) == "host":
        return existing(host_profile(), Path("this machine's configuration"))
    if str(name) in presets():
        return profile_of(str(name), presets()[str(name)])
    path = Path(name)
    if "://" in str(name) and not path.is_file():
        message = f"{redacted(str(name))!r} is a URL and no mirror profile"
        raise ConfigError(message, fix="write it into a YAML file under `pypi:`, `pytorch:` or `hf:`, and name that")
    if not path.is_file():
        message = f"no mirror profile {redacted(str(name))!r}"
        fix = "give none or host, a name of `envcheck mirror list`, or the path of a profile's YAML file"
        raise ConfigError(message, fix=fix)
    return parse(path.read_bytes(), path)


def _chosen() -> Profile:
    """Return what the user chose, which may be gone since."""
    name = user_choice.read() or "none"
    try:
        return load(name) if name != "user" else Profile(name="none")
    except ConfigError as error:
        fix = f"mend it, or take the choice back: `envcheck mirror use none` ({user_choice.path()})"
        raise ConfigError(error.message, fix=fix) from error


@functools.cache
def presets() -> dict[str, Preset]:
    """Return the mirrors that can be named, by name."""
    text = Path(__file__).with_name("presets.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), dict[str, Preset])


def parse(data: bytes, path: Path) -> Profile:
    """Return the profile in YAML `data`. An error names the key path and the line."""
    node, value = _read(data, path)
    if not isinstance(value, dict):
        message = f"{path}: a mirror profile is a mapping"
        raise ConfigError(message, fix="see `envcheck render --help` for an example")
    value.setdefault("name", path.stem)
    lines = _lines(node)
    _refuse_userinfo(value, lines, path)
    try:
        profile = msgspec.convert(value, Profile)
    except msgspec.ValidationError as error:
        raise _located(error, lines, path) from error
    profile = accept(_resolved(profile, path), lambda at: _where(at, lines, path))
    hosts = {host.lower(): secret for host, secret in profile.credentials.items()}
    return existing(msgspec.structs.replace(profile, credentials=hosts), path)


def _read(data: bytes, path: Path) -> tuple[yaml.Node | None, Any]:
    """Return the document as nodes, which know their lines, and as values. An alias is refused: it can hold itself."""
    try:
        for event in yaml.parse(data, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                line = f"{path}:{event.start_mark.line + 1}" if event.start_mark else str(path)
                message = f"{line}: an alias, or a * that begins a text"
                raise ConfigError(message, fix="write out what it stands for, or put the text between quotes")
        node = yaml.compose(data, Loader=yaml.SafeLoader)
        _refuse_twice_and_empty(node, path)
        return node, yaml.safe_load(data)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"{path}:{mark.line + 1}" if mark else str(path)
        # What it cannot make sense of may be a password: "could not determine a constructor for the tag '!...'".
        problem = re.sub(r"'[^']{2,}'", "'...'", getattr(error, "problem", None) or "unreadable")
        message = f"{line}: not YAML: {problem}"
        raise ConfigError(message, fix="mend the line") from error
    except (ValueError, RecursionError) as error:
        message = f"{path}: not YAML: {str(error).splitlines()[0]}"
        raise ConfigError(message, fix="mend it: a profile holds text, true or false, lists and mappings") from error


def _refuse_twice_and_empty(node: yaml.Node | None, path: Path, name: str = "") -> None:
    """Refuse a key that is there twice, of which YAML takes the last, and an empty list of indexes."""
    if node is not None and name in {"pypi", "pytorch"} and not node.value:
        message = f"{path}:{node.start_mark.line + 1}: {name}: it is empty and sets nothing"
        raise ConfigError(message, fix="leave it out, or name an index or a directory")
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            at, here = redacted(f"{name}.{key.value}".lstrip(".")), key.start_mark.line + 1
            if str(key.value) in seen:
                message = f"{path}:{here}: {at}: it is there twice, first in line {seen[str(key.value)]}"
                raise ConfigError(message, fix="join the two, or leave one out")
            seen[str(key.value)] = here
            _refuse_twice_and_empty(value, path, at)
    if isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            _refuse_twice_and_empty(value, path, f"{name}[{number}]")


def _lines(node: yaml.Node | None, at: str = "$") -> dict[str, int]:
    """Map each key path ("$.pypi[0].url") to its line, counted from 1."""
    if node is None:
        return {}
    found = {at: node.start_mark.line + 1}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            found |= _lines(value, f"{at}.{key.value}")
            found[f"{at}.{key.value}"] = key.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            found |= _lines(value, f"{at}[{number}]")
    return found


def _walk(value: Any, at: str = "$") -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [pair for key, item in value.items() for pair in _walk(item, f"{at}.{key}")]
    if isinstance(value, list):
        return [pair for number, item in enumerate(value) for pair in _walk(item, f"{at}[{number}]")]
    return [(at, value)] if isinstance(value, str) else []


def _where(at: str, lines: dict[str, int], path: Path) -> str:
    # msgspec does not tell which key of a mapping it was at: "[...]".
    pattern = re.escape(at).replace(re.escape("[...]"), r"\..+")
    at = next((known for known in lines if re.fullmatch(pattern, known)), at)
    return f"{path}:{lines.get(at, 1)}: {redacted(at.removeprefix('$').removeprefix('.')) or 'profile'}"


def _refuse_userinfo(value: Any, lines: dict[str, int], path: Path) -> None:
    for at, text in _walk(value):
        if has_userinfo(text):
            message = f"{_where(at, lines, path)}: a user or password in {redacted(text)}"
            raise ConfigError(message, fix="move it to a netrc file and name that under `netrc:`")


def _located(error: msgspec.ValidationError, lines: dict[str, int], path: Path) -> ConfigError:
    what, _, at = str(error).partition(" - at `")
    at = at.rstrip("`") or "$"
    if at == "$.hf.token":
        fix = "write never or allow; the token itself stays in HF_TOKEN, or in a file that `credentials:` names"
        return ConfigError(f"{_where(at, lines, path)}: neither never nor allow", fix=fix)
    unknown = what.partition("unknown field `")[2].rstrip("`")
    if unknown:
        fix = f"the keys there are {', '.join(_keys(at))}"
        return ConfigError(f"{_where(f'{at}.{unknown}', lines, path)}: no such key", fix=fix)
    what = what.replace("`object`", "a mapping").replace("`array`", "a list")  # as YAML calls them
    return ConfigError(f"{_where(at, lines, path)}: {what}", fix="see the example in `envcheck render --help`")


def _keys(at: str) -> list[str]:
    kinds: dict[str, type[msgspec.Struct]] = {
        "hf": HuggingFace,
        "conda": Conda,
        "credentials": Credential,
        "pypi": Index,
        "pytorch": Index,
    }
    struct = kinds.get(at.removeprefix("$.").split(".")[0].partition("[")[0], Profile)
    return [field.name for field in msgspec.structs.fields(struct)]


def _resolved(profile: Profile, path: Path) -> Profile:
    """Make the paths of a profile absolute."""

    def absolute(value: str) -> str:
        return str((path.parent / Path(value).expanduser()).absolute())

    named = {key: absolute(value) for key in ("ca", "netrc") if (value := getattr(profile, key)) is not None}
    credentials = {
        host: msgspec.structs.replace(
            secret,
            password_file=absolute(secret.password_file) if secret.password_file else None,
            token_file=absolute(secret.token_file) if secret.token_file else None,
        )
        for host, secret in profile.credentials.items()
    }
    return msgspec.structs.replace(profile, **named, credentials=credentials)
