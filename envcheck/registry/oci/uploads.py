"""Push blobs: asked for first, mounted from another repository where that is possible, else sent in one piece."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from envcheck.errors import ConfigError
from envcheck.mirrors.net.urls import redirect_target
from envcheck.registry.oci.documents import Descriptor, digest_of
from envcheck.registry.oci.exchange import Exchange, RegistryReply, RegistryRequest
from envcheck.registry.oci.registry_errors import (
    TAMPERED,
    AbsentError,
    LyingError,
    RefusedError,
    RegistryUnavailableError,
)

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


def has_blob(exchange: Exchange, blob: Descriptor) -> bool:
    """Tell whether the repository has a blob. Raise LyingError if it has one of another size under the digest."""
    path = f"/v2/{exchange.reference.repository}/blobs/{blob.digest}"
    reply = exchange.ask(RegistryRequest("HEAD", path, f"the blob {blob.named}", accepted=(200, 404)))
    size = reply.headers.get("Content-Length", "")
    if reply.status == 200 and size.isdigit() and int(size) != blob.size:  # noqa: PLR2004 (HTTP's status)
        message = f"{exchange.reference.name} has {size} bytes under {blob.digest}, which names {blob.size}"
        raise LyingError(message, fix=TAMPERED)
    return reply.status == 200  # noqa: PLR2004 (HTTP's status)


def push_blob(
    exchange: Exchange, content: bytes | Path, *, mount_from: str | None = None, ask_first: bool = True
) -> Descriptor:
    """Have the repository hold bytes or a file, and return what names them.

    `mount_from` is a repository of the same registry that has the blob already.
    """
    blob = described(content)
    if ask_first and has_blob(exchange, blob):
        return blob
    for number in range(1, _TRIES + 1):
        upload = _begun(exchange, blob, mount_from)
        if upload is None:
            return blob
        try:
            _finish(exchange, blob, content, upload)
        except (AbsentError, RefusedError, RegistryUnavailableError):
            if has_blob(exchange, blob):  # another upload of it was faster, or only the answer was lost
                return blob
            if number == _TRIES:
                raise
        else:
            return blob
    raise AssertionError


def mounted(exchange: Exchange, blob: Descriptor, mount_from: str) -> bool:
    """Have the repository take a blob over from another one of its registry; tell whether it did."""
    return _begun(exchange, blob, mount_from) is None


def _begun(exchange: Exchange, blob: Descriptor, mount_from: str | None) -> str | None:
    """Begin an upload and return its URL, or None if the blob was mounted and nothing is to be sent."""
    where = exchange.reference
    path = f"/v2/{where.repository}/blobs/uploads/"
    query = "" if mount_from is None else f"?mount={quote(blob.digest)}&from={quote(mount_from, safe='')}"
    label = f"an upload to {where.repository}"
    request = RegistryRequest("POST", path + query, label, accepted=(201, 202), push=True, mount_from=mount_from)
    reply = exchange.ask(request)
    return None if mount_from is not None and reply.status == 201 else _location(reply)  # noqa: PLR2004


def _location(reply: RegistryReply) -> str:
    """Return where the blob is to be sent."""
    location = reply.headers.get("Location", "")
    try:
        return redirect_target(reply.url, location) if location else ""
    except ValueError as error:
        raise RegistryUnavailableError(str(error), fix="ask who runs the registry to correct its address") from None


def _finish(exchange: Exchange, blob: Descriptor, content: bytes | Path, upload: str) -> None:
    url = f"{upload}{'&' if urlsplit(upload).query else '?'}digest={quote(blob.digest)}"
    label = f"the blob {blob.named} of {blob.size} bytes"
    headers = {"Content-Type": _OCTETS}
    reply = exchange.ask(RegistryRequest("PUT", url, label, headers, content, accepted=(201,), push=True, retry=False))
    stated = reply.headers.get("Docker-Content-Digest", blob.digest)
    if stated.startswith("sha256:") and stated != blob.digest:
        message = f"{exchange.reference.name} stored {stated} instead of {blob.digest}"
        raise LyingError(message, fix=TAMPERED)
