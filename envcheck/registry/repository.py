"""A repository in a registry: its manifests, blobs and tags, each compared with the digest that names it.

Requests are logged in, and tried again where that may help: 429 and 503 as long as Retry-After says, other 5xx, and
connections that break. All waits together have a limit. A registry that is silent is asked once.
"""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from envcheck.errors import EnvcheckError, refuse
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import BrokenError, NetworkError, SlowError, StatusError
from envcheck.mirrors.net.responses import HttpResponse, file_size
from envcheck.mirrors.net.urls import origin_of, redirect_target
from envcheck.mirrors.net.waits import tell_pause
from envcheck.mirrors.profiles.model import Profile, host_of
from envcheck.mirrors.settings import mirrors
from envcheck.registry import documents
from envcheck.registry.documents import AbsentError, ImageReference, LyingError, RegistryUnavailableError, digest_of
from envcheck.registry.logins import Authorization, denied
from envcheck.registry.statement import MOST_JSON, MalformedError, decode_json
from envcheck.struct_types import LightRecord, know_types

# Seconds before each further try where the registry does not say, and the most that all tries may wait together.
_PAUSES: Final = (0.5, 1.0, 2.0)
_LONGEST: Final = 60.0
_ERRORS: Final = 1 << 16
# What OpenSSL says where the other side answers without TLS.
_SPOKE_HTTP: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
_CODE: Final = re.compile(r"[A-Z][A-Z0-9_]{2,60}")
_OCTETS: Final = "application/octet-stream"
# Uploads of one blob that are begun: one may be lost when a connection breaks, or to another upload of the same blob.
_TRIES: Final = 4
_ACCEPT: Final = {"Accept": ", ".join((*documents.MANIFESTS, *documents.INDEXES))}
_BLOCK: Final = 1 << 16
# Pages of a list: more than that nobody made. A registry that lists without an end would fill the memory.
_PAGES: Final = 1000
_MOST_TAGS: Final = 500_000
_NEXT: Final = re.compile(r'<([^<>]*)>\s*;\s*rel\s*=\s*"?next\b', re.IGNORECASE)


class RegistryRequest(LightRecord, frozen=True):
    """One request: its name in messages, the statuses that are answers, the most bytes of a body, whether it pushes."""

    method: str
    path: str
    label: str
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    body: bytes = b""
    accepted: tuple[int, ...] = (200,)
    push: bool = False
    retry: bool = True
    most: int = MOST_JSON


