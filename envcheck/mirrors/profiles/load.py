"""Load a profile by name (a preset, `host`, `user`, `none`) or from a YAML file. Only this module reads that YAML.

The presets are in presets.yaml; `docs/adding-a-mirror.md` says what one holds. A value that is malformed or may be a
secret is refused with file, line and key; a secret is not repeated.
"""

import datetime as dt
import difflib
import functools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args

import msgspec
import yaml

from envcheck import safe_files
from envcheck.errors import ConfigError, refuse
from envcheck.mirrors.profiles import model
from envcheck.mirrors.profiles.host_config import host_profile
from envcheck.mirrors.profiles.model import (
    CLIENT_DEFAULT,
    Conda,
    Credential,
    HuggingFace,
    Index,
    Profile,
    has_userinfo,
    redacted,
)
from envcheck.yaml_lines import refuse_shape

Kind = Literal["pypi", "pytorch", "hf", "apt", "conda", "npm", "registry", "modelscope"]
# Names that are not presets: the clients' defaults, this machine's configuration, the choice of `envcheck mirror use`.
BUILT_IN_NAMES: Final = ("none", "host", "user")
# What `--mirror` of build and fetch takes too: a choice by a probe, not a profile.
AUTO: Final = "auto"
# Returns the file, the line and the key that a key path ("$.pypi[0].url") is at.
LocateKey = Callable[[str], str]
T = TypeVar("T")


class PresetEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One URL of a mirror. `source` documents it; `last_verified` is the last day on which it was seen to work.

    `upstream` is the registry that is mirrored; `channels` are the cloud channels that a conda mirror has.
    """

    kind: Kind
    url: str
    source: str
    last_verified: dt.date | None
    layout: Literal["simple", "find-links"] = "simple"
    lacks: list[str] = []
    upstream: str = "docker.io"
    channels: list[str] = []


class Preset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mirror site. `lacks` lists what none of its entries offers."""

    title: str
    region: str
    entries: list[PresetEntry]
    lacks: list[str] = []


def preset_profile(name: str, preset: Preset) -> Profile:
    """Return the profile of a preset."""
    of = {kind: [entry for entry in preset.entries if entry.kind == kind] for kind in get_args(Kind)}
    first = {kind: next((entry.url for entry in entries), None) for kind, entries in of.items()}
    registries: dict[str, list[str]] = {}
    for entry in of["registry"]:
        registries.setdefault(entry.upstream, []).append(entry.url)
    conda = first["conda"]
    return Profile(
        name=name,
        pypi=[Index(url=entry.url, kind=entry.layout) for entry in of["pypi"]],
        pytorch=[Index(url=entry.url, kind=entry.layout) for entry in of["pytorch"]],
        hf=HuggingFace(endpoint=first["hf"]),
        apt=[entry.url for entry in of["apt"]],
        conda=Conda(
            default_channels=[f"{conda}/pkgs/{channel}" for channel in ("main", "r", "msys2")],
            custom_channels=dict.fromkeys(of["conda"][0].channels, f"{conda}/cloud"),
        )
        if conda
        else Conda(),
        npm=first["npm"],
        registries=registries,
        modelscope=first["modelscope"],
    )


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


def load(name: str | Path) -> Profile:
    """Return the profile called `name`, or the one in that YAML file. Paths in the file are relative to it."""
    name = str(name)
    plain = model.plain_profile(name)
    if plain is not None:
        return plain
    if name == "user":
        try:
            return load(model.read_choice() or "none")
        except ConfigError as error:
            fix = f"correct it, or remove the choice with `envcheck mirror use none` ({model.choice_path()})"
            raise ConfigError(error.message, fix=fix) from error
    if name == "host":
        found = host_profile()
        simple = {part: [i for i in found.indexes(part) if i.kind == "simple"] for part in ("pypi", "pytorch")}
        validate(msgspec.structs.replace(found, **simple), _of_this_machine)
        return _check_files(found, _of_this_machine)
    if name in presets():
        return preset_profile(name, presets()[name])
    if not Path(name).is_file():
        raise _unknown_profile(name)
    return parse(safe_files.read_whole(Path(name)), Path(name))


