"""Requests to one registry: logged in, tried again where that may help, and with an error of one kind each.

Tried again: 429 and 503 as long as Retry-After says, other 5xx, and connections that break. All waits together have a
limit. A registry that is silent or hardly sends is asked once (`mirrors.net` ends such a response).
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urljoin

import msgspec

from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import NetworkError, SlowError, UntrustedError, retry_after, wait_phrase
from envcheck.mirrors.net.responses import HttpResponse
from envcheck.mirrors.net.urls import host_of
from envcheck.mirrors.net.waits import NETWORK_WAITS
from envcheck.registry.documents import MOST_MANIFEST
from envcheck.registry.logins import Authorization, denied
from envcheck.registry.references import AbsentError, ImageReference, LyingError, RefusedError, RegistryUnavailableError
from envcheck.struct_types import LightRecord, know_types

# Seconds before each further try where the registry does not say, and the most that all tries may wait together.
PAUSES: Final = (0.5, 1.0, 2.0)
LONGEST: Final = 60.0
# Requests at once: as many connections as the client keeps.
CONNECTIONS: Final = 8
_LIMITED: Final = 429
_BUSY: Final = {_LIMITED, 500, 502, 503, 504}
_ERRORS: Final = 1 << 16
# What OpenSSL says where the other side answers without TLS.
_SPOKE_HTTP: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
_CODE: Final = re.compile(r"[A-Z][A-Z0-9_]{2,60}")
_T = TypeVar("_T")


class RegistryRequest(LightRecord, frozen=True):
    """One request. `label` names it in messages; `accepted` are the statuses that are answers.

    `push` says whether it changes the repository; `mount_from` is another repository that it also reads.
    """

    method: str
    path: str
    label: str
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    body: bytes | Path = b""
    accepted: tuple[int, ...] = (200,)
    push: bool = False
    mount_from: str | None = None
    retry: bool = True


class RegistryReply(LightRecord, frozen=True):
    """The whole answer to a request, and the URL that it came from."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str


class _AgainError(Exception):
    """Why a request may be sent again, and the seconds that the registry asks to wait."""

    def __init__(self, reason: str, after: float | None = None, fix: str = "") -> None:
        super().__init__(reason)
        self.after = after
        self.fix = fix


class _ErrorCode(msgspec.Struct):
    code: str = ""


class _ErrorAnswer(msgspec.Struct):
    errors: list[_ErrorCode] = []


know_types(_ErrorAnswer)


