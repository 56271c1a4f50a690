"""Attach an artifact to an image, so that it is found by any client and lost by none.

The artifact's manifest is stored under a tag of its own: eight writers at once do not overwrite each other. Where the
registry's answer does not say that it lists the subject's referrers, the manifest is also entered in the fallback index
of OCI's distribution-spec 1.1, for other clients. Writing that index is a race that a registry cannot prevent, so it is
read again and written again a few times, and what is read here does not depend on it.
"""

from __future__ import annotations

import base64
import json
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import structs

from envcheck.errors import EnvcheckError
from envcheck.registry.oci.documents import (
    EMPTY,
    EMPTY_TYPE,
    OCI_INDEX,
    OCI_MANIFEST,
    Descriptor,
    ImageManifest,
    StoredManifest,
    digest_of,
    encode,
)
from envcheck.registry.oci.registry_errors import AbsentError, LyingError, RefusedError
from envcheck.registry.oci.repository import Repository
from envcheck.registry.oci.uploads import described, push_blob
from envcheck.struct_types import LightRecord

Layer = tuple[str, bytes]
# Promotions have another end: who looks for them need not read all proofs.
PROMOTION_TYPE: Final = "application/vnd.envcheck.promotion.v1+json"
_OWN: Final = ".proof"
_PROMOTION: Final = ".promotion"
_LISTED: Final = re.compile(r"sha256-([0-9a-f]{64})(?:\.([0-9a-f]{12})(\.proof|\.promotion))?")
# Also those of other tools, as sha256-DIGEST.att and .sig of cosign.
_ATTACHED: Final = re.compile(r"sha256-[0-9a-f]{64}(\.|$)")
_NAMED: Final = 12
_TRIES: Final = 3
_INLINE: Final = 1 << 15
# Times that the fallback index is written before other writers are left to it.
_ENTRIES: Final = 6
_UNKNOWN: Final = {"MANIFEST_BLOB_UNKNOWN", "BLOB_UNKNOWN"}


class Attachment(LightRecord, frozen=True):
    """What was attached, the tag that keeps it, notes for the user, and what is to be entered in the index later."""

    descriptor: Descriptor
    tag: str
    notes: tuple[str, ...] = ()
    unlisted: tuple[StoredManifest, ...] = ()


def fallback_tag(subject: str) -> str:
    """Return the tag of the index of what is attached to a digest."""
    return subject.replace(":", "-", 1)


def own_start(digest: str) -> str:
    """Return the start of an artifact's digest, which its own tag names."""
    return digest.partition(":")[2][:_NAMED]


def own_tag(subject: str, digest: str, kind: str = "") -> str:
    """Return the tag that an artifact of this type has for itself."""
    return f"{fallback_tag(subject)}.{own_start(digest)}{_PROMOTION if kind == PROMOTION_TYPE else _OWN}"


def own_tags(subject: str, tags: Sequence[str]) -> dict[str, str]:
    """Return the own tags of what is attached to a digest, each with the start of the artifact's digest."""
    before = f"{fallback_tag(subject)}."
    mine = (_LISTED.fullmatch(tag) for tag in tags if tag.startswith(before))
    return {match[0]: match[2] for match in mine if match and match[2]}


def is_own_or_fallback(tag: str) -> bool:
    """Tell whether a tag is that of something attached, here or as cosign does it, and of no image."""
    return _ATTACHED.match(tag) is not None


def is_promotion(tag: str) -> bool:
    """Tell whether a tag is the own tag of a promotion."""
    return tag.endswith(_PROMOTION) and _LISTED.fullmatch(tag) is not None


def promoted_digests(tags: Sequence[str]) -> list[str]:
    """Return the digests that promotions are attached to, by their own tags."""
    matches = (_LISTED.fullmatch(tag) for tag in tags if tag.endswith(_PROMOTION))
    return sorted({f"sha256:{match[1]}" for match in matches if match})


def artifact(
    subject: Descriptor, artifact_type: str, layers: Sequence[Descriptor], annotations: Mapping[str, str]
) -> StoredManifest:
    """Return the manifest of an artifact that is attached to a subject: the same bytes each time."""
    document = ImageManifest(
        schema_version=2,
        media_type=OCI_MANIFEST,
        artifact_type=artifact_type,
        config=Descriptor(media_type=EMPTY_TYPE, digest=digest_of(EMPTY), size=len(EMPTY)),
        layers=list(layers),
        subject=Descriptor(media_type=subject.media_type, digest=subject.digest, size=subject.size),
        annotations=dict(annotations),
    )
    content = encode(document)
    return StoredManifest(content, digest_of(content), OCI_MANIFEST)


