"""One repository of a registry: its manifests, blobs and tags. Whatever is read is hashed against what named it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Final
from urllib.parse import urljoin

import msgspec

from envcheck.mirrors.net.responses import HttpResponse
from envcheck.mirrors.net.urls import origin_of
from envcheck.registry.oci import uploads
from envcheck.registry.oci.documents import (
    INDEXES,
    MANIFESTS,
    Descriptor,
    Platform,
    StoredManifest,
    digest_of,
    platform_choice,
    read_manifest,
)
from envcheck.registry.oci.exchange import Exchange, RegistryReply, RegistryRequest, codes_in
from envcheck.registry.oci.references import ImageReference, is_digest, is_tag
from envcheck.registry.oci.registry_errors import TAMPERED, AbsentError, LyingError, RegistryUnavailableError
from envcheck.struct_types import know_types

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
        return self.exchange.ask(request).status != 404  # noqa: PLR2004 (HTTP's status)

    def image(self, tag_or_digest: str, platform: Platform) -> StoredManifest:
        """Return the manifest of one image: of an index, the one for a platform. Raise AbsentError if it has none."""
        manifest = self.manifest(tag_or_digest)
        if not manifest.is_index:
            manifest.image()
            return manifest
        index = manifest.index()
        descriptor = platform_choice(index, platform)
        if descriptor is None:
            has = sorted({str(entry.platform) for entry in index.manifests if entry.platform})
            message = (
                f"{self.reference.name}:{tag_or_digest} has no image for {platform}; it has {', '.join(has) or 'none'}"
            )
            raise AbsentError(message, fix="name an image for this platform")
        return self.manifest(descriptor)

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

    def has_blob(self, descriptor: Descriptor) -> bool:
        """Tell whether the repository has a blob."""
        return uploads.has_blob(self.exchange, descriptor)

    def push_blob(self, content: bytes | Path, *, mount_from: str | None = None) -> Descriptor:
        """Have the repository hold bytes or a file, and return what names them; nothing is sent if it has them."""
        return uploads.push_blob(self.exchange, content, mount_from=mount_from)

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
            if reply.status == 404:  # noqa: PLR2004 (HTTP's status)
                if not codes_in(reply.body):
                    self.exchange.demand_registry()
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
        for part in answer.decoded_chunks(_BLOCK):
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
