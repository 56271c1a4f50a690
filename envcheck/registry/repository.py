"""A repository in a registry: its manifests, blobs and tags, each compared with the digest that names it."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from envcheck.errors import ConfigError
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.credentials import Login, Netrc, host_credentials
from envcheck.mirrors.net.responses import HttpResponse
from envcheck.mirrors.net.urls import origin_of, redirect_target
from envcheck.mirrors.profiles.model import Profile
from envcheck.mirrors.settings.system import mirrors
from envcheck.registry.documents import INDEXES, MANIFESTS, Descriptor, StoredManifest, digest_of, read_manifest
from envcheck.registry.exchange import Exchange, RegistryReply, RegistryRequest, codes_in
from envcheck.registry.logins import Account, Authorization, account_for
from envcheck.registry.references import (
    TAMPERED,
    AbsentError,
    ImageReference,
    LyingError,
    RefusedError,
    RegistryUnavailableError,
    is_digest,
    is_tag,
)
from envcheck.struct_types import know_types

_OCTETS: Final = "application/octet-stream"
# Uploads of one blob that are begun: one may be lost when a connection breaks, or to another upload of the same blob.
_TRIES: Final = 3


def described(content: bytes | Path, media_type: str = _OCTETS) -> Descriptor:
    """Return what names bytes or a file."""
    if isinstance(content, bytes):
        return Descriptor(media_type=media_type, digest=digest_of(content), size=len(content))
    try:
        with content.open("rb") as file:
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
            return Descriptor(media_type=media_type, digest=f"sha256:{digest.hexdigest()}", size=file.tell())
    except OSError as error:
        message = f"cannot read {content}: {error.strerror}"
        raise ConfigError(message, fix="name a file that can be read") from error


_ACCEPT: Final = {"Accept": ", ".join((*MANIFESTS, *INDEXES))}
_BLOCK: Final = 1 << 16
# Pages of a list: more than that nobody made.
_PAGES: Final = 1000
# A registry that lists without an end would fill the memory.
_MOST_TAGS: Final = 500_000


class _Tags(msgspec.Struct):
    tags: list[str] | None


know_types(_Tags)


class Repository:
    """A repository that is read and written through one exchange. Safe in threads, as the exchange is."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        # The registry answered that it has no such path; it is asked once.
        self.lacks_referrers = False

    @property
    def reference(self) -> ImageReference:
        """Return what the repository was opened by."""
        return self.exchange.reference

    @property
    def _path(self) -> str:
        return f"/v2/{self.reference.repository}"

    def manifest(self, reference: str | Descriptor) -> StoredManifest:
        """Return the manifest of a tag, a digest or a descriptor. Its digest is what to use from then on.

        Raise AbsentError, or LyingError if its bytes are not what the digest, size and type name.
        """
        name = reference if isinstance(reference, str) else reference.digest
        where = f"{self.reference.name}{'@' if is_digest(name) else ':'}{name}"
        reply = self.exchange.ask(RegistryRequest("GET", f"{self._path}/manifests/{name}", where, _ACCEPT))
        manifest = _checked(reply, name, where)
        if isinstance(reference, Descriptor) and (reference.size, reference.media_type) != (
            len(manifest.content),
            manifest.media_type,
        ):
            message = f"{where} has {len(manifest.content)} bytes of another type or size than its descriptor names"
            raise LyingError(message, fix=TAMPERED)
        return manifest

    def has_manifest(self, digest: str) -> bool:
        """Tell whether the repository has a manifest, without reading it."""
        request = RegistryRequest("HEAD", f"{self._path}/manifests/{digest}", digest, _ACCEPT, accepted=(200, 404))
        return self.exchange.ask(request).status == HTTPStatus.OK

    def blob(self, descriptor: Descriptor, most: int) -> bytes:
        """Return a blob of at most `most` bytes; a larger one is refused unread. Raise LyingError for other bytes."""
        if descriptor.size > most:
            message = (
                f"{self.reference.name}: the blob {descriptor.named} has {descriptor.size} bytes, more than {most}"
            )
            raise LyingError(message, fix="do not use it: what belongs there is smaller")
        inline = descriptor.content
        if inline is not None:
            return inline
        return self.exchange.read(self._blob(descriptor), lambda answer: b"".join(self._hashed(answer, descriptor)))

    def save_blob(self, descriptor: Descriptor, to: IO[bytes]) -> None:
        """Write a blob to a file as it comes. Raise LyingError, with the file written, for other bytes than named."""

        def write(answer: HttpResponse) -> None:
            to.seek(0)
            to.truncate()
            to.writelines(self._hashed(answer, descriptor))
            to.flush()

        self.exchange.read(self._blob(descriptor), write)

    def has_blob(self, blob: Descriptor) -> bool:
        """Tell whether the repository has a blob. Raise LyingError if it has one of another size under the digest."""
        path = f"{self._path}/blobs/{blob.digest}"
        reply = self.exchange.ask(RegistryRequest("HEAD", path, f"the blob {blob.named}", accepted=(200, 404)))
        size = reply.headers.get("Content-Length", "")
        if reply.status == HTTPStatus.OK and size.isdigit() and int(size) != blob.size:
            message = f"{self.reference.name} has {size} bytes under {blob.digest}, which names {blob.size}"
            raise LyingError(message, fix=TAMPERED)
        return reply.status == HTTPStatus.OK

    def push_blob(self, content: bytes | Path, *, ask_first: bool = True) -> Descriptor:
        """Have the repository hold bytes or a file, and return what names them; nothing is sent if it has them."""
        blob = described(content)
        if ask_first and self.has_blob(blob):
            return blob
        for number in range(1, _TRIES + 1):
            try:
                self._finish(blob, content, self._begun(blob) or "")
            except (AbsentError, RefusedError, RegistryUnavailableError):  # noqa: PERF203 (three times at most)
                if self.has_blob(blob):  # another upload of it was faster, or only the answer was lost
                    return blob
                if number == _TRIES:
                    raise
            else:
                return blob
        raise AssertionError

    def mounted(self, blob: Descriptor, mount_from: str) -> bool:
        """Have the repository take a blob over from another one of its registry; tell whether it did."""
        return self._begun(blob, mount_from) is None

    def _begun(self, blob: Descriptor, mount_from: str | None = None) -> str | None:
        """Begin an upload and return its URL, or None if the blob was mounted and nothing is to be sent."""
        query = "" if mount_from is None else f"?mount={quote(blob.digest)}&from={quote(mount_from, safe='')}"
        label = f"an upload to {self.reference.repository}"
        path = f"{self._path}/blobs/uploads/{query}"
        request = RegistryRequest("POST", path, label, accepted=(201, 202), push=True, mount_from=mount_from)
        reply = self.exchange.ask(request)
        if mount_from is not None and reply.status == HTTPStatus.CREATED:
            return None
        location = reply.headers.get("Location", "")
        try:
            return redirect_target(reply.url, location) if location else ""
        except ValueError as error:
            fix = "ask who runs the registry to correct its address"
            raise RegistryUnavailableError(str(error), fix=fix) from None

    def _finish(self, blob: Descriptor, content: bytes | Path, upload: str) -> None:
        url = f"{upload}{'&' if urlsplit(upload).query else '?'}digest={quote(blob.digest)}"
        label = f"the blob {blob.named} of {blob.size} bytes"
        kind = {"Content-Type": _OCTETS}
        reply = self.exchange.ask(RegistryRequest("PUT", url, label, kind, content, (201,), push=True, retry=False))
        _compare_digest(reply.headers, blob.digest, label)

    def push_manifest(self, content: bytes, media_type: str, tag: str | None = None) -> RegistryReply:
        """Store a manifest under its digest, or under a tag, and return the answer. Its blobs must be there.

        Raise RefusedError, with the code MANIFEST_BLOB_UNKNOWN if they are not.
        """
        digest = digest_of(content)
        path = f"{self._path}/manifests/{tag or digest}"
        label = f"{self.reference.name}{f':{tag}' if tag else ''}@{digest[:19]}"
        request = RegistryRequest("PUT", path, label, {"Content-Type": media_type}, content, accepted=(201,), push=True)
        reply = self.exchange.ask(request)
        _compare_digest(reply.headers, digest, label)
        return reply

    def tags(self) -> list[str]:
        """Return all tags, of all pages; none of a repository that is not there. What is no tag is left out."""
        tags: list[str] = []
        for page in self._pages():
            tags += [tag for tag in page if is_tag(tag)]
            if len(tags) > _MOST_TAGS:
                message = f"{self.reference.name} lists more than {_MOST_TAGS} tags"
                raise RegistryUnavailableError(message, fix="delete what nobody needs, or use another repository")
        return tags

    def pages(self, path: str, label: str, accepted: tuple[int, ...] = (200,)) -> Iterator[RegistryReply]:
        """Yield the pages of a list. Raise RegistryUnavailableError if they have no end or lead to another host."""
        visited = {path}
        for _ in range(_PAGES):
            reply = self.exchange.ask(RegistryRequest("GET", path, label, accepted=accepted))
            yield reply
            target = next_page(reply.headers.get("Link", ""))
            if target is None:
                return
            path = urljoin(reply.url, target)
            if path in visited or origin_of(path) != origin_of(self.reference.url):
                break
            visited.add(path)
        message = f"{self.reference.registry} names pages of {label} that have no end or are on another host"
        raise RegistryUnavailableError(message, fix="ask who runs the registry")

    def _pages(self) -> Iterator[list[str]]:
        label = f"the tags of {self.reference.repository}"
        # Without `n`: some registries cut a list to so many, and do not say that there are more.
        for reply in self.pages(f"{self._path}/tags/list", label, (200, 404)):
            if reply.status == HTTPStatus.NOT_FOUND:
                if not codes_in(reply.body):  # a registry says why it has no such repository
                    message = f"{self.reference.registry} does not answer as a registry does (404 without a code)"
                    raise RegistryUnavailableError(message, fix="check the host and the port")
                return
            try:
                yield msgspec.json.decode(reply.body, type=_Tags).tags or []
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                message = f"{self.reference.registry} does not list {label}: its answer is no list"
                raise RegistryUnavailableError(message, fix="ask who runs the registry") from None

    def _blob(self, descriptor: Descriptor) -> RegistryRequest:
        return RegistryRequest("GET", f"{self._path}/blobs/{descriptor.digest}", f"the blob {descriptor.named}")

    def _hashed(self, answer: HttpResponse, descriptor: Descriptor) -> Iterator[bytes]:
        """Yield a blob's bytes. Raise LyingError as soon as there are too many, or at the end if they are others."""
        digest, bytes_left = hashlib.sha256(), descriptor.size
        stated = answer.headers.get("Content-Length", "")
        encoded = answer.headers.get("Content-Encoding", "identity") != "identity"
        if stated.isdigit() and not encoded and int(stated) != bytes_left:
            raise self._lie(descriptor, f"{stated} bytes instead of {bytes_left}")
        for part in answer.chunks(_BLOCK, decode=True):
            bytes_left -= len(part)
            if bytes_left < 0:
                raise self._lie(descriptor, f"more than {descriptor.size} bytes")
            digest.update(part)
            yield part
        sent = f"sha256:{digest.hexdigest()}"
        if bytes_left or sent != descriptor.digest:
            raise self._lie(descriptor, f"{bytes_left} bytes too few" if bytes_left else f"the bytes of {sent}")

    def _lie(self, descriptor: Descriptor, problem: str) -> LyingError:
        return LyingError(f"{self.reference.name} sends for the blob {descriptor.digest} {problem}", fix=TAMPERED)