def attach(
    repository: Repository,
    subject: Descriptor,
    artifact_type: str,
    layers: Sequence[Layer],
    annotations: Mapping[str, str],
    *,
    inline: bool = False,
    listing: Attachment | Literal["now", "later"] = "now",
    sleep: Callable[[float], None] = time.sleep,
) -> Attachment:
    """Push an artifact and attach it to a manifest of the same repository. Doing it again changes nothing.

    Layers of at most _INLINE bytes are in the manifest too with `inline`, so that who reads it needs one request.
    `listing` says when it is entered in the fallback index: "later" is with the next artifact, which names this one.
    """
    manifest = artifact(subject, artifact_type, [_named(*layer, inline=inline) for layer in layers], annotations)
    contents = dict.fromkeys([EMPTY, *(content for _, content in layers)])

    def push(*, ask_first: bool) -> None:
        for content in contents:
            push_blob(repository.exchange, content, ask_first=ask_first)

    earlier = listing.unlisted if isinstance(listing, Attachment) else ()
    done = store_attached(repository, subject.digest, manifest, push)
    unlisted = (*earlier, *done.unlisted)
    if listing == "later" or not unlisted:
        return structs.replace(done, unlisted=unlisted)
    return structs.replace(done, notes=_entered(repository, subject.digest, unlisted, sleep), unlisted=())


def _named(kind: str, content: bytes, *, inline: bool) -> Descriptor:
    """Return what names a layer, with the layer itself if it is small and is to be in the manifest."""
    named = described(content, kind)
    return (
        structs.replace(named, data=base64.b64encode(content).decode()) if inline and len(content) <= _INLINE else named
    )


def attach_manifest(
    repository: Repository,
    subject: str,
    manifest: StoredManifest,
    push_blobs: Callable[..., None],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Attachment:
    """Store a manifest that names its subject, as `store_attached` does, and have it listed."""
    done = store_attached(repository, subject, manifest, push_blobs)
    notes = _entered(repository, subject, done.unlisted, sleep) if done.unlisted else ()
    return structs.replace(done, notes=notes, unlisted=())


def store_attached(
    repository: Repository, subject: str, manifest: StoredManifest, push_blobs: Callable[..., None]
) -> Attachment:
    """Store a manifest that names its subject. `push_blobs(ask_first=…)` has the registry hold what it consists of.

    A registry can lose a blob that is uploaded twice at once; it says so when the manifest comes, and gets all again.
    """
    tag = own_tag(subject, manifest.digest, manifest.image().kind)
    for number in range(1, _TRIES + 1):
        push_blobs(ask_first=number == 1)
        try:
            reply = repository.push_manifest(manifest.content, manifest.media_type, tag)
            break
        except RefusedError as error:
            if number == _TRIES or not _UNKNOWN & set(error.codes):
                raise
    listed = reply.headers.get("OCI-Subject") == subject
    return Attachment(manifest.descriptor, tag, (), () if listed else (manifest,))


def entry_of(manifest: StoredManifest) -> dict[str, Any]:
    """Return how an index lists a manifest."""
    image = manifest.image()
    entry: dict[str, Any] = {
        "mediaType": manifest.media_type,
        "digest": manifest.digest,
        "size": len(manifest.content),
        "artifactType": image.kind,
    }
    return entry | ({"annotations": dict(image.annotations)} if image.annotations else {})


def _entered(
    repository: Repository, subject: str, manifests: Sequence[StoredManifest], sleep: Callable[[float], None]
) -> tuple[str, ...]:
    """Enter manifests in the fallback index, whose other entries stay; return a note if they are not there."""
    tag = fallback_tag(subject)
    try:
        for number in range(_ENTRIES):
            index = _index(repository, tag, subject)
            missing = _missing(index, manifests)
            if not missing:
                return ()
            index["manifests"] += map(entry_of, missing)
            repository.push_manifest(encode(index), OCI_INDEX, tag)
            if number:  # others write too
                sleep(random.uniform(0.0, 0.1 * number))  # noqa: S311 (no secret)
        if not _missing(_index(repository, tag, subject), manifests):
            return ()
    except EnvcheckError as error:  # its own tag keeps it
        return (f"other clients may not find it: {error.message}",)
    return (f"other clients may not find it: others write the index {tag} at the same time",)


def _missing(index: dict[str, Any], manifests: Sequence[StoredManifest]) -> list[StoredManifest]:
    listed = {str(entry.get("digest")) for entry in index["manifests"] if isinstance(entry, dict)}
    return [manifest for manifest in manifests if manifest.digest not in listed]


def _index(repository: Repository, tag: str, subject: str) -> dict[str, Any]:
    """Return the fallback index with all it holds, or an empty one. Raise LyingError if the tag is something else."""
    empty = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": []}
    try:
        manifest = repository.manifest(tag)
    except AbsentError:
        return empty
    if manifest.digest == subject or not manifest.is_index:
        message = f"{repository.reference.name} has no index under {tag}"
        raise LyingError(message, fix="ask who runs the registry whether it has the referrers API")
    document = json.loads(manifest.content)
    if isinstance(document.get("manifests"), list):
        return dict(document)
    message = f"the index {tag} of {repository.reference.name} has no list of manifests"
    raise LyingError(message, fix="delete the tag")
