"""Copy an image with what is attached to it, and what is attached to that: no other tool's copy does so by itself."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from envcheck.registry.oci.attachments import attach_manifest
from envcheck.registry.oci.documents import INDEXES, MANIFESTS, Descriptor, StoredManifest
from envcheck.registry.oci.referrers import Referrers, referrers
from envcheck.registry.oci.registry_errors import TAMPERED, LyingError
from envcheck.registry.oci.repository import Repository
from envcheck.registry.oci.uploads import mounted, push_blob
from envcheck.struct_types import LightRecord

# Indexes in indexes, and attachments of attachments: more than anybody makes.
_DEEPEST: Final = 4
# Layers that only their maker may distribute: they are not in the registry.
_ELSEWHERE: Final = ("foreign", "nondistributable")


class CopyResult(LightRecord, frozen=True):
    """What a copy did: digests of manifests and of blobs that were sent, and what is attached but was not copied."""

    manifests: list[str] = msgspec.field(default_factory=list)
    blobs: list[str] = msgspec.field(default_factory=list)
    incomplete: list[Referrers] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)


def copy_image(source: Repository, target: Repository, digest: str) -> CopyResult:
    """Copy a manifest, all that it consists of, and all that is attached to any of it. Read back and compare it.

    It has no tag in the target afterwards, but for the own tags of what is attached.
    """
    copied = CopyResult()
    _copy(source, target, source.manifest(digest), copied, _DEEPEST)
    if target.manifest(digest).digest != digest:
        message = f"{target.reference.name} does not have what was copied"
        raise LyingError(message, fix=TAMPERED)
    return copied


def _copy(source: Repository, target: Repository, manifest: StoredManifest, copied: CopyResult, depth: int) -> None:
    if depth == 0:
        message = f"{source.reference.name}: {manifest.digest} lies too deep below the image"
        raise LyingError(message, fix="copy what it belongs to by itself")
    if manifest.is_index:
        for child in manifest.index().manifests:
            if child.media_type in (*MANIFESTS, *INDEXES):
                _copy(source, target, source.manifest(child), copied, depth - 1)
    else:
        _copy_blobs(source, target, manifest.children, copied)
    if not target.has_manifest(manifest.digest):
        target.push_manifest(manifest.content, manifest.media_type)
        copied.manifests.append(manifest.digest)
    _copy_attached(source, target, manifest.digest, copied, depth)


def _copy_attached(source: Repository, target: Repository, subject: str, copied: CopyResult, depth: int) -> None:
    attached = referrers(source, subject)
    if attached.artifacts and depth == 0:
        message = f"{source.reference.name}: what is attached to {subject} lies too deep below the image"
        raise LyingError(message, fix="copy what it belongs to by itself")
    if attached.refused or attached.dangling or attached.notes:
        copied.incomplete.append(attached)
    for one in attached.artifacts:
        manifest = StoredManifest(one.content, one.descriptor.digest, one.descriptor.media_type)

        def push(*, ask_first: bool, parts: Iterable[Descriptor] = manifest.children) -> None:
            _copy_blobs(source, target, parts, copied, ask_first=ask_first)

        done = attach_manifest(target, subject, manifest, push)
        copied.manifests.append(manifest.digest)
        copied.notes.extend(done.notes)
        _copy_attached(source, target, manifest.digest, copied, depth - 1)


def _copy_blobs(
    source: Repository, target: Repository, blobs: Iterable[Descriptor], copied: CopyResult, *, ask_first: bool = True
) -> None:
    for blob in {blob.digest: blob for blob in blobs}.values():
        if any(word in blob.media_type for word in _ELSEWHERE) or (ask_first and target.has_blob(blob)):
            continue
        if ask_first and _same_registry(source, target) and mounted(target.exchange, blob, source.reference.repository):
            continue
        with tempfile.TemporaryFile() as file:  # without a name: a copy that is killed leaves nothing behind
            source.save_blob(blob, file)
            push_blob(target.exchange, Path(f"/proc/self/fd/{file.fileno()}"), ask_first=False)
        copied.blobs.append(blob.digest)


def _same_registry(source: Repository, target: Repository) -> bool:
    return source.reference.url == target.reference.url and source.reference.repository != target.reference.repository
