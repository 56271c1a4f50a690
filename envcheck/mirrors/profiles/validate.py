"""What a profile may hold: URLs that clients make sense of, hosts, names of variables; no secret anywhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from envcheck.errors import ConfigError
from envcheck.mirrors.profiles.model import CLIENT_DEFAULT, Credential, Profile, redacted, without_query

Where = Callable[[str], str]
_WEB: Final = ("https://", "http://")
_FILES: Final = (*_WEB, "file://", "/")
# A name that begins as the tokens of Hugging Face, npm and the forges do, and is as long, is such a token.
_VARIABLE: Final = re.compile(r"(?!(hf|npm|gh[a-z]|glpat)_[A-Za-z0-9]{20})[A-Za-z_][A-Za-z0-9_]{0,63}")
# What means something to a shell, to nginx or in a unit of systemd. No URL needs them as they are.
_SHELL: Final = frozenset("`'\"\\$;<>|")
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)(:[0-9]{1,5})?")
_REGISTRY: Final = re.compile(rf"(https?://)?{_HOST.pattern}(/[a-z0-9._/-]+)?")
_CHANNEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")


def accept(profile: Profile, where: Where) -> Profile:
    """Return the profile. Raise ConfigError, naming the key, for what no client would take or what may be a secret."""
    for at, url, kinds in _urls(profile):
        if not url.startswith(kinds) and not (url == CLIENT_DEFAULT and at.endswith(".url")):
            message = f"{where(at)}: {redacted(url)!r} is no URL"
            raise ConfigError(message, fix=f"begin it with {', '.join(kinds)}")
        _check_url(at, url, where)
    if profile.hf.fallbacks and profile.hf.endpoint is None:
        message = f"{where('$.hf.fallbacks')}: fallbacks of no endpoint"
        raise ConfigError(message, fix="name the one to be asked first as `endpoint:`")
    _check_registries(profile, where)
    for host, secret in profile.credentials.items():
        _check_credential(host, secret, where)
    return profile


def _urls(profile: Profile) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for key in ("pypi", "pytorch"):
        yield from ((f"$.{key}[{n}].url", i.url, _FILES) for n, i in enumerate(getattr(profile, key)))
    yield from ((f"$.apt[{n}]", url, _WEB) for n, url in enumerate(profile.apt))
    single = {"$.hf.endpoint": profile.hf.endpoint, "$.hf.trusted": profile.hf.trusted, "$.npm": profile.npm}
    single["$.conda.channel_alias"] = profile.conda.channel_alias
    yield from ((at, url, _WEB) for at, url in single.items() if url is not None)
    yield from ((f"$.hf.fallbacks[{n}]", url, _WEB) for n, url in enumerate(profile.hf.fallbacks))
    yield from ((f"$.conda.default_channels[{n}]", url, _WEB) for n, url in enumerate(profile.conda.default_channels))
    yield from ((f"$.conda.custom_channels.{name}", url, _WEB) for name, url in profile.conda.custom_channels.items())


def _check_url(at: str, url: str, where: Where) -> None:
    if any(character.isspace() or not character.isprintable() for character in url):
        message = f"{where(at)}: a blank in the URL {redacted(url)!r}"
        raise ConfigError(message, fix="write blanks as %20")
    if any(character in _SHELL for character in url):
        message = f"{where(at)}: a quote, a backtick, a backslash, $, ;, <, > or | in the URL {redacted(url)!r}"
        raise ConfigError(message, fix="write it percent-encoded, a backtick as %60")
    if without_query(url) != url:
        message = f"{where(at)}: a query in the URL {redacted(url)}"
        raise ConfigError(message, fix="leave it out; move a token to a netrc file and name that under `netrc:`")
    known = {"variant"} if at.startswith("$.pytorch") else set()
    unknown = next((name for name in re.findall(r"\{([^{}]*)\}", url) if name not in known), None)
    if unknown is not None:
        message = f"{where(at)}: nothing is put in for {{{unknown}}}"
        raise ConfigError(message, fix="the one placeholder is {variant}, in the URLs under `pytorch:`")


def _check_registries(profile: Profile, where: Where) -> None:
    if "@" in (profile.registry or ""):
        message = f"{where('$.registry')}: a user or password before the registry's name"
        raise ConfigError(message, fix="name the registry alone, and log the engine in to it (`docker login`)")
    named = [("$.registry", profile.registry)] if profile.registry is not None else []
    named += [(f"$.registries.{upstream}", upstream) for upstream in profile.registries]
    named += [
        (f"$.registries.{u}[{n}]", name) for u, names in profile.registries.items() for n, name in enumerate(names)
    ]
    named += [("$.modelscope", profile.modelscope)] if profile.modelscope is not None else []
    for at, name in named:
        if not _REGISTRY.fullmatch(name) or (at == f"$.registries.{name}" and "/" in name):
            message = f"{where(at)}: {redacted(name)!r} is no registry's name"
            raise ConfigError(message, fix="write HOST or HOST:PORT, with http:// before it where it has no TLS")
    for channel in profile.conda.custom_channels:
        if not _CHANNEL.fullmatch(channel):
            message = f"{where('$.conda.custom_channels')}: {redacted(channel)!r} is no channel's name"
            raise ConfigError(message, fix="write it as `conda install -c NAME` takes it")


def _check_credential(host: str, secret: Credential, where: Where) -> None:
    at = f"$.credentials.{host}"
    if not _HOST.fullmatch(host):
        message = f"{where(at)}: {redacted(host)!r} is no host"
        raise ConfigError(message, fix="write HOST or HOST:PORT alone")
    if secret.user is not None and (not secret.user.isprintable() or ":" in secret.user):
        message = f"{where(f'{at}.user')}: a control character or a colon in the user's name"
        raise ConfigError(message, fix="name the user alone; the secret goes elsewhere")
    given = [name for name in ("password_env", "password_file", "token_env", "token_file") if getattr(secret, name)]
    if len(given) != 1 or (secret.user is not None) != given[0].startswith("password"):
        message = f"{where(at)}: no way to one secret"
        fix = "give user with password_env or password_file, or one of token_env and token_file; or use a netrc"
        raise ConfigError(message, fix=fix)
    if given[0].endswith("_env") and not _VARIABLE.fullmatch(getattr(secret, given[0])):
        # What is no name may well be the secret itself: it is not repeated.
        message = f"{where(f'{at}.{given[0]}')}: not the name of a variable"
        raise ConfigError(message, fix="name the variable that holds the secret, as NPM_TOKEN; never the secret")


def existing(profile: Profile, path: Path) -> Profile:
    """Return the profile. Refuse invalid certificates and missing files before a build starts."""
    named = {key: getattr(profile, key) for key in ("ca", "netrc")}
    for host, secret in profile.credentials.items():
        named[f"credentials: {host}"] = secret.password_file or secret.token_file
    for key, file in named.items():
        if file is not None and not Path(file).is_file():
            message = f"{path}: {key}: {file} {'is a directory' if Path(file).is_dir() else 'does not exist'}"
            raise ConfigError(message, fix="name a file on this machine")
    if profile.ca is not None:
        content = Path(profile.ca).read_text(errors="replace")
        if "BEGIN CERTIFICATE" not in content or "PRIVATE KEY" in content:
            message = f"{path}: ca: {profile.ca} must hold PEM certificates and no private key"
            raise ConfigError(message, fix="name a PEM bundle of certificates")
    return profile
