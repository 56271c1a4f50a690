"""Validation of a profile: its URLs, hosts and names of variables are well-formed, and none of them is a secret."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from envcheck.errors import ConfigError
from envcheck.mirrors.profiles.model import CLIENT_DEFAULT, Credential, Profile, has_userinfo, redacted, without_query

LocateKey = Callable[[str], str]
_WEB: Final = ("https://", "http://")
_FILES: Final = (*_WEB, "file://", "/")
# A long name with the prefix of a Hugging Face, npm, GitHub or GitLab token is such a token.
_VARIABLE: Final = re.compile(r"(?!(hf|npm|gh[a-z]|glpat)_[A-Za-z0-9]{20})[A-Za-z_][A-Za-z0-9_]{0,63}")
# Characters with a meaning to a shell, nginx or a systemd unit. A URL can percent-encode them.
_SHELL: Final = frozenset("`'\"\\$;<>|")
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)(:[0-9]{1,5})?")
_REGISTRY: Final = re.compile(rf"(https?://)?{_HOST.pattern}(/[a-z0-9._/-]+)?")
_CHANNEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")


def validate(profile: Profile, locate: LocateKey) -> Profile:
    """Return the profile. Raise ConfigError, naming the key, for a value that is malformed or may be a secret."""
    refuse_userinfo(msgspec.to_builtins(profile), locate)
    for key_path, url, beginnings in _urls(profile):
        if not url.startswith(beginnings) and not (url == CLIENT_DEFAULT and key_path.endswith(".url")):
            message = f"{locate(key_path)}: {redacted(url)!r} is not a URL"
            raise ConfigError(message, fix=f"begin it with {', '.join(beginnings)}")
        _check_url(key_path, url, locate)
    if profile.hf.fallbacks and profile.hf.endpoint is None:
        message = f"{locate('$.hf.fallbacks')}: fallbacks without an endpoint"
        raise ConfigError(message, fix="name the first endpoint under `endpoint:`")
    _check_registries(profile, locate)
    for host, secret in profile.credentials.items():
        _check_credential(host, secret, locate)
    return profile


def refuse_userinfo(value: Any, locate: LocateKey) -> None:
    """Raise ConfigError if any text in lists and mappings has a user or password."""
    for key_path, text in _texts(value):
        if has_userinfo(text):
            message = f"{locate(key_path)}: a user or password in {redacted(text)}"
            raise ConfigError(message, fix="move it to a netrc file, and name the file under `netrc:`")


def _texts(value: Any, key_path: str = "$") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, f"{key_path}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _texts(item, f"{key_path}[{number}]")
    elif isinstance(value, str):
        yield key_path, value


def _urls(profile: Profile) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for key in ("pypi", "pytorch"):
        yield from ((f"$.{key}[{n}].url", i.url, _FILES) for n, i in enumerate(getattr(profile, key)))
    yield from ((f"$.apt[{n}]", url, _WEB) for n, url in enumerate(profile.apt))
    single = {"$.hf.endpoint": profile.hf.endpoint, "$.hf.trusted": profile.hf.trusted, "$.npm": profile.npm}
    single["$.conda.channel_alias"] = profile.conda.channel_alias
    yield from ((key_path, url, _WEB) for key_path, url in single.items() if url is not None)
    yield from ((f"$.hf.fallbacks[{n}]", url, _WEB) for n, url in enumerate(profile.hf.fallbacks))
    yield from ((f"$.conda.default_channels[{n}]", url, _WEB) for n, url in enumerate(profile.conda.default_channels))
    yield from ((f"$.conda.custom_channels.{name}", url, _WEB) for name, url in profile.conda.custom_channels.items())


def _check_url(key_path: str, url: str, locate: LocateKey) -> None:
    if any(character.isspace() or not character.isprintable() for character in url):
        message = f"{locate(key_path)}: a blank in the URL {redacted(url)!r}"
        raise ConfigError(message, fix="write blanks as %20")
    if any(character in _SHELL for character in url):
        message = f"{locate(key_path)}: a quote, a backtick, a backslash, $, ;, <, > or | in the URL {redacted(url)!r}"
        raise ConfigError(message, fix="write it percent-encoded, a backtick as %60")
    if without_query(url) != url:
        message = f"{locate(key_path)}: a query in the URL {redacted(url)}"
        raise ConfigError(message, fix="remove the query; move a token to a netrc file, and name it under `netrc:`")
    placeholders = {"variant"} if key_path.startswith("$.pytorch") else set()
    unknown = next((name for name in re.findall(r"\{([^{}]*)\}", url) if name not in placeholders), None)
    if unknown is not None:
        message = f"{locate(key_path)}: unknown placeholder {{{unknown}}}"
        raise ConfigError(message, fix="use {variant}, the only placeholder, in URLs under `pytorch:`")


def _check_registries(profile: Profile, locate: LocateKey) -> None:
    if "@" in (profile.registry or ""):
        message = f"{locate('$.registry')}: a user or password before the registry's name"
        raise ConfigError(message, fix="write the registry's name alone, and log the engine in (`docker login`)")
    names_by_key = [("$.registry", profile.registry)] if profile.registry is not None else []
    names_by_key += [(f"$.registries.{upstream}", upstream) for upstream in profile.registries]
    names_by_key += [
        (f"$.registries.{u}[{n}]", name) for u, names in profile.registries.items() for n, name in enumerate(names)
    ]
    names_by_key += [("$.modelscope", profile.modelscope)] if profile.modelscope is not None else []
    for key_path, name in names_by_key:
        if not _REGISTRY.fullmatch(name) or (key_path == f"$.registries.{name}" and "/" in name):
            message = f"{locate(key_path)}: {redacted(name)!r} is not the name of a registry"
            raise ConfigError(message, fix="write HOST or HOST:PORT, with http:// before it if it has no TLS")
    for channel in profile.conda.custom_channels:
        if not _CHANNEL.fullmatch(channel):
            message = f"{locate('$.conda.custom_channels')}: {redacted(channel)!r} is not the name of a channel"
            raise ConfigError(message, fix="write the NAME that `conda install -c NAME` takes")


def _check_credential(host: str, secret: Credential, locate: LocateKey) -> None:
    key_path = f"$.credentials.{host}"
    if not _HOST.fullmatch(host):
        message = f"{locate(key_path)}: {redacted(host)!r} is not a host"
        raise ConfigError(message, fix="write HOST or HOST:PORT without a scheme or path")
    if secret.user is not None and (not secret.user.isprintable() or ":" in secret.user):
        message = f"{locate(f'{key_path}.user')}: a control character or a colon in the user's name"
        raise ConfigError(message, fix="write only the user's name; the secret goes to password_env or password_file")
    sources = [name for name in ("password_env", "password_file", "token_env", "token_file") if getattr(secret, name)]
    if len(sources) != 1 or (secret.user is not None) != sources[0].startswith("password"):
        message = f"{locate(key_path)}: expected exactly one place of a secret"
        fix = "set user with password_env or password_file, or one of token_env and token_file; or use a netrc file"
        raise ConfigError(message, fix=fix)
    if sources[0].endswith("_env") and not _VARIABLE.fullmatch(getattr(secret, sources[0])):
        # An invalid name may be the secret itself, so the message does not repeat it.
        message = f"{locate(f'{key_path}.{sources[0]}')}: not the name of a variable"
        fix = "write the name of the variable that holds the secret, e.g. NPM_TOKEN, never the secret itself"
        raise ConfigError(message, fix=fix)


def check_files(profile: Profile, locate: LocateKey) -> Profile:
    """Return the profile. Raise ConfigError for invalid certificates and missing files."""
    files = {f"$.{key}": getattr(profile, key) for key in ("ca", "netrc")}
    for host, secret in profile.credentials.items():
        files |= {f"$.credentials.{host}.{key}": getattr(secret, key) for key in ("password_file", "token_file")}
    for key_path, file in files.items():
        if file is not None and (why := _not_a_file(Path(file))):
            message = f"{locate(key_path)}: {file if file.isprintable() else repr(file)} {why}"
            raise ConfigError(message, fix="name a file on this machine")
    if profile.ca is not None:
        content = Path(profile.ca).read_text(errors="replace")
        if "BEGIN CERTIFICATE" not in content or "PRIVATE KEY" in content:
            message = f"{locate('$.ca')}: {profile.ca} must hold PEM certificates and no private key"
            raise ConfigError(message, fix="use a PEM bundle of certificates")
    return profile


def _not_a_file(path: Path) -> str | None:
    try:
        return None if path.is_file() else "is a directory" if path.is_dir() else "does not exist"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