class RegistryReply(LightRecord, frozen=True):
    """The whole answer to a request, and the URL that it came from."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str


class _ErrorCode(msgspec.Struct):
    code: str = ""


class _ErrorAnswer(msgspec.Struct):
    errors: list[_ErrorCode] = []


class _Tags(msgspec.Struct):
    tags: list[str] | None


know_types(_ErrorAnswer, _Tags)


class Repository:
    """A repository that is read and written. Safe in threads."""

    def __init__(
        self,
        client: Client,
        reference: ImageReference,
        environ: Mapping[str, str] = os.environ,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client, self._sleep = client, sleep
        self._authorization = Authorization(client, reference, environ)
        self.reference = reference
        self._path = f"/v2/{reference.repository}"
        # The registry answered that it has no such path; it is asked once.
        self.lacks_referrers = False

    def ask(self, request: RegistryRequest) -> RegistryReply:
        """Return the answer with its body. Raise an error of `documents` where there is none."""
        waited = 0.0
        for pause in (*_PAUSES, None):
            try:
                return self._once(request)
            except NetworkError as error:
                after = pause if error.after is None else error.after
                broke = isinstance(error, BrokenError) and not isinstance(error, SlowError) and not error.fix
                again = request.retry and (error.retry or broke)
                if not again or pause is None or after is None or waited + after > _LONGEST:
                    raise self._unavailable(error) from error
                tell_pause(host_of(self.reference.url), error, after)
            self._sleep(after)
            waited += after
        raise AssertionError

    def _once(self, request: RegistryRequest) -> RegistryReply:
        actions = "delete" if request.method == "DELETE" else "pull,push" if request.push else "pull"
        scope = f"repository:{self.reference.repository}:{actions}"
        login = self._authorization.login(scope)
        for renewed in (False, True):
            url = urljoin(self.reference.url, request.path)
            with self._client.send(request.method, url, request.headers, body=request.body, login=login) as answer:
                if answer.status in request.accepted:
                    return RegistryReply(answer.status, answer.headers, self._body(request, answer), answer.url)
                codes: tuple[str, ...] = ()
                with contextlib.suppress(NetworkError):  # what is read to its end can be used again
                    codes = codes_in(answer.text(_ERRORS))
                # Where a request is redirected to may name any place for the registry's login (CVE-2020-15157;
                # google/go-containerregistry#2349): only the registry itself is answered.
                if answer.status != HTTPStatus.UNAUTHORIZED or renewed or self._is_elsewhere(answer.url):
                    raise self._refusal(request, answer, codes)
            login = self._authorization.answer(answer.headers, scope, login)
            if login is None:
                break
        raise denied(self.reference.registry, f"{request.label} (401)", has=self._authorization.has_account)

    def _body(self, request: RegistryRequest, answer: HttpResponse) -> bytes:
        """Return the body of an answer. Raise LyingError as soon as it is known to be too large."""
        if request.method == "HEAD":
            return b""
        # Some compress what nobody asked them to (quay/quay#1310): that length is not the content's.
        size = 0 if "Content-Encoding" in answer.headers else file_size(answer.status, answer.headers) or 0
        body = bytearray()
        for part in answer.page(2 * request.most + _BLOCK) if size <= request.most else ():
            body += part
            if len(body) > request.most:
                break
        if max(size, len(body)) > request.most:
            what = f"{self.reference.registry} has as {request.label} more than {request.most} bytes"
            refuse(what, documents.TAMPERED, LyingError)
        return bytes(body)

    def _is_elsewhere(self, url: str) -> bool:
        return origin_of(url) != origin_of(self.reference.url)

    def _refusal(self, request: RegistryRequest, answer: HttpResponse, codes: tuple[str, ...]) -> Exception:
        status, registry = answer.status, self.reference.registry
        if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            if self._is_elsewhere(answer.url):
                at = host_of(answer.url)
                message = f"{registry} sends on {request.label} to {at}, which refuses it ({status})"
                return documents.DeniedError(message, fix=f"try again; name {at} if it is a registry: no login follows")
            return denied(
                registry, f"{request.label} ({status})", has=self._authorization.has_account, push=request.push
            )
        if status == HTTPStatus.NOT_FOUND:
            if not codes:
                self._need_registry()
            message = f"{registry} does not have {request.label} (404{''.join(f' {code}' for code in codes[:1])})"
            return AbsentError(message, fix="check the name, the tag and the digest")
        failed = StatusError(status, answer.headers)
        if failed.retry:
            return failed
        message = f"{registry} does not accept {request.label} ({' '.join([str(status), *codes[:3]])})"
        return documents.RefusedError(
            message, fix="ask who runs the registry, or write https:// before it", codes=codes
        )

    def _need_registry(self) -> None:
        """Raise RegistryUnavailableError if no registry answers at this host (distribution-spec, end-1)."""
        try:
            with self._client.get(urljoin(self.reference.url, "/v2/")) as answer:
                is_page, status = answer.headers.get("Content-Type", "").startswith("text/html"), answer.status
        except NetworkError as error:
            raise self._unavailable(error) from error
        if is_page or status not in {HTTPStatus.OK, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            message = f"no registry answers at {self.reference.registry} ({status} for /v2/)"
            raise RegistryUnavailableError(message, fix="check the host and the port")

    def _unavailable(self, error: NetworkError) -> RegistryUnavailableError:
        fix = error.fix or "check that it runs and is reachable, then try again"
        if isinstance(error, StatusError) and error.status == HTTPStatus.TOO_MANY_REQUESTS:
            fix = "wait, or log in: many limits are those of an account"
        if any(sign in str(error) for sign in _SPOKE_HTTP):
            fix = f"if it speaks http without TLS, write http://{self.reference.registry}/..."
        return RegistryUnavailableError(f"the registry {self.reference.registry} is unavailable: {error}", fix=fix)

    def manifest(self, reference: str | documents.Descriptor, most: int = MOST_JSON) -> documents.StoredManifest:
        """Return the manifest of a tag, a digest or a descriptor. Its digest is what to use from then on."""
        name = reference if isinstance(reference, str) else reference.digest
        where = f"{self.reference.name}{'@' if documents.is_digest(name) else ':'}{name}"
        try:
            reply = self.ask(RegistryRequest("GET", f"{self._path}/manifests/{name}", where, _ACCEPT, most=most))
        except AbsentError as error:
            if not isinstance(reference, str):  # snok/container-retention-policy#97, nfrastack/db-backup#575
                error.fix = "an index names it: a clean-up of what has no tag may have deleted it; push it again"
            raise
        kind, digest = reply.headers.get("Content-Type", ""), digest_of(reply.body)
        if kind.startswith("text/html"):
            fix = "check the host and the port; a proxy or a page to log in may answer"
            refuse(f"{where}: the answer is a web page and no manifest", fix, RegistryUnavailableError)
        if documents.is_digest(name) and digest != name:
            refuse(f"{where}: the registry sends the bytes of {digest}", documents.TAMPERED, LyingError)
        manifest = documents.read_manifest(reply.body, kind, where)
        named = reference if isinstance(reference, documents.Descriptor) else manifest.descriptor
        if (named.size, named.media_type) != (len(manifest.content), manifest.media_type):
            refuse(f"{where} is of another type or size than its descriptor names", documents.TAMPERED, LyingError)
        return manifest

    def blob(self, descriptor: documents.Descriptor, most: int) -> bytes:
        """Return a blob of at most `most` bytes; a larger one is refused unread. Raise LyingError for other bytes."""
        label = f"the blob {descriptor.digest}"
        if descriptor.size > most:
            what = f"{self.reference.name}: {label} has {descriptor.size} bytes, more than {most}"
            refuse(what, documents.TAMPERED, LyingError)
        inline = descriptor.content
        if inline is not None:
            return inline
        path = f"{self._path}/blobs/{descriptor.digest}"
        content = self.ask(RegistryRequest("GET", path, label, most=descriptor.size)).body
        if digest_of(content) != descriptor.digest:
            refuse(f"{self.reference.name} has as {label} {digest_of(content)}", documents.TAMPERED, LyingError)
        return content

    def push_blob(self, content: bytes, *, ask_first: bool = True) -> documents.Descriptor:
        """Have the repository hold these bytes, and return what names them; nothing is sent if it has them."""
        blob = documents.described(content, _OCTETS)
        for number in range(_TRIES):
            there = RegistryRequest("HEAD", f"{self._path}/blobs/{blob.digest}", blob.digest, accepted=(200, 404))
            # Another upload of it may have been faster.
            if (ask_first or number) and self.ask(there).status == HTTPStatus.OK:
                break
            try:
                self._upload(blob, content)
                break
            except (AbsentError, documents.RefusedError, RegistryUnavailableError):
                if number == _TRIES - 1:
                    raise
        return blob

    def _upload(self, blob: documents.Descriptor, content: bytes) -> None:
        label = f"an upload to {self.reference.repository}"
        reply = self.ask(RegistryRequest("POST", f"{self._path}/blobs/uploads/", label, accepted=(202,), push=True))
        try:
            upload = redirect_target(reply.url, reply.headers.get("Location", ""))
        except ValueError as error:
            raise RegistryUnavailableError(str(error), fix="ask who runs the registry to correct its address") from None
        url = f"{upload}{'&' if urlsplit(upload).query else '?'}digest={quote(blob.digest)}"
        label = f"the blob {blob.digest} of {blob.size} bytes"
        self.ask(RegistryRequest("PUT", url, label, {"Content-Type": _OCTETS}, content, (201,), push=True, retry=False))

    def push_manifest(self, content: bytes, media_type: str, tag: str | None = None) -> RegistryReply:
        """Store a manifest under its digest, or under a tag, and return the answer. Its blobs must be there."""
        digest = digest_of(content)
        path = f"{self._path}/manifests/{tag or digest}"
        label = f"{self.reference.name}{f':{tag}' if tag else ''}@{digest[:19]}"
        kind = {"Content-Type": media_type}
        try:
            return self.ask(RegistryRequest("PUT", path, label, kind, content, accepted=(201,), push=True))
        except (documents.RefusedError, documents.DeniedError) as error:
            with contextlib.suppress(EnvcheckError):
                there = self.ask(RegistryRequest("GET", path, label, _ACCEPT))
                # Where no tag may move, the manifest that it names already is refused too (aws/aws-sdk#750).
                same = digest_of(there.body) == digest
                if same and not any("BLOB_UNKNOWN" in code for code in getattr(error, "codes", ())):
                    return there
                if tag and not same:
                    error.fix = f"{tag} is another manifest there: if tags are immutable, except this; or {error.fix}"
            raise

    def delete(self, name: str) -> None:
        """Delete the manifest of a tag or digest. Raise RefusedError or DeniedError where the registry refuses."""
        label = f"to delete {self.reference.name} {name[:19]}"
        self.ask(RegistryRequest("DELETE", f"{self._path}/manifests/{name}", label, accepted=(200, 202, 404)))

    def tags(self) -> list[str]:
        """Return all tags, of all pages; none of a repository that is not there. What is no tag is left out."""
        tags: list[str] = []
        # Without `n`: some registries cut a list to so many, and do not say that there are more.
        for reply in self.pages(f"{self._path}/tags/list", f"the tags of {self.reference.repository}", (200, 404)):
            if reply.status == HTTPStatus.NOT_FOUND:
                if not codes_in(reply.body):
                    self._need_registry()
                break
            try:
                tags += [tag for tag in decode_json(reply.body, _Tags).tags or [] if documents.is_tag(tag)]
            except MalformedError:
                message = f"{self.reference.registry} lists no tags of {self.reference.repository}: it answers no list"
                raise RegistryUnavailableError(message, fix="check the host and the port") from None
            if len(tags) > _MOST_TAGS:
                message = f"{self.reference.name} lists more than {_MOST_TAGS} tags"
                raise RegistryUnavailableError(message, fix="delete what nobody needs, or use another repository")
        return tags

    def pages(self, path: str, label: str, accepted: tuple[int, ...]) -> Iterator[RegistryReply]:
        """Yield the pages of a list. Raise RegistryUnavailableError if they have no end or lead to another host."""
        for _ in range(_PAGES):
            reply = self.ask(RegistryRequest("GET", path, label, accepted=accepted))
            yield reply
            following = _NEXT.search(reply.headers.get("Link", ""))
            if following is None:
                return
            path = urljoin(reply.url, following[1])
            if self._is_elsewhere(path):
                break
        message = f"{self.reference.registry} names pages of {label} that have no end or are on another host"
        raise RegistryUnavailableError(message, fix="ask who runs the registry")


def codes_in(body: bytes) -> tuple[str, ...]:
    """Return the codes in the body of an error, if it is a registry's. Its texts can repeat what was sent."""
    with contextlib.suppress(MalformedError):
        return tuple(error.code for error in decode_json(body, _ErrorAnswer).errors if _CODE.fullmatch(error.code))
    return ()


def open_repository(reference: ImageReference, profile: Profile) -> Repository:
    """Return the repository of a reference, reached by a mirror profile; nothing is sent yet."""
    names = (name for listed in mirrors(profile).values() for name in listed)
    hosts = (urlsplit(name if "://" in name else f"https://{name}").hostname for name in names)
    within = frozenset(filter(None, hosts)) if profile.closed else None
    return Repository(Client(ca=Path(profile.ca) if profile.ca else None, within=within), reference)