def next_page(link: str) -> str | None:
    """Return the target of the next page in a Link header, or None at the last one."""
    for part in link.split(","):
        target, _, parameters = part.partition(";")
        with contextlib.suppress(ValueError):
            name, _, value = parameters.strip().partition("=")
            if name.strip().lower() == "rel" and value.strip().strip('"').lower() == "next":
                return target.strip().strip("<>")
    return None


def _checked(reply: RegistryReply, name: str, where: str) -> StoredManifest:
    """Return the manifest in a reply, hashed."""
    digest = digest_of(reply.body)
    if reply.headers.get("Content-Type", "").startswith("text/html"):
        message = f"{where}: the answer is a web page and no manifest"
        raise RegistryUnavailableError(
            message, fix="check the host and the port; a proxy or a page to log in may answer"
        )
    if is_digest(name) and digest != name:
        message = f"{where}: the registry sends the bytes of {digest}"
        raise LyingError(message, fix=TAMPERED)
    _compare_digest(reply.headers, digest, where)
    return read_manifest(reply.body, reply.headers.get("Content-Type", ""), where)


def _compare_digest(headers: Mapping[str, str], digest: str, where: str) -> None:
    stated = headers.get("Docker-Content-Digest", "")
    if stated.startswith("sha256:") and stated != digest:
        message = f"{where}: the registry names {stated[:80]} for the bytes of {digest}"
        raise LyingError(message, fix=TAMPERED)


