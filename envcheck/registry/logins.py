"""Log in to a registry: what it asks for with 401, the logins of this machine, and tokens until they expire.

A secret goes to the registry that it is for, and to the place that this registry names for tokens, never without TLS
except on this machine. Sources: RFC 9110 §11.6.1, and the token specification of the distribution project.
"""

import base64
import re
import subprocess
import threading
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import urlencode, urlsplit
from urllib.request import parse_http_list, parse_keqv_list

import msgspec

from envcheck.errors import ConfigError, UnavailableError, refuse
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.credentials import Login, OriginLogin, basic
from envcheck.mirrors.net.network_errors import NetworkError, StatusError
from envcheck.mirrors.net.responses import HttpResponse
from envcheck.mirrors.net.urls import is_loopback, is_web_url, proxy_of, redirect_target
from envcheck.mirrors.profiles.model import host_of
from envcheck.registry.documents import DOCKER_HUB, DeniedError, ImageReference, RegistryUnavailableError
from envcheck.struct_types import Secret, know_types

_CHALLENGE: Final = re.compile(r"(?:^|,)\s*(basic|bearer)\b\s*", re.IGNORECASE)
_PARAMETER: Final = re.compile(r"[^=]+=.")
_HUB_KEY: Final = "https://index.docker.io/v1/"
_API: Final = re.compile(r"(/v[12])?/?$")
# Seconds: a helper that waits for somebody at a screen would wait for ever.
_HELPER_SECONDS: Final = 30.0
_NOT_FOUND: Final = b"credentials not found in native keychain"
_MOST: Final = 1 << 18
_REFUSALS: Final = {HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


class Account(Secret, frozen=True):
    """A login for one registry: the header of a password, or an identity token."""

    basic: str = ""
    identity: str = ""


class _TokenAnswer(msgspec.Struct):
    token: str = ""
    access_token: str = ""


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


know_types(_TokenAnswer, _LoginFile, _HelperAnswer)


def find_account(reference: ImageReference, environ: Mapping[str, str]) -> Account | None:
    """Return the login that `docker login` or `podman login` left for a repository's registry, or None."""
    home, runtime = Path(environ.get("HOME") or "/root"), environ.get("XDG_RUNTIME_DIR")
    files = [Path(environ["REGISTRY_AUTH_FILE"])] if environ.get("REGISTRY_AUTH_FILE") else []
    files.append(Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json")
    files += [Path(runtime) / "containers/auth.json"] if runtime else []
    files.append(Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "containers/auth.json")
    accounts = (_of_file(reference, path) for path in files)  # in the order in which they count
    return next((account for account in accounts if account is not None), None)


def _of_file(reference: ImageReference, path: Path) -> Account | None:
    """Return the login in a file: of the registry's own helper, else of the store, else of the file itself."""
    try:
        logins = msgspec.json.decode(path.read_bytes() or b"{}", type=_LoginFile)
        plain = {_API.sub("", k.partition("://")[2] or k).lower(): entry for k, entry in (logins.auths or {}).items()}
        # What stands for the longest part of the name: podman keeps some for a part of a registry.
        entry = next((entry for name in _names(reference) if (entry := plain.get(name))), None) or _Entry()
        user, _, password = base64.b64decode(entry.auth or "", validate=True).decode().rstrip("\0").partition(":")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        message = f"{path}: cannot read the logins of registries: {error.strerror}"
        raise ConfigError(message, fix="make it readable, or name another file in REGISTRY_AUTH_FILE") from None
    except (ValueError, RecursionError):
        message = f"{path}: not a valid file of logins"
        raise ConfigError(message, fix=f"run `docker login {reference.registry}` again, or move it away") from None
    helpers = logins.helpers or {}
    keys = [name for name in _names(reference) if name in helpers]
    keys += [_HUB_KEY] if reference.registry == DOCKER_HUB and _HUB_KEY in helpers else []
    helper = helpers[keys[0]] if keys else logins.store
    account = _of_helper(helper, reference.registry, path) if helper else None
    return account or (Account(identity=entry.identity) if entry.identity else _with_password(user, password))


def _names(reference: ImageReference) -> list[str]:
    """Return the names under which a login may stand, the longest first."""
    names = [reference.name.rsplit("/", count)[0] for count in range(reference.name.count("/") + 1)]
    return [*names, *(["index.docker.io"] if reference.registry == DOCKER_HUB else [])]


def _with_password(user: str, password: str) -> Account | None:
    return Account(basic(user, password)) if password else None


def _of_helper(name: str, registry: str, path: Path) -> Account | None:
    """Return the login that docker-credential-NAME has; what it prints may hold a secret."""
    if "/" in name:
        refuse(f"{path}: {name!r} is no name of a helper", "write what follows docker-credential-")
    program, server = f"docker-credential-{name}", _HUB_KEY if registry == DOCKER_HUB else registry
    try:
        ended = subprocess.run(
            [program, "get"], input=server.encode(), capture_output=True, timeout=_HELPER_SECONDS, check=False
        )
        if ended.returncode and _NOT_FOUND in ended.stdout:
            return None
        ended.check_returncode()
        login = msgspec.json.decode(ended.stdout, type=_HelperAnswer)
    except (OSError, subprocess.SubprocessError, ValueError, RecursionError):
        message = f"{path} names the credential helper {program[:60]}, which gives no login"
        fix = f"put it on PATH and run `{program[:60]} get` to see why, or run `docker login {registry}` again"
        raise UnavailableError(message, fix=fix) from None
    is_token = login.username == "<token>"
    return Account(identity=login.secret) if is_token else _with_password(login.username, login.secret)


def challenges(header: str) -> dict[str, dict[str, str]]:
    """Return the parameters of what a 401 asks for, `basic` or `bearer`; what cannot be read is left out."""
    parts = _CHALLENGE.split(header)
    listed = zip(parts[1::2], map(parse_http_list, parts[2::2]), strict=True)
    return {kind.lower(): parse_keqv_list([one for one in texts if _PARAMETER.match(one)]) for kind, texts in listed}


class Authorization:
    """The logins of requests to one registry. Safe in threads. An account is looked for at the first 401."""

    def __init__(self, client: Client, reference: ImageReference, environ: Mapping[str, str]) -> None:
        self._client, self._url, self._registry = client, reference.url, reference.registry
        self._reference, self._environ = reference, environ
        self.has_account = False
        self._lock = threading.Lock()
        self._basic: Login | None = None
        self._tokens: dict[str, Login] = {}

    def login(self, scope: str) -> Login | None:
        """Return the login for this scope that an earlier 401 led to, or None."""
        return self._tokens.get(scope, self._basic)

    def answer(self, headers: Mapping[str, str], scope: str, refused: Login | None) -> Login | None:
        """Return a login other than the `refused` one for a 401 with these headers, or None if there is no other."""
        asked = challenges(headers.get("WWW-Authenticate", ""))
        with self._lock:
            current = self.login(scope)
            if current is not None and current is not refused:
                return current  # another thread has logged in meanwhile
            if "bearer" in asked:
                self._tokens[scope] = self._token(asked["bearer"], scope)
                return self._tokens[scope]
            account = self._account() if "basic" in asked else None
            if account is None or not account.basic or refused is not None:
                return None
            _need_tls(self._url)
            self._basic = OriginLogin(self._url, account.basic)
            return self._basic

    def _account(self) -> Account | None:
        account = find_account(self._reference, self._environ)
        self.has_account = account is not None
        return account

    def _token(self, challenge: Mapping[str, str], scope: str) -> Login:
        account = self._account() or Account()
        realm = self._realm(challenge.get("realm", ""))
        if account.identity or account.basic:
            _need_tls(self._url)  # else whoever is on the way names the place (data-accelerator/dart#8)
            _need_tls(realm)
        # The registry may name the repository otherwise than its path does, as a proxy of several does.
        scopes = list(dict.fromkeys([scope, *challenge.get("scope", "").split()]))
        answer = self._issued(realm, challenge.get("service", ""), scopes, account)
        token = answer.token or answer.access_token
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            message = f"{host_of(realm)}, where {self._registry} has its tokens, issues none"
            raise RegistryUnavailableError(message, fix="try again later, or ask who runs the registry")
        return OriginLogin(self._url, f"Bearer {token}")

    def _realm(self, realm: str) -> str:
        try:
            if is_web_url(realm):
                return redirect_target(self._url, realm)
            why = "it names no URL for its tokens"
        except ValueError as error:
            why = str(error)
        message = f"{self._registry} has its tokens at a place that is not trusted: {why}"
        raise DeniedError(message, fix="ask who runs the registry to correct the realm of its tokens")

    def _issued(self, realm: str, service: str, scopes: Sequence[str], account: Account) -> _TokenAnswer:
        """Ask for a token. Raise NetworkError, which names the place, if asking again may help."""
        try:
            with self._ask(realm, service, scopes, account) as answer:
                if answer.status in _REFUSALS:
                    label = f"a token ({answer.status} from {host_of(realm)})"
                    raise denied(self._registry, label, has=self.has_account)
                answer.demand_ok(f" at {host_of(realm)}, which issues its tokens")
                return msgspec.json.decode(answer.text(_MOST), type=_TokenAnswer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _TokenAnswer()
        except StatusError:
            raise
        except NetworkError as error:
            message = f"{host_of(realm)}, which issues its tokens: {error}"
            raise type(error)(message, error.fix) from error

    def _ask(self, realm: str, service: str, scopes: Sequence[str], account: Account) -> HttpResponse:
        """Send an identity token by POST (OAuth2); without one, ask by GET, with the password if there is one."""
        query = [("service", service)] if service else []
        if not account.identity:
            login = OriginLogin(realm, account.basic) if account.basic else None
            wanted = urlencode([*query, *(("scope", scope) for scope in scopes)])
            return self._client.get(f"{realm}{'&' if '?' in realm else '?'}{wanted}", login=login)
        form = [("grant_type", "refresh_token"), ("refresh_token", account.identity), ("client_id", "envcheck"), *query]
        form.append(("scope", " ".join(scopes)))
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return self._client.send("POST", realm, kind, body=urlencode(form).encode())


def _need_tls(url: str) -> None:
    """Refuse to send a secret without TLS to another machine, be it a proxy."""
    if urlsplit(url).scheme != "https" and not (is_loopback(urlsplit(url).hostname or "") and proxy_of(url) is None):
        message = f"{host_of(url)} wants a login over plain http, which would show it to the network"
        raise DeniedError(message, fix="give the registry TLS, and write its name without http://")


def denied(registry: str, label: str, *, has: bool, push: bool = False) -> DeniedError:
    """Return the error of a refusal; `has`: in spite of a login, as for a full quota (goharbor/harbor-cli#96)."""
    fix = f"log in with `docker login {registry}` or `podman login {registry}`"
    if has:
        fix = f"{'make room if a quota is full, or ' if push else ''}use an account that may do this: {fix}"
    return DeniedError(f"{registry} refuses {label}", fix=fix)
