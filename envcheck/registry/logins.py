"""Log in to a registry: what it asks for with 401, the logins of this machine, and tokens until they expire.

A secret goes to the registry that it is for, and to the place that this registry names for tokens, never without TLS
except on this machine. Sources: RFC 9110 §11.6.1, and the token specification of the distribution project.
"""

from __future__ import annotations

import base64
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from envcheck.struct_types import LightRecord, Secret, know_types

_SCHEME: Final = re.compile(r"\s*,?\s*([A-Za-z][A-Za-z0-9-]*)(?:\s+|$|(?=\s*,))(?!=)")
_PARAMETER: Final = re.compile(r"\s*,?\s*([A-Za-z0-9_-]+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s,\"]*))")


class Challenge(LightRecord, frozen=True):
    """One way to log in: `basic`, or `bearer` with the place where a token is issued."""

    scheme: str
    parameters: Mapping[str, str]

    @property
    def realm(self) -> str:
        """Return where a token is issued."""
        return self.parameters.get("realm", "")

    def scopes(self, own: Sequence[str]) -> list[str]:
        """Return what a token is to allow: our own scopes, and what the registry names of another resource."""
        named = self.parameters.get("scope", "").split()
        mine = {scope.rpartition(":")[0] for scope in own}
        return [*own, *(scope for scope in named if scope.rpartition(":")[0] not in mine)]

    def query(self, own: Sequence[str]) -> list[tuple[str, str]]:
        """Return the parameters of a request for a token."""
        service = self.parameters.get("service")
        return [*([("service", service)] if service else []), *(("scope", scope) for scope in self.scopes(own))]

    def token_url(self, own: Sequence[str]) -> str:
        """Return the URL that issues a token for these scopes."""
        query = urlencode(self.query(own))
        return f"{self.realm}{('&' if '?' in self.realm else '?') + query if query else ''}"


def challenges(header: str) -> list[Challenge]:
    """Return the challenges in a header, in order; what cannot be read is left out."""
    return [Challenge(scheme.lower(), dict(parameters)) for scheme, parameters in _parts(header)]


def preferred(challenges: Iterable[Challenge]) -> Challenge | None:
    """Return the challenge to answer: a token before a password, which then does not go with each request."""
    supported = [challenge for challenge in challenges if challenge.scheme in {"bearer", "basic"}]
    return min(supported, key=lambda challenge: challenge.scheme != "bearer", default=None)


def _parts(header: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    at = 0
    while scheme := _SCHEME.match(header, at):
        at, parameters = scheme.end(), list[tuple[str, str]]()
        while parameter := _PARAMETER.match(header, at):
            quoted, bare = parameter[2], parameter[3]
            parameters.append((parameter[1].lower(), bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted)))
            at = parameter.end()
        yield scheme[1], parameters


_HUB_KEY: Final = "https://index.docker.io/v1/"
_API: Final = re.compile(r"/v[12]/?$")
_HELPER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Account(Secret, frozen=True):
    """A login for one registry: the header of a password, an identity token, or a token of the registry itself."""

    basic: str = ""
    identity: str = ""
    token: str = ""


class _LoginFile(msgspec.Struct):
    """What docker and podman read, to whom null is as good as nothing."""

    auths: dict[str, dict[str, str | None] | None] | None = None
    helpers: dict[str, str] | None = msgspec.field(name="credHelpers", default=None)
    store: str | None = msgspec.field(name="credsStore", default=None)


know_types(_LoginFile)


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
    for path in login_files(environ):
        logins = _read(path)
        account = None if logins is None else _account(logins, reference, path)
        if account is not None:
            return account
    return None


