"""Load a profile by name (`none`, `host`) or from a site's own YAML file, refusing what would leak or be ignored."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from envcheck.errors import ConfigError
from envcheck.mirrors.host import host_profile
from envcheck.mirrors.profile import CLIENT_DEFAULT, HuggingFace, Index, Profile, has_userinfo, redacted, without_query

PRESETS: Final = ("none", "host")


def load(name: str | Path) -> Profile:
    """Return the profile called `name`, or the one in that YAML file; relative paths in it are relative to it."""
    if str(name) == "none":
        return Profile(name="none")
    if str(name) == "host":
        return _checked_files(host_profile(), Path("this machine's configuration"))
    path = Path(name)
    if not path.is_file():
        message = f"no mirror profile {str(name)!r}"
        raise ConfigError(message, fix=f"give {' or '.join(PRESETS)}, or the path of a profile's YAML file")
    return parse(path.read_bytes(), path)


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
    profile = _check_registry(_check_urls(_resolved(profile, path), lines, path), lines, path)
    return _checked_files(profile, path)


def _read(data: bytes, path: Path) -> tuple[yaml.Node | None, Any]:
    """Return the document as nodes, which know their lines, and as values. An alias is refused: it can hold itself."""
    try:
        for event in yaml.parse(data, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                line = f"{path}:{event.start_mark.line + 1}" if event.start_mark else str(path)
                message = f"{line}: the alias *{event.anchor}"
                raise ConfigError(message, fix="write out what it stands for")
        return yaml.compose(data, Loader=yaml.SafeLoader), yaml.safe_load(data)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"{path}:{mark.line + 1}" if mark else str(path)
        message = f"{line}: not YAML: {getattr(error, 'problem', None) or 'unreadable'}"
        raise ConfigError(message, fix="mend the line") from error
    except (ValueError, RecursionError) as error:
        message = f"{path}: not YAML: {str(error).splitlines()[0]}"
        raise ConfigError(message, fix="mend it: a profile holds text, true or false, lists and mappings") from error


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
    return f"{path}:{lines.get(at, 1)}: {at.removeprefix('$').removeprefix('.') or 'profile'}"


def _refuse_userinfo(value: Any, lines: dict[str, int], path: Path) -> None:
    for at, text in _walk(value):
        if has_userinfo(text):
            message = f"{_where(at, lines, path)}: a user or password in {redacted(text)}"
            raise ConfigError(message, fix="move it to a netrc file and name that under `netrc:`")


def _located(error: msgspec.ValidationError, lines: dict[str, int], path: Path) -> ConfigError:
    what, _, at = str(error).partition(" - at `")
    at = at.rstrip("`") or "$"
    unknown = what.partition("unknown field `")[2].rstrip("`")
    if unknown:
        fix = f"the keys there are {', '.join(_keys(at))}"
        return ConfigError(f"{_where(f'{at}.{unknown}', lines, path)}: no such key", fix=fix)
    return ConfigError(f"{_where(at, lines, path)}: {what}", fix="see the example in `envcheck render --help`")


def _keys(at: str) -> list[str]:
    struct = HuggingFace if at == "$.hf" else Index if at.startswith(("$.pypi", "$.pytorch")) else Profile
    return [field.name for field in msgspec.structs.fields(struct)]


def _resolved(profile: Profile, path: Path) -> Profile:
    """Make the paths of a profile absolute."""
    changes = {
        key: str((path.parent / Path(value).expanduser()).absolute())
        for key in ("ca", "netrc")
        if (value := getattr(profile, key)) is not None
    }
    return msgspec.structs.replace(profile, **changes)


def _check_urls(profile: Profile, lines: dict[str, int], path: Path) -> Profile:
    urls = [
        *((f"$.{key}[{n}].url", i.url) for key in ("pypi", "pytorch") for n, i in enumerate(getattr(profile, key))),
        *((f"$.apt[{n}]", url) for n, url in enumerate(profile.apt)),
        *([("$.hf.endpoint", profile.hf.endpoint)] if profile.hf.endpoint else []),
    ]
    for at, url in urls:
        kinds = ("https://", "http://") if at.startswith(("$.apt", "$.hf")) else ("https://", "http://", "file://", "/")
        if not url.startswith(kinds) and not (url == CLIENT_DEFAULT and at.endswith(".url")):
            message = f"{_where(at, lines, path)}: {url!r} is no URL"
            raise ConfigError(message, fix=f"begin it with {', '.join(kinds)}")
        _check_url(at, url, _where(at, lines, path))
    return profile


def _check_registry(profile: Profile, lines: dict[str, int], path: Path) -> Profile:
    if "@" in (profile.registry or ""):
        message = f"{_where('$.registry', lines, path)}: a user or password before the registry's name"
        raise ConfigError(message, fix="name the registry alone, and log the engine in to it (`docker login`)")
    return profile


def _check_url(at: str, url: str, where: str) -> None:
    """Refuse in a URL what no client would make sense of, and what may be a credential."""
    if any(character.isspace() for character in url):
        message = f"{where}: a blank in the URL {url!r}"
        raise ConfigError(message, fix="write blanks as %20")
    if without_query(url) != url:
        message = f"{where}: a query in the URL {without_query(url)}?..."
        raise ConfigError(message, fix="leave it out; move a token to a netrc file and name that under `netrc:`")
    known = {"variant"} if at.startswith("$.pytorch") else set()
    unknown = next((name for name in re.findall(r"\{([^{}]*)\}", url) if name not in known), None)
    if unknown is not None:
        message = f"{where}: nothing is put in for {{{unknown}}}"
        raise ConfigError(message, fix="the one placeholder is {variant}, in the URLs under `pytorch:`")


def _checked_files(profile: Profile, path: Path) -> Profile:
    """Refuse certificates that are none, before a build finds out."""
    for key in ("ca", "netrc"):
        named = getattr(profile, key)
        if named is not None and not Path(named).is_file():
            message = f"{path}: {key}: {named} does not exist"
            raise ConfigError(message, fix="name a file on this machine")
    if profile.ca is not None:
        content = Path(profile.ca).read_text(errors="replace")
        if "BEGIN CERTIFICATE" not in content or "PRIVATE KEY" in content:
            message = f"{path}: ca: {profile.ca} must hold PEM certificates and no private key"
            raise ConfigError(message, fix="name a PEM bundle of certificates")
    return profile