def _of_this_machine(key_path: str) -> str:
    variables = {"$.ca": "SSL_CERT_FILE, PIP_CERT, REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE", "$.hf.endpoint": "HF_ENDPOINT"}
    return f"this machine's configuration: {key_path[2:]} ({variables.get(key_path, 'of pip or uv')})"


def _unknown_profile(name: str) -> ConfigError:
    shown = redacted(name)
    if "://" in name:
        fix = "write the URL to a YAML file under `pypi:`, `pytorch:` or `hf:`, and pass the file's path"
        return ConfigError(f"{shown!r} is a URL, not a mirror profile", fix=fix)
    if name == AUTO:
        fix = "name a profile; `envcheck mirror probe` without --mirror compares all of them"
        return ConfigError("auto is a choice among mirrors, only for build and fetch", fix=fix)
    if Path(name).is_dir():
        fix = "pass a profile's YAML file; it names a directory of wheels under `pypi:`"
        return ConfigError(f"{shown} is a directory, not a mirror profile", fix=fix)
    near = difflib.get_close_matches(name, [*BUILT_IN_NAMES, *presets()], n=3, cutoff=0.5)
    fix = "pass none, host, user, a name from `envcheck mirror list`, a YAML file, or auto (build and fetch)"
    return ConfigError(
        f"no mirror profile {shown!r}", fix=f"did you mean {' or '.join(map(repr, near))}?" if near else fix
    )


def parse(data: bytes, path: Path) -> Profile:
    """Return the profile in YAML `data`. Raise ConfigError that names the key path and the line."""
    value, locate = _read_mapping(data, path, "a mirror profile")
    value.setdefault("name", path.stem)
    fix = "docs/mirrors.md has an example"
    for key_path, item, kind in _mapped_items(value):
        _convert(item, kind, locate, key_path, fix)
    profile = _with_absolute_paths(_convert(value, Profile, locate, "$", fix), path)
    profile = _check_files(validate(profile, locate), locate)
    hosts = {host.lower(): secret for host, secret in profile.credentials.items()}
    return msgspec.structs.replace(profile, credentials=hosts)


def _with_absolute_paths(profile: Profile, path: Path) -> Profile:
    def absolute(value: str | None) -> str | None:
        # A ~user that this machine lacks stays as it is; the check of the files names it.
        return None if value is None else str((path.parent / os.path.expanduser(value)).absolute())  # noqa: PTH111

    credentials = {
        host: msgspec.structs.replace(
            secret, password_file=absolute(secret.password_file), token_file=absolute(secret.token_file)
        )
        for host, secret in profile.credentials.items()
    }
    ca, netrc = absolute(profile.ca), absolute(profile.netrc)
    return msgspec.structs.replace(profile, ca=ca, netrc=netrc, credentials=credentials)


_TEXT_TAG: Final = "tag:yaml.org,2002:str"
# A quoted part of YAML's problem that is no content of the file: a sign, an escape, a token such as <stream end>.
_YAML_SIGN: Final = r"""'(?:.|\\.|<[a-z ]+>)'|"'\""""


def _read_mapping(data: bytes, path: Path, kind: str) -> tuple[dict[Any, Any], LocateKey]:
    """Return the mapping in a YAML file, and what names a key path with file and line. Refuse credentials in it."""
    rows, value = _read_yaml(data, path)
    if not isinstance(value, dict):
        refuse(f"{path}: not {kind}: expected a mapping", "docs/mirrors.md has an example of a profile")
    lines = {key_path: line for key_path, line, _ in rows}

    def locate(key_path: str) -> str:
        return f"{path}:{lines.get(key_path, 1)}: {_shown(key_path)}"

    for key_path, _, text in rows:
        if has_userinfo(text):
            refuse(f"{locate(key_path)}: a user or password in {redacted(text)}", "move it to a netrc file (`netrc:`)")
    return value, locate