class Exchange:
    """What a repository's requests go through. Safe in threads. `sent` counts the requests."""

    def __init__(
        self,
        client: Client,
        reference: ImageReference,
        authorization: Authorization,
        *,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._authorization = client, authorization
        self._sleep, self._now = sleep, now
        self.reference = reference
        self._counting = threading.Lock()
        # More than these would be connections that are opened for one request each.
        self._places = threading.BoundedSemaphore(CONNECTIONS)
        self.sent = 0

    def ask(self, request: RegistryRequest, most: int = MOST_MANIFEST) -> RegistryReply:
        """Return the answer with its body, which must not have more than `most` bytes."""

        def read_reply(answer: HttpResponse) -> RegistryReply:
            body = b"" if request.method == "HEAD" else self._body(request, answer, most)
            return RegistryReply(answer.status, answer.headers, body, answer.url)

        return self.read(request, read_reply)

    def read(self, request: RegistryRequest, consume: Callable[[HttpResponse], _T]) -> _T:
        """Return what `consume` makes of the answer. It is called again if its reading breaks off."""
        waited = 0.0
        for pause in (*PAUSES, None):
            try:
                with self._places:
                    return self._once(request, consume)
            except _AgainError as error:
                after = pause if error.after is None else error.after
                if pause is None or after is None or not request.retry or waited + after > LONGEST:
                    raise self._unavailable(str(error), error.fix) from error
                note = f"{error}; next attempt in {after:.0f} s"
            with NETWORK_WAITS.on(host_of(self.reference.url), "pause", note):
                self._sleep(after)
            waited += after
        raise AssertionError

    def _body(self, request: RegistryRequest, answer: HttpResponse, most: int) -> bytes:
        """Return the body of an answer. Raise LyingError as soon as it is known to be too large."""
        stated = answer.headers.get("Content-Length", "")
        parts, bytes_left = list[bytes](), most - (int(stated) if stated.isdigit() else 0)
        if bytes_left >= 0:
            bytes_left = most
            for part in answer.page(2 * most):
                parts.append(part)
                bytes_left -= len(part)
                if bytes_left < 0:
                    break
        if bytes_left < 0:
            message = f"{self.reference.registry} answers for {request.label} with more than {most} bytes"
            raise LyingError(message, fix="do not use it: what belongs there is smaller")
        return b"".join(parts)

    def _once(self, request: RegistryRequest, consume: Callable[[HttpResponse], _T]) -> _T:
        scopes = self._scopes(request)
        login, renewed = self._authorization.login(scopes), False
        while True:
            with self._counting:
                self.sent += 1
            try:
                url = urljoin(self.reference.url, request.path)
                answer = self._client.send(request.method, url, request.headers, body=request.body, login=login)
                with answer:
                    if answer.status in request.accepted:
                        return consume(answer)
                    if answer.status != HTTPStatus.UNAUTHORIZED or renewed:
                        raise self._refusal(request, answer)
                    error_codes(answer)  # what is read to its end can be used again
                other = self._authorization.answer(answer.headers, scopes, login)
            except (SlowError, UntrustedError) as error:
                spoke_http = any(sign in str(error) for sign in _SPOKE_HTTP)
                fix = (
                    f"if it speaks http without TLS, write http://{self.reference.registry}/..."
                    if spoke_http
                    else error.fix
                )
                raise self._unavailable(str(error), fix) from error
            except NetworkError as error:
                if error.fix:
                    raise self._unavailable(str(error), error.fix) from error
                raise _AgainError(str(error)) from error
            if other is None:
                raise denied(self.reference.registry, f"{request.label} (401)", has=self._authorization.has_account)
            login, renewed = other, True

    def _scopes(self, request: RegistryRequest) -> tuple[str, ...]:
        own = f"repository:{self.reference.repository}:{'pull,push' if request.push else 'pull'}"
        return (own,) if request.mount_from is None else (own, f"repository:{request.mount_from}:pull")

    def _refusal(self, request: RegistryRequest, answer: HttpResponse) -> Exception:
        """Return the error of an answer that is none of the accepted ones."""
        status, registry = answer.status, self.reference.registry
        if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            return denied(registry, f"{request.label} ({status})", has=self._authorization.has_account)
        if status == HTTPStatus.NOT_FOUND:
            codes = error_codes(answer)
            message = f"{registry} does not have {request.label} (404{''.join(f' {code}' for code in codes[:1])})"
            fix = "check the name, the tag and the digest"
            return AbsentError(message, fix=fix if codes else f"{fix}, and whether a registry answers at this host")
        if status in _BUSY:
            after = retry_after(answer.headers, self._now())
            fix = "wait, or log in: many limits are those of an account" if status == _LIMITED else ""
            return _AgainError(f"it answers {status}{wait_phrase(after)}", after, fix)
        codes = error_codes(answer)
        message = f"{registry} does not accept {request.label} ({' '.join([str(status), *codes[:3]])})"
        expects_tls = status == HTTPStatus.BAD_REQUEST and self.reference.plain and not codes
        fix = (
            f"if it speaks TLS, write https://{registry}/..."
            if expects_tls
            else "ask who runs the registry what it accepts"
        )
        return RefusedError(message, fix=fix, codes=codes)

    def _unavailable(self, reason: str, fix: str = "") -> RegistryUnavailableError:
        message = f"the registry {self.reference.registry} is unavailable: {reason}"
        return RegistryUnavailableError(message, fix=fix or "check that it runs and is reachable, then try again")


def error_codes(answer: HttpResponse) -> tuple[str, ...]:
    """Return the registry's own codes of an error. Its texts are left out: they can repeat what was sent."""
    try:
        return codes_in(answer.text(_ERRORS))
    except (NetworkError, UnicodeDecodeError):
        return ()


def codes_in(body: bytes | str) -> tuple[str, ...]:
    """Return the codes in the body of an error; none where it is not one of a registry's."""
    try:
        answer_errors = msgspec.json.decode(body, type=_ErrorAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()
    return tuple(error.code for error in answer_errors.errors if _CODE.fullmatch(error.code))
