"""Who may do what: answers a registry's 401 with a password or with a token, which is kept until it expires.

A secret goes to the registry that it is for, and to the place that this registry names for tokens, never without TLS
except on this machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode, urlsplit

import msgspec

from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.credentials import BearerToken, Login
from envcheck.mirrors.net.network_errors import NetworkError
from envcheck.mirrors.net.responses import HttpResponse
from envcheck.mirrors.net.urls import host_of, is_loopback, is_web_url, origin_of, redirect_target
from envcheck.registry.oci.login.accounts import Account
from envcheck.registry.oci.login.challenges import Challenge, challenges, preferred
from envcheck.registry.oci.references import ImageReference
from envcheck.registry.oci.registry_errors import DeniedError, RegistryUnavailableError
from envcheck.struct_types import LightRecord, Secret, know_types

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