def open_repository(
    reference: ImageReference,
    profile: Profile | None = None,
    *,
    client: Client | None = None,
    environ: Mapping[str, str] | None = None,
    **options: Any,
) -> Repository:
    """Return the repository of a reference; nothing is sent yet. `options` are those of Exchange."""
    environ = os.environ if environ is None else environ
    client = client or registry_client(profile)
    authorization = Authorization(client, reference, _account(reference, profile, environ))
    return Repository(Exchange(client, reference, authorization, **options))


def registry_client(profile: Profile | None = None, **options: Any) -> Client:
    """Return a client for registries: with the CA of a profile, and with a closed one for its hosts only.

    It has no logins of its own: a registry gets one when it asks.
    """
    if profile is None:
        return Client(**options)
    within = registry_hosts(profile) if profile.closed else None
    return Client(ca=Path(profile.ca) if profile.ca else None, within=within, **options)


def registry_hosts(profile: Profile) -> frozenset[str]:
    """Return the hosts of the registries that a profile names, without ports."""
    names = [name for listed in mirrors(profile).values() for name in listed]
    urls = (name if "://" in name else f"https://{name}" for name in names)
    return frozenset(host for url in urls if (host := urlsplit(url).hostname))


def _account(
    reference: ImageReference, profile: Profile | None, environ: Mapping[str, str]
) -> Callable[[], Account | None]:
    """Return what finds the login: of the profile for this host, else of `docker login` or `podman login`."""

    def find() -> Account | None:
        named = None if profile is None else _of_profile(reference, profile, environ)
        return named or account_for(reference, environ)

    return find


def _of_profile(reference: ImageReference, profile: Profile, environ: Mapping[str, str]) -> Account | None:
    logins: list[Login] = [*host_credentials(profile, environ)]
    if profile.netrc:
        logins.append(Netrc(Path(profile.netrc), [reference.url]))
    try:
        header = next((header for login in logins if (header := login.header(reference.url)) is not None), None)
    except OSError as error:
        message = f"the mirror profile {profile.name}: {error.strerror}"
        raise ConfigError(message, fix=f"set the secret of {reference.registry}") from None
    if header is None:
        return None
    kind, _, secret = header.partition(" ")
    return Account(token=secret) if kind == "Bearer" else Account(header)
