"""Log in to a registry: what it asks for with 401, the logins of this machine, and tokens until they expire.

A secret goes to the registry that it is for, and to the place that this registry names for tokens, never without TLS
except on this machine. Sources: RFC 9110 §11.6.1, and the token specification of the distribution project.
"""

from __future__ import annotations

import base64
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import urlencode, urlsplit

import msgspec

from envcheck.errors import ConfigError, UnavailableError
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.credentials import BearerToken, Login
from envcheck.mirrors.net.network_errors import NetworkError
from envcheck.mirrors.net.responses import HttpResponse
from envcheck.mirrors.net.urls import host_of, is_loopback, is_web_url, origin_of, redirect_target
from envcheck.registry.references import DOCKER_HUB, DeniedError, ImageReference, RegistryUnavailableError
from envcheck.struct_types import Secret, know_types

_SCHEME: Final = re.compile(r"\s*,?\s*([A-Za-z][A-Za-z0-9-]*)(?:\s+|$|(?=\s*,))(?!=)")
_PARAMETER: Final = re.compile(r"\s*,?\s*([A-Za-z0-9_-]+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s,\"]*))")
_HUB_KEY: Final = "https://index.docker.io/v1/"
_API: Final = re.compile(r"/v[12]/?$")
_HELPER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# Seconds: a helper that waits for somebody at a screen would wait for ever.
HELPER_SECONDS: Final = 30.0
_NOT_FOUND: Final = b"credentials not found in native keychain"
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def challenges(header: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the challenges in a header, each with its parameters; what cannot be read is left out."""
    at = 0
    while scheme := _SCHEME.match(header, at):
        at, parameters = scheme.end(), dict[str, str]()
        while parameter := _PARAMETER.match(header, at):
            quoted, bare = parameter[2], parameter[3]
            parameters[parameter[1].lower()] = bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            at = parameter.end()
        yield scheme[1].lower(), parameters


class Account(Secret, frozen=True):
    """A login for one registry: the header of a password, an identity token, or a token of the registry itself."""

    basic: str = ""
    identity: str = ""
    token: str = ""


class _Entry(msgspec.Struct):
    auth: str | None = None
    identity: str | None = msgspec.field(name="identitytoken", default=None)


class _LoginFile(msgspec.Struct):
    """What docker and podman read, to whom null is as good as nothing."""

    auths: dict[str, _Entry | None] | None = None
    helpers: dict[str, str] | None = msgspec.field(name="credHelpers", default=None)
    store: str | None = msgspec.field(name="credsStore", default=None)


class _HelperAnswer(msgspec.Struct, rename="pascal"):
    username: str
    secret: str


class _TokenAnswer(msgspec.Struct):
    token: str = ""
    access_token: str = ""
    expires_in: float | None = None


know_types(_LoginFile, _HelperAnswer, _TokenAnswer)


def login_files(environ: Mapping[str, str]) -> list[Path]:
    """Return the files that may hold a login, in the order in which they count.

    They are $REGISTRY_AUTH_FILE, $DOCKER_CONFIG/config.json (or ~/.docker/config.json), and containers/auth.json in
    $XDG_RUNTIME_DIR and in ~/.config.
    """
    home, runtime = Path(environ.get("HOME") or "/root"), environ.get("XDG_RUNTIME_DIR")
    files = [Path(environ["REGISTRY_AUTH_FILE"])] if environ.get("REGISTRY_AUTH_FILE") else []
    files.append(Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json")
    files += [Path(runtime) / "containers/auth.json"] if runtime else []
    files.append(Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "containers/auth.json")
    return files


def account_for(reference: ImageReference, environ: Mapping[str, str]) -> Account | None:
    """Return the login that `docker login` or `podman login` left for a repository's registry, or None.

    Raise ConfigError for a file that cannot be read, UnavailableError for a credential helper that fails.
    """
    accounts = (_account(_read(path), reference, path) for path in login_files(environ))
    return next((account for account in accounts if account is not None), None)


def _read(path: Path) -> _LoginFile:
    try:
        return msgspec.json.decode(path.read_bytes() or b"{}", type=_LoginFile)
    except (FileNotFoundError, NotADirectoryError):
        return _LoginFile()
    except OSError as error:
        message = f"{path}: cannot read the logins of registries: {error.strerror}"
        raise ConfigError(message, fix="make it readable, or name another file in REGISTRY_AUTH_FILE") from None
    except _UNREADABLE:  # whose text could repeat a secret
        message = f"{path}: not a valid file of logins"
        raise ConfigError(message, fix="run `docker login` again, or move the file away") from None


def _account(logins: _LoginFile, reference: ImageReference, path: Path) -> Account | None:
    """Return the login of one file: of the registry's own helper, else of the store, else of the file itself."""
    keys = _keys(reference)
    helpers = logins.helpers or {}
    helper = next((helpers[key] for key in keys if key in helpers), logins.store)
    account = _of_helper(helper, reference.registry, path) if helper else None
    if account is not None:
        return account
    stored = {_plain_key(key): entry for key, entry in (logins.auths or {}).items()}
    entry = next((found for key in keys if (found := stored.get(key))), None) or _Entry()
    if entry.identity:
        return Account(identity=entry.identity)
    try:
        user, colon, password = base64.b64decode(entry.auth or "", validate=True).decode().partition(":")
    except ValueError:
        user = colon = password = ""
    if entry.auth and not colon:
        message = f"{path}: the login of {reference.registry} is not base64 of USER:PASSWORD"
        raise ConfigError(message, fix=f"run `docker login {reference.registry}` again")
    return _with_password(user, password.rstrip("\0")) if colon else None  # some clients pad it


def _keys(reference: ImageReference) -> list[str]:
    """Return the names under which a login may stand, the longest first: podman keeps some for a part of a registry."""
    parts = [reference.registry, *reference.repository.split("/")]
    keys = ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return [*keys, _HUB_KEY, "index.docker.io"] if reference.registry == DOCKER_HUB else keys


def _plain_key(key: str) -> str:
    """Return the key without scheme and path of the API, which older clients wrote."""
    if key == _HUB_KEY:
        return DOCKER_HUB
    return _API.sub("", key.partition("://")[2] or key).rstrip("/").lower()


def _with_password(user: str, password: str) -> Account | None:
    header = base64.b64encode(f"{user}:{password}".encode()).decode()
    return Account(f"Basic {header}") if password else None


def _of_helper(name: str, registry: str, path: Path) -> Account | None:
    """Return the login that docker-credential-NAME has. What it prints is in no message: it may hold a secret."""
    if not _HELPER.fullmatch(name):
        message = f"{path}: {name[:40]!r} is not the name of a credential helper"
        raise ConfigError(message, fix="write the NAME of docker-credential-NAME")
    program = f"docker-credential-{name}"
    server = _HUB_KEY if registry == DOCKER_HUB else registry
    try:
        ended = subprocess.run(
            [program, "get"], input=f"{server}\n".encode(), capture_output=True, timeout=HELPER_SECONDS, check=False
        )
        if ended.returncode and _NOT_FOUND in ended.stdout:
            return None
        ended.check_returncode()
        login = msgspec.json.decode(ended.stdout, type=_HelperAnswer)
    except (OSError, subprocess.SubprocessError, *_UNREADABLE):
        message = f"{path} names the credential helper {program}, which gives no login"
        fix = f"put it on PATH, run `{program} get` yourself to see why, or run `docker login {registry}` again"
        raise UnavailableError(message, fix=fix) from None
    is_token = login.username == "<token>"
    return Account(identity=login.secret) if is_token else _with_password(login.username, login.secret)


# Seconds that a token lasts if the answer does not say, and the share of its time after which it is renewed.
_LASTS: Final = 60.0
_USED: Final = 0.9
_MOST: Final = 1 << 18
_CLIENT: Final = "envcheck"
_REFUSALS: Final = {HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


class OriginLogin(Secret, frozen=True):
    """An Authorization header for the origin of one URL."""

    url: str
    authorization: str

    def header(self, url: str) -> str | None:
        """Return the header for a URL of that origin, else None."""
        return self.authorization if origin_of(self.url) == origin_of(url) else None


class Authorization:
    """The logins of requests to one registry. Safe in threads. `account` is called at the first 401."""

    def __init__(
        self,
        client: Client,
        reference: ImageReference,
        account: Callable[[], Account | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._url, self._registry = client, reference.url, reference.registry
        self._find_account = account
        self.has_account = False
        self._clock = clock
        self._lock = threading.Lock()
        self._basic: Login | None = None
        self._tokens: dict[tuple[str, ...], tuple[Login, float]] = {}

    def login(self, scopes: Sequence[str]) -> Login | None:
        """Return the login for these scopes that an earlier 401 led to and that has not expired, or None."""
        token, until = self._tokens.get(tuple(scopes), (self._basic, 0.0))
        return token if self._clock() < until else self._basic

    def answer(self, headers: Mapping[str, str], scopes: Sequence[str], refused: Login | None) -> Login | None:
        """Return a login other than the `refused` one for a 401 with these headers, or None if there is no other.

        A token comes before a password, which then does not go with each request.
        """
        asked = dict(reversed(list(challenges(headers.get("WWW-Authenticate", "")))))
        with self._lock:
            current = self.login(scopes)
            if current is not None and current is not refused:
                return current  # another thread has logged in meanwhile
            if "bearer" in asked:
                self._tokens[tuple(scopes)] = self._token(asked["bearer"], scopes, retry=refused is not None)
                return self._tokens[tuple(scopes)][0]
            account = self._account() if "basic" in asked else None
            if account is None or not account.basic or refused is not None:
                return None
            self._need_tls(self._url)
            self._basic = OriginLogin(self._url, account.basic)
            return self._basic

    def _account(self) -> Account | None:
        account = self._find_account()
        self.has_account = account is not None
        return account

    def _need_tls(self, url: str) -> None:
        """Refuse to send a secret without TLS to another machine."""
        if urlsplit(url).scheme != "https" and not is_loopback(urlsplit(url).hostname or ""):
            message = f"{host_of(url)} wants a login over plain http, which would show it to the network"
            raise DeniedError(message, fix="give the registry TLS, and write its name without http://")

    def _token(self, challenge: Mapping[str, str], scopes: Sequence[str], *, retry: bool) -> tuple[Login, float]:
        """Return a token, and until when it is used."""
        account = self._account()
        if account is not None and account.token and not retry:
            self._need_tls(self._url)
            return BearerToken(self._url, account.token), float("inf")
        realm = self._realm(challenge.get("realm", ""))
        if account is not None and (account.identity or account.basic):
            self._need_tls(realm)
        answer = self._fetched(realm, challenge.get("service", ""), scopes, account)
        token = answer.token or answer.access_token
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            message = f"{host_of(realm)}, where {self._registry} has its tokens, issues none"
            raise RegistryUnavailableError(message, fix="try again later, or ask who runs the registry")
        lasts = answer.expires_in if answer.expires_in is not None and answer.expires_in > 0 else _LASTS
        return BearerToken(self._url, token), self._clock() + lasts * _USED

    def _realm(self, realm: str) -> str:
        """Return where tokens are issued, if a request may go there from this registry."""
        try:
            if is_web_url(realm):
                return redirect_target(self._url, realm)
            why = "it names no URL for its tokens"
        except ValueError as error:
            why = str(error)
        message = f"{self._registry} has its tokens at a place that is not trusted: {why}"
        raise DeniedError(message, fix="ask who runs the registry to correct the realm of its tokens")

    def _fetched(self, realm: str, service: str, scopes: Sequence[str], account: Account | None) -> _TokenAnswer:
        """Ask for a token. Raise NetworkError if asking again may help."""
        try:
            with self._ask(realm, service, scopes, account) as answer:
                if answer.status in _REFUSALS:
                    label = f"a token ({answer.status} from {host_of(realm)})"
                    raise denied(self._registry, label, has=account is not None)
                if answer.status == HTTPStatus.OK:
                    return msgspec.json.decode(answer.text(_MOST), type=_TokenAnswer)
                failure = NetworkError(f"it answers {answer.status}")
        except _UNREADABLE:
            return _TokenAnswer()
        except NetworkError as error:
            failure = error
        message = f"{host_of(realm)}, which issues its tokens: {failure}"
        raise type(failure)(message, failure.fix)

    def _ask(self, realm: str, service: str, scopes: Sequence[str], account: Account | None) -> HttpResponse:
        """Send an identity token by POST (OAuth2); without one, ask by GET, with the password if there is one."""
        query = [("service", service)] if service else []
        if account is None or not account.identity:
            login = None if account is None or not account.basic else OriginLogin(realm, account.basic)
            wanted = urlencode([*query, *(("scope", scope) for scope in scopes)])
            return self._client.get(f"{realm}{'&' if '?' in realm else '?'}{wanted}", login=login)
        form = [("grant_type", "refresh_token"), ("refresh_token", account.identity), ("client_id", _CLIENT), *query]
        form.append(("scope", " ".join(scopes)))
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return self._client.send("POST", realm, kind, body=urlencode(form).encode())


def denied(registry: str, label: str, *, has: bool) -> DeniedError:
    """Return the error of a refusal; `has`: a login was found and is not enough."""
    fix = f"log in with `docker login {registry}` or `podman login {registry}`"
    if has:
        fix = f"use an account that may do this: {fix}"
    return DeniedError(f"{registry} refuses {label}", fix=fix)