def _shown(key_path: str) -> str:
    return _printable(redacted(key_path.removeprefix("$").removeprefix("."))) or "profile"


def _printable(text: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _read_yaml(data: bytes, path: Path) -> tuple[list[tuple[str, int, str]], Any]:
    try:
        refuse_shape(yaml.parse(data, Loader=yaml.SafeLoader), str(path))
        node = yaml.compose(data, Loader=yaml.SafeLoader)
        rows = list(_walk(node, path))
        return rows, None if node is None else yaml.SafeLoader("").construct_document(node)
    except yaml.reader.ReaderError:
        refuse(f"{path} is not a text file", "write it in UTF-8, without control characters")
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"{path}:{mark.line + 1}" if mark else str(path)
        # The quoted part may be a password: "could not determine a constructor for the tag '!...'".
        problem = getattr(error, "problem", None) or "unreadable"
        problem = re.sub(rf"""({_YAML_SIGN})|["'].*["']""", lambda match: match[1] or "'...'", problem)
        refuse(f"{line}: not YAML: {problem}", "correct the line")
    except (ValueError, RecursionError) as error:
        refuse(f"{path}: not YAML: {str(error).splitlines()[0]}", "use only text, true or false, lists and mappings")


def _walk(node: yaml.Node | None, path: Path, at: str = "$") -> Iterator[tuple[str, int, str]]:
    """Yield the key path ("$.pypi[0].url"), line and text of each value.

    Refuse a key that is no text, a duplicate one, of which YAML takes the last, and an empty list of indexes.
    """
    if node is not None:
        line = node.start_mark.line + 1
        yield at, line, node.value if node.tag == _TEXT_TAG else ""
        if at in {"$.pypi", "$.pytorch"} and not node.value:
            refuse(f"{path}:{line}: {_shown(at)}: the list is empty", "remove the key, or name an index or a directory")
    if isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield from _walk(value, path, f"{at}[{number}]")
    if isinstance(node, yaml.MappingNode):
        first_lines: dict[str, int] = {}
        for key, value in node.value:
            line, below = key.start_mark.line + 1, f"{at}.{key.value}"
            if key.tag != _TEXT_TAG:
                refuse(f"{path}:{line}: {_shown(at)}: a key that is not text", "quote the key, or correct it")
            if key.value in first_lines:
                refuse(
                    f"{path}:{line}: {_shown(below)}: duplicate key, first in line {first_lines[key.value]}",
                    "join the two, or remove one",
                )
            first_lines[key.value] = line
            yield from _walk(value, path, below)
            yield below, line, ""


def _mapped_items(value: dict[Any, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield key path, value and type of each item of a profile's mappings, of which msgspec's errors name no key."""
    conda = value.get("conda")
    channels = conda.get("custom_channels") if isinstance(conda, dict) else None
    mappings = [("registries", value.get("registries"), list[str]), ("conda.custom_channels", channels, str)]
    for name, mapping, kind in [*mappings, ("credentials", value.get("credentials"), Credential)]:
        if isinstance(mapping, dict):
            yield from ((f"$.{name}.{key}", item, kind) for key, item in mapping.items())


# The parts of a profile and of a preset that are mappings of known keys.
_PARTS: Final = {"hf": HuggingFace, "conda": Conda, "pypi": Index, "pytorch": Index, "entries": PresetEntry}


def _convert(value: Any, kind: type[T], locate: LocateKey, root: str, fix: str) -> T:
    """Return the value as this type. Raise ConfigError with file, line and key; `root` is the value's key path."""
    fields = getattr(kind, "__struct_fields__", ())
    for key in value if fields and isinstance(value, dict) else ():
        if key not in fields:
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
    if root + inner == "$.hf.token":
        fix = "write never or allow; keep the token itself in HF_TOKEN, or in a file that `credentials:` names"
        return ConfigError(f"{locate('$.hf.token')}: expected never or allow", fix=fix)
    unknown = problem.partition("unknown field `")[2].rstrip("`")
    if unknown:
        part = _PARTS.get(re.split(r"[.\[]", f"{inner}.")[1], kind)
        return _unknown_key(root + inner, unknown, part, locate)
    problem = problem.replace("`object`", "a mapping").replace("`array`", "a list")  # as YAML calls them
    problem = problem.replace("Object missing required field", "missing key")
    return ConfigError(f"{locate(root + inner)}: {problem}", fix=fix)


def _unknown_key(key_path: str, key: str, kind: Any, locate: LocateKey) -> ConfigError:
    fix = f"use one of {', '.join(kind.__struct_fields__)}"
    return ConfigError(f"{locate(f'{key_path}.{key}')}: unknown key", fix=fix)


_WEB: Final = ("https://", "http://")
_FILES: Final = (*_WEB, "file://", "/")
# A long name with the prefix of a Hugging Face, npm, GitHub or GitLab token is such a token.
_ENV_NAME: Final = re.compile(r"(?!(hf|npm|gh[a-z]|glpat)_[A-Za-z0-9]{20})[A-Za-z_][A-Za-z0-9_]{0,63}")
# Characters with a meaning to a shell, nginx or a systemd unit. A URL can percent-encode them.
_SHELL: Final = frozenset("`'\"\\$;<>|")
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)(:[0-9]{1,5})?")
_REGISTRY: Final = re.compile(rf"(https?://)?{_HOST.pattern}(/[a-z0-9._/-]+)?")
_CHANNEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
# Key path, problem and fix.
_Problems = Iterator[tuple[str, str, str]]


def validate(profile: Profile, locate: LocateKey) -> Profile:
    """Return the profile. Raise ConfigError, naming the key, for a value that is malformed or may be a secret."""
    for check in (_url_problems, _name_problems, _credential_problems):
        for key_path, problem, fix in check(profile):
            refuse(f"{locate(key_path)}: {problem}", fix)
    return profile


def _urls(profile: Profile) -> Iterator[tuple[str, str | None, tuple[str, ...]]]:
    for key in ("pypi", "pytorch"):
        yield from ((f"$.{key}[{n}].url", index.url, _FILES) for n, index in enumerate(getattr(profile, key)))
    hf, conda = profile.hf, profile.conda
    lists = {"$.apt": profile.apt, "$.hf.fallbacks": hf.fallbacks, "$.conda.default_channels": conda.default_channels}
    yield from ((f"{key}[{n}]", url, _WEB) for key, urls in lists.items() for n, url in enumerate(urls))
    single = {"$.hf.endpoint": hf.endpoint, "$.hf.trusted": hf.trusted, "$.npm": profile.npm}
    single |= {"$.conda.channel_alias": conda.channel_alias}
    single |= {f"$.conda.custom_channels.{name}": url for name, url in conda.custom_channels.items()}
    yield from ((key_path, url, _WEB) for key_path, url in single.items())


def _url_problems(profile: Profile) -> _Problems:
    for key_path, url, beginnings in _urls(profile):
        if url is None or (url == CLIENT_DEFAULT and key_path.endswith(".url")):
            continue
        shown = redacted(url)
        if not url.startswith(beginnings):
            yield key_path, f"{shown!r} is not a URL", f"begin it with {', '.join(beginnings)}"
        if any(character.isspace() or not character.isprintable() for character in url):
            yield key_path, f"a blank in the URL {shown!r}", "write blanks as %20"
        if _SHELL & set(url):
            problem = f"a quote, a backtick, a backslash, $, ;, <, > or | in the URL {shown!r}"
            yield key_path, problem, "write it percent-encoded, a backtick as %60"
        if "?" in url:
            fix = "remove the query; move a token to a netrc file, and name it under `netrc:`"
            yield key_path, f"a query in the URL {shown}", fix
        for name in re.findall(r"\{([^{}]*)\}", url):
            if name != "variant" or not key_path.startswith("$.pytorch"):
                fix = "use {variant}, the only placeholder, in URLs under `pytorch:`"
                yield key_path, f"unknown placeholder {{{name}}}", fix
    if profile.hf.fallbacks and profile.hf.endpoint is None:
        yield "$.hf.fallbacks", "fallbacks without an endpoint", "name the first endpoint under `endpoint:`"


def _name_problems(profile: Profile) -> _Problems:
    if "@" in (profile.registry or ""):
        fix = "write the registry's name alone, and log the engine in (`docker login`)"
        yield "$.registry", "a user or password before the registry's name", fix
    names = [("$.registry", profile.registry), ("$.modelscope", profile.modelscope)]
    for upstream, mirrors in profile.registries.items():
        names += [(f"$.registries.{upstream}", upstream if "/" not in upstream else "/")]
        names += [(f"$.registries.{upstream}[{n}]", mirror) for n, mirror in enumerate(mirrors)]
    for key_path, name in names:
        if name is not None and not _REGISTRY.fullmatch(name):
            shown = key_path.removeprefix("$.registries.") if name == "/" else name
            fix = "write HOST or HOST:PORT, with http:// before it if it has no TLS"
            yield key_path, f"{redacted(shown)!r} is not the name of a registry", fix
    for channel in profile.conda.custom_channels:
        if not _CHANNEL.fullmatch(channel):
            problem = f"{redacted(channel)!r} is not the name of a channel"
            yield "$.conda.custom_channels", problem, "write the NAME that `conda install -c NAME` takes"


def _credential_problems(profile: Profile) -> _Problems:
    for host, secret in profile.credentials.items():
        key_path = f"$.credentials.{host}"
        if not _HOST.fullmatch(host):
            yield key_path, f"{redacted(host)!r} is not a host", "write HOST or HOST:PORT without a scheme or path"
        if secret.user is not None and (not secret.user.isprintable() or ":" in secret.user):
            fix = "write only the user's name; the secret goes to password_env or password_file"
            yield f"{key_path}.user", "a control character or a colon in the user's name", fix
        places = ("password_env", "password_file", "token_env", "token_file")
        sources = [name for name in places if getattr(secret, name)]
        if len(sources) != 1 or (secret.user is not None) != sources[0].startswith("password"):
            fix = "set user with password_env or password_file, or one of token_env and token_file; or use a netrc file"
            yield key_path, "expected exactly one place of a secret", fix
        elif sources[0].endswith("_env") and not _ENV_NAME.fullmatch(getattr(secret, sources[0])):
            # An invalid name may be the secret itself, so the message does not repeat it.
            fix = "write the name of the variable that holds the secret, e.g. NPM_TOKEN, never the secret itself"
            yield f"{key_path}.{sources[0]}", "not the name of a variable", fix


def _check_files(profile: Profile, locate: LocateKey) -> Profile:
    files = {f"$.{key}": getattr(profile, key) for key in ("ca", "netrc")}
    for host, secret in profile.credentials.items():
        files |= {f"$.credentials.{host}.{key}": getattr(secret, key) for key in ("password_file", "token_file")}
    for key_path, file in files.items():
        if file is not None and (why := _not_a_file(Path(file))):
            refuse(f"{locate(key_path)}: {file if file.isprintable() else repr(file)} {why}", "name another file")
    if profile.ca is not None:
        content = safe_files.read_whole(Path(profile.ca)).decode(errors="replace")
        if "BEGIN CERTIFICATE" not in content or "PRIVATE KEY" in content:
            refuse(f"{locate('$.ca')}: {profile.ca} must hold PEM certificates and no private key", "use a PEM bundle")
    return profile


def _not_a_file(path: Path) -> str | None:
    try:
        return None if path.is_file() else "is a directory" if path.is_dir() else "does not exist"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
