"""Who is told which secret: a host what its netrc or its profile says of it by name, an origin the token meant for it.

Every hop of a redirect is asked for by itself, so nothing is carried on to a host that it was not meant for.
"""

from __future__ import annotations

import base64
import dataclasses
import errno
import netrc
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from envcheck.errors import ConfigError
from envcheck.mirrors.net.urls import host_of, is_loopback, origin_of
from envcheck.mirrors.profiles.model import Credential, Profile


class Login(Protocol):
    """A secret and whom it is for."""

    def header(self, url: str) -> str | None:
        """Return the Authorization for a URL, or None where it is for another. Raise OSError where it is not there."""


@dataclasses.dataclass(frozen=True)
class BearerToken:
    """A token, and the URL whose scheme, host and port may see it."""

    url: str
    token: str = dataclasses.field(repr=False)

    def header(self, url: str) -> str | None:
        """Return it for a URL of that origin."""
        return f"Bearer {self.token}" if origin_of(self.url) == origin_of(url) else None


@dataclasses.dataclass(frozen=True)
class HostCredential:
    """What a profile names for `host`, which is HOST or HOST:PORT: told over TLS, and to those `plain` without it.

    `missing` says why there is nothing to tell: then the host is not asked at all, as it would only refuse.
    """

    host: str
    plain: frozenset[str]
    authorization: str = dataclasses.field(repr=False)
    missing: str = ""

    def header(self, url: str) -> str | None:
        """Return it for a URL of that host."""
        parts, at = urlsplit(url), host_of(url).lower()
        if self.host not in {at, parts.hostname} or (parts.scheme != "https" and at not in self.plain):
            return None
        if self.missing:
            raise FileNotFoundError(errno.ENOENT, self.missing)
        return self.authorization


class Netrc:
    """A netrc file. Its `default` is for no host in particular, and a redirect may lead anywhere: it is not used.

    A login goes to its host over TLS: on the ports at which `urls`, the profile's own, name the host, and on 443 where
    they do not name it. Without TLS it goes to this machine itself, and to what `urls` name with http://.
    """

    def __init__(self, path: Path, urls: Iterable[str] = ()) -> None:
        self._named = {origin_of(url) for url in urls if "://" in url}
        try:
            self._hosts = netrc.netrc(path).hosts
        except (netrc.NetrcParseError, OSError, UnicodeDecodeError) as error:
            # What netrc itself says repeats the word that it cannot make sense of: half of a password, often.
            line = getattr(error, "lineno", None)
            what = f"line {line}" if line else getattr(error, "strerror", None) or "it is no UTF-8 text"
            message = f"{path}: no netrc file: {what}"
            raise ConfigError(message, fix="write `machine HOST login USER password SECRET`, one a line") from error

    def header(self, url: str) -> str | None:
        """Return the login of the URL's host, if it may go there."""
        known = self._hosts.get(urlsplit(url).hostname or "")
        return _basic(known[0], known[2]) if known and self._may(origin_of(url)) else None

    def _may(self, origin: tuple[str, str | None, int | None]) -> bool:
        scheme, host, port = origin
        if any(named == host for _, named, _ in self._named):
            return origin in self._named
        return is_loopback(host or "") or (scheme, port) == ("https", 443)


def permission_warning(path: Path) -> str | None:
    """Return what is to be said of a file of secrets that others may read or write; None where they may not."""
    mode = path.stat().st_mode & 0o777
    if not mode & 0o066:
        return None
    may = "written" if mode & 0o022 else "read"
    return f"the profile's netrc file may be {may} by others (mode {mode:03o}): chmod 600 it"


def host_credentials(profile: Profile, environ: Mapping[str, str] | None = None) -> list[HostCredential]:
    """Return the logins of a profile's `credentials`, the secrets read from where they are said to be."""
    environ = os.environ if environ is None else environ
    plain = frozenset(host_of(url).lower() for url in profile_urls(profile) if url.startswith("http://"))
    exact = sorted(profile.credentials.items(), key=lambda pair: ":" not in pair[0])
    return [_host_credential(host, secret, plain, environ) for host, secret in exact]


def _host_credential(
    host: str, secret: Credential, plain: frozenset[str], environ: Mapping[str, str]
) -> HostCredential:
    variable, file = secret.password_env or secret.token_env, secret.password_file or secret.token_file
    try:
        found = environ.get(variable, "") if variable else Path(file or "").read_text().strip()
    except (OSError, UnicodeDecodeError):
        found = ""
    if not found or not found.isprintable():
        return HostCredential(
            host, plain, "", f"its credential is not there: {f'${variable}' if variable else file} holds none"
        )
    return HostCredential(host, plain, f"Bearer {found}" if secret.user is None else _basic(secret.user, found))


def profile_urls(profile: Profile) -> Iterator[str]:
    """Yield the URLs that a profile names for packages, models and datasets."""
    yield from (index.url for index in (*profile.pypi, *profile.pytorch))
    yield from (url for url in (*profile.hf.endpoints, profile.hf.trusted) if url is not None)


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
