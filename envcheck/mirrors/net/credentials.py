"""Which host gets which secret: a host gets the login that a netrc file or a profile names for it.

A token goes to its own origin only. Each hop of a redirect is looked up on its own, so no secret follows a redirect.
"""

import base64
import errno
import netrc
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol, TypeAlias
from urllib.parse import urlsplit

from envcheck.errors import ConfigError
from envcheck.mirrors.net.urls import is_loopback, origin_of
from envcheck.mirrors.profiles.model import Credential, Profile, host_of
from envcheck.struct_types import Secret

_Origin: TypeAlias = tuple[str, str | None, int | None]


class Login(Protocol):
    """A secret and the host that it is for."""

    def header(self, url: str) -> str | None:
        """Return the Authorization header, or None for another host. Raise OSError if the secret is missing."""


class OriginLogin(Secret, frozen=True):
    """An Authorization header for the scheme, host and port of one URL."""

    url: str
    authorization: str

    def header(self, url: str) -> str | None:
        """Return the header for a URL of that origin, else None."""
        return self.authorization if origin_of(self.url) == origin_of(url) else None


class HostCredential(Secret, frozen=True):
    """A credential that a profile sets for `host`: on its port (HOST:PORT), or on 443 and those that `named` has.

    It is sent without TLS only to the origins in `named`. `missing` says why there is no secret; then the host gets no
    request.
    """

    host: str
    named: frozenset[_Origin]
    authorization: str
    missing: str = ""

    def header(self, url: str) -> str | None:
        """Return the header for a URL of that host, else None."""
        scheme, hostname, port = origin = origin_of(url)
        # Another port of a host may be another user's.
        names = {host_of(url), f"{host_of(url).removesuffix(f':{port}')}:{port}"}
        ports = (443,) if self.host == hostname else (port,) if self.host in names else ()
        is_named = origin in self.named and self.host in {hostname, *names}
        if not is_named and (scheme != "https" or port not in ports):
            return None
        if self.missing:
            raise FileNotFoundError(errno.ENOENT, self.missing)
        return self.authorization


class Netrc:
    """A netrc file. Its `default` entry is not used, because a redirect could lead anywhere.

    A login goes to its host over TLS: on the ports that the profile's own `urls` have for the host, or on 443 if they
    do not have it. Without TLS it goes only to this machine and to http:// URLs in `urls`.
    """

    def __init__(self, path: Path, urls: Iterable[str] = ()) -> None:
        self._named = {origin_of(url) for url in urls if "://" in url}
        try:
            self._hosts = _hosts(path)
        except (netrc.NetrcParseError, OSError, UnicodeDecodeError) as error:
            # netrc's own message repeats the word that it cannot parse, which is often half of a password.
            line = getattr(error, "lineno", None)
            problem = f"line {line}" if line else getattr(error, "strerror", None) or "not UTF-8 text"
            message = f"{path}: not a valid netrc file: {problem}"
            raise ConfigError(message, fix="write `machine HOST login USER password SECRET`, one a line") from error

    def header(self, url: str) -> str | None:
        """Return the login for the URL's host if it may be sent there, else None."""
        scheme, host, port = origin = origin_of(url)
        allowed = is_loopback(host or "") or (scheme, port) == ("https", 443)
        if any(named_host == host for _, named_host, _ in self._named):
            allowed = origin in self._named
        login = self._hosts.get(host or "")
        return basic(login[0], login[2]) if login and allowed else None


def _hosts(path: Path) -> dict[str, tuple[str, str, str]]:
    """Return the logins of a netrc file. A comment after a blank line ends Python's reading (cpython#104306)."""
    with os.fdopen(os.memfd_create("netrc"), "w", encoding="utf-8") as file:
        file.write(re.sub(r"(?m)^[ \t]*#.*$", " ", path.read_text(encoding="utf-8")))  # not "", which ends a macro
        file.flush()
        return dict(netrc.netrc(f"/proc/self/fd/{file.fileno()}").hosts)


def host_credentials(
    profile: Profile, *more_urls: str, environ: Mapping[str, str] | None = None
) -> list[HostCredential]:
    """Return the logins of a profile's `credentials`, with the secrets read from their variables and files."""
    environ = os.environ if environ is None else environ
    named = frozenset(origin_of(url) for url in [*profile_urls(profile), *more_urls] if "://" in url)
    exact = sorted(profile.credentials.items(), key=lambda pair: ":" not in pair[0])
    return [_host_credential(host, secret, named, environ) for host, secret in exact]


def _host_credential(
    host: str, credential: Credential, named: frozenset[_Origin], environ: Mapping[str, str]
) -> HostCredential:
    variable, file = credential.password_env or credential.token_env, credential.password_file or credential.token_file
    try:
        secret_text = environ.get(variable, "") if variable else Path(file or "").read_text().strip()
    except (OSError, UnicodeDecodeError):
        secret_text = ""
    if not secret_text or not secret_text.isprintable():
        where = f"${variable}" if variable else file
        return HostCredential(host, named, "", f"its credential is missing: {where} has no secret")
    user = credential.user
    return HostCredential(host, named, f"Bearer {secret_text}" if user is None else basic(user, secret_text))


def profile_urls(profile: Profile) -> Iterator[str]:
    """Yield the URLs of a profile for packages, models and datasets."""
    yield from (index.url for index in (*profile.pypi, *profile.pytorch))
    yield from (url for url in (*profile.hf.endpoints, profile.hf.trusted) if url is not None)


def named_hosts(profile: Profile) -> frozenset[str]:
    """Return the hosts from which a profile fetches packages, models and datasets, without ports."""
    return frozenset(
        name for url in [*profile_urls(profile), profile.modelscope or ""] if (name := urlsplit(url).hostname)
    )


def logins(profile: Profile, *more_endpoints: str, environ: Mapping[str, str] | None = None) -> list[Login]:
    """Return the credentials for each host.

    Those of the profile's `credentials` and netrc file go to the hosts that they name. huggingface_hub's token goes to
    the endpoints, and only if the profile allows it.
    """
    environ = os.environ if environ is None else environ
    own, file = "", token_path(environ)
    if profile.hf.token == "allow":  # noqa: S105 (a policy)
        own = (environ.get("HF_TOKEN") or (file.read_text(errors="replace") if file.is_file() else "")).strip()
    endpoints = dict.fromkeys([*profile.hf.endpoints, *filter(None, [profile.hf.trusted]), *more_endpoints])
    tokens = [OriginLogin(url, f"Bearer {own}") for url in endpoints if own and own.isprintable()]
    named = [*profile_urls(profile), *more_endpoints]
    return [
        *host_credentials(profile, *more_endpoints, environ=environ),
        *tokens,
        *([Netrc(Path(profile.netrc), named)] if profile.netrc else []),
    ]


def token_path(environ: Mapping[str, str]) -> Path:
    """Return the file in which huggingface_hub keeps its token."""
    home = environ.get("HF_HOME") or str(Path(environ.get("HOME") or "/root", ".cache/huggingface"))
    return Path(environ.get("HF_TOKEN_PATH") or f"{home}/token")


def basic(user: str, password: str) -> str:
    """Return the Authorization header of a user and password."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