def _read(path: Path) -> _LoginFile | None:
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        message = f"{path}: cannot read the logins of registries: {error.strerror}"
        raise ConfigError(message, fix="make it readable, or name another file in REGISTRY_AUTH_FILE") from None
    try:
        return msgspec.json.decode(content or b"{}", type=_LoginFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # whose text could repeat a secret
        message = f"{path}: not a valid file of logins"
        raise ConfigError(message, fix="run `docker login` again, or move the file away") from None


def _account(logins: _LoginFile, reference: ImageReference, path: Path) -> Account | None:
    """Return the login of one file: of the registry's own helper, of the store, or of the file itself."""
    keys = _keys(reference)
    stored = {_plain_key(key): entry for key, entry in (logins.auths or {}).items()}
    entry = next((found for key in keys if (found := stored.get(key))), None)
    helpers = logins.helpers or {}
    helper = next((helpers[key] for key in keys if key in helpers), logins.store)
    if helper and not _HELPER.fullmatch(helper):
        message = f"{path}: {helper[:40]!r} is not the name of a credential helper"
        raise ConfigError(message, fix="write the NAME of docker-credential-NAME")
    login = _resolved(reference.registry, entry, helper, path) if entry or helper else {}
    password = login.get("password", login.get("Password", "")).rstrip("\0")  # some clients pad it
    header = "Basic " + base64.b64encode(f"{login.get('username', login.get('Username'))}:{password}".encode()).decode()
    identity = login.get("IdentityToken", "")
    return Account(header if password else "", identity) if password or identity else None


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


def _resolved(registry: str, entry: dict[str, str | None] | None, helper: str | None, path: Path) -> dict[str, str]:
    """Return the login as the docker SDK resolves it. What a helper prints is in no message: it may hold a secret."""
    from docker import auth, errors  # noqa: PLC0415 (only a registry that wants a login needs it)

    config = {"auths": {registry: entry} if entry else {}, "credsStore": helper}
    again = f"run `docker login {registry}` again"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a helper is not on PATH is an error below, too
            login: dict[str, str] | None = auth.load_config(config_dict=config).resolve_authconfig(registry)
    except (errors.DockerException, ValueError, LookupError, TypeError, OSError):
        if helper:
            message = f"{path} names the credential helper docker-credential-{helper}, which gives no login"
            fix = f"put it on PATH, run `docker-credential-{helper} get` yourself to see why, or {again}"
            raise UnavailableError(message, fix=fix) from None
        message = f"{path}: the login of {registry} is not base64 of USER:PASSWORD"
        raise ConfigError(message, fix=again) from None
    return login or {}


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


class _TokenAnswer(msgspec.Struct):
    token: str = ""
    access_token: str = ""
    expires_in: float | None = None


know_types(_TokenAnswer)


class _KeptLogin(LightRecord, frozen=True):
    login: Login
    until: float


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
        self._tokens: dict[tuple[str, ...], _KeptLogin] = {}

    def login(self, scopes: Sequence[str]) -> Login | None:
        """Return the login for these scopes that an earlier 401 led to and that has not expired, or None."""
        cached = self._tokens.get(tuple(scopes))
        if cached is not None and self._clock() < cached.until:
            return cached.login
        return self._basic

    def answer(self, headers: Mapping[str, str], scopes: Sequence[str], refused: Login | None) -> Login | None:
        """Return a login other than the `refused` one for a 401 with these headers, or None if there is no other."""
        challenge = preferred(challenges(headers.get("WWW-Authenticate", "")))
        if challenge is None:
            return None
        with self._lock:
            current = self.login(scopes)
            if current is not None and current is not refused:
                return current  # another thread has logged in meanwhile
            if challenge.scheme == "basic":
                return self._with_password(refused)
            token = self._with_token(challenge, scopes, retry=refused is not None)
            self._tokens[tuple(scopes)] = token
            return token.login

    def _with_password(self, refused: Login | None) -> Login | None:
        account = self._account()
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

    def _with_token(self, challenge: Challenge, scopes: Sequence[str], *, retry: bool) -> _KeptLogin:
        account = self._account()
        if account is not None and account.token and not retry:
            self._need_tls(self._url)
            return _KeptLogin(BearerToken(self._url, account.token), float("inf"))
        realm = self._realm(challenge)
        if account is not None and (account.identity or account.basic):
            self._need_tls(realm)
        answer = self._fetched(challenge, scopes, account)
        token = answer.token or answer.access_token
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            message = f"{host_of(realm)}, where {self._registry} has its tokens, issues none"
            raise RegistryUnavailableError(message, fix="try again later, or ask who runs the registry")
        lasts = answer.expires_in if answer.expires_in is not None and answer.expires_in > 0 else _LASTS
        return _KeptLogin(BearerToken(self._url, token), self._clock() + lasts * _USED)

    def _realm(self, challenge: Challenge) -> str:
        """Return where tokens are issued, if a request may go there from this registry."""
        fix = "ask who runs the registry to correct the realm of its tokens"
        if not is_web_url(challenge.realm):
            message = f"{self._registry} names no URL for its tokens"
            raise DeniedError(message, fix=fix)
        try:
            return redirect_target(self._url, challenge.realm)
        except ValueError as error:
            message = f"{self._registry} has its tokens at a place that is not trusted: {error}"
            raise DeniedError(message, fix=fix) from None

    def _fetched(self, challenge: Challenge, scopes: Sequence[str], account: Account | None) -> _TokenAnswer:
        """Ask for a token. Raise NetworkError if asking again may help."""
        host = host_of(challenge.realm)
        try:
            with self._ask(challenge, scopes, account) as answer:
                if answer.status in _REFUSALS:
                    raise denied(self._registry, f"a token ({answer.status} from {host})", has=account is not None)
                if answer.status == HTTPStatus.OK:
                    return msgspec.json.decode(answer.text(_MOST), type=_TokenAnswer)
                failure = NetworkError(f"it answers {answer.status}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _TokenAnswer()
        except NetworkError as error:
            failure = type(error)(str(error), error.fix)
        message = f"{host}, which issues its tokens: {failure}"
        raise type(failure)(message, failure.fix)

    def _ask(self, challenge: Challenge, scopes: Sequence[str], account: Account | None) -> HttpResponse:
        """Send an identity token by POST (OAuth2); without one, ask by GET, with the password if there is one."""
        realm = challenge.realm
        if account is None or not account.identity:
            login = None if account is None or not account.basic else OriginLogin(realm, account.basic)
            return self._client.get(challenge.token_url(scopes), login=login)
        form = [("grant_type", "refresh_token"), ("refresh_token", account.identity), ("client_id", _CLIENT)]
        form += [(name, value) for name, value in challenge.query(()) if name == "service"]
        form.append(("scope", " ".join(challenge.scopes(scopes))))
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return self._client.send("POST", realm, kind, body=urlencode(form).encode())


def denied(registry: str, label: str, *, has: bool) -> DeniedError:
    """Return the error of a refusal; `has`: a login was found and is not enough."""
    fix = f"log in with `docker login {registry}` or `podman login {registry}`"
    if has:
        fix = f"use an account that may do this: {fix}"
    return DeniedError(f"{registry} refuses {label}", fix=fix)
