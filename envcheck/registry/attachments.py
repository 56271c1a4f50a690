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
from http import HTTPStatus
from typing import Any, Final, Literal

import msgspec
from msgspec import structs

from envcheck.errors import EnvcheckError
from envcheck.mirrors.net.waits import map_in_threads
from envcheck.registry.documents import (
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
from envcheck.registry.exchange import codes_in
from envcheck.registry.references import AbsentError, LyingError, RefusedError, RegistryUnavailableError, is_digest
from envcheck.registry.repository import Repository, described
from envcheck.struct_types import LightRecord, know_types

# The artifact types of a proof's evidence and of a promotion: their own tags end otherwise than those of proofs, so
# that who looks for proofs reads neither, and who looks for promotions reads no proof.
REPORT_TYPE: Final = "application/vnd.envcheck.report.v1+json"
PROMOTION_TYPE: Final = "application/vnd.envcheck.promotion.v1+json"
_ENDS: Final = {REPORT_TYPE: ".report", PROMOTION_TYPE: ".promotion"}
_OWN: Final = re.compile(r"sha256-([0-9a-f]{64})\.([0-9a-f]{12})(\.proof|\.report|\.promotion)")
# Also those of other tools, as sha256-DIGEST.att and .sig of cosign.
_ATTACHED: Final = re.compile(r"sha256-[0-9a-f]{64}(\.|$)")
_NAMED: Final = 12
_TRIES: Final = 3
_INLINE: Final = 1 << 15
# Times that the fallback index is written before other writers are left to it.
_ENTRIES: Final = 6
_UNKNOWN: Final = {"MANIFEST_BLOB_UNKNOWN", "BLOB_UNKNOWN"}
# Manifests that are read at once, and the most that are attached to one image before something is wrong.
_AT_ONCE: Final = 8
_MOST: Final = 10_000
# Statuses by which a registry says that it has no referrers API.
_NO_API: Final = (400, 404, 405, 501)


class Attachment(LightRecord, frozen=True):
    """What was attached, the tag that keeps it, and notes for the user."""

    descriptor: Descriptor
    tag: str
    notes: tuple[str, ...] = ()


class Referrer(LightRecord, frozen=True):
    """An artifact that is attached to the subject: read, hashed, and naming the subject itself."""

    descriptor: Descriptor
    manifest: ImageManifest
    content: bytes


class RefusedReferrer(LightRecord, frozen=True):
    """What was listed and must not count: `named` is its digest or tag."""

    named: str
    reason: Literal["tampered", "wrong-subject"]
    detail: str


class Referrers(LightRecord, frozen=True):
    """What is attached to a manifest. `dangling` was listed and is gone; it may have been deleted on purpose."""

    artifacts: list[Referrer]
    dangling: list[str]
    refused: list[RefusedReferrer]
    notes: list[str]


class _List(msgspec.Struct):
    manifests: list[Any]


know_types(_List)


def fallback_tag(subject: str) -> str:
    """Return the tag of the index of what is attached to a digest."""
    return subject.replace(":", "-", 1)


def own_tag(subject: str, digest: str, kind: str = "") -> str:
    """Return the tag that an artifact of this type has for itself."""
    return f"{fallback_tag(subject)}.{digest.partition(':')[2][:_NAMED]}{_ENDS.get(kind, '.proof')}"


def is_own_or_fallback(tag: str) -> bool:
    """Tell whether a tag is that of something attached, here or as cosign does it, and of no image."""
    return _ATTACHED.match(tag) is not None


def promotion_tags(tags: Sequence[str]) -> dict[str, list[str]]:
    """Return the own tags of promotions by the digest that they are attached to."""
    found: dict[str, list[str]] = {}
    for tag in tags:
        match = _OWN.fullmatch(tag)
        if match is not None and match[3] == _ENDS[PROMOTION_TYPE]:
            found.setdefault(f"sha256:{match[1]}", []).append(tag)
    return found


def attach(
    repository: Repository,
    subject: Descriptor,
    artifact_type: str,
    layers: Sequence[tuple[str, bytes]],
    annotations: Mapping[str, str],
    *,
    inline: bool = False,
) -> Attachment:
    """Push an artifact and attach it to a manifest of the same repository. Doing it again changes nothing.

    `layers` are media types and contents; small ones are in the manifest too with `inline`, so that who reads it needs
    one request.
    """
    document = ImageManifest(
        schema_version=2,
        media_type=OCI_MANIFEST,
        artifact_type=artifact_type,
        config=Descriptor(media_type=EMPTY_TYPE, digest=digest_of(EMPTY), size=len(EMPTY)),
        layers=[_named(*layer, inline=inline) for layer in layers],
        subject=Descriptor(media_type=subject.media_type, digest=subject.digest, size=subject.size),
        annotations=dict(annotations),
    )
    content = encode(document)

    def push(*, ask_first: bool) -> None:
        for blob in dict.fromkeys([EMPTY, *(content for _, content in layers)]):
            repository.push_blob(blob, ask_first=ask_first)

    return attach_manifest(repository, subject.digest, StoredManifest(content, digest_of(content), OCI_MANIFEST), push)


def _named(kind: str, content: bytes, *, inline: bool) -> Descriptor:
    named = described(content, kind)
    small = inline and len(content) <= _INLINE
    return structs.replace(named, data=base64.b64encode(content).decode()) if small else named


def attach_manifest(
    repository: Repository, subject: str, manifest: StoredManifest, push_blobs: Callable[..., None]
) -> Attachment:
    """Store a manifest that names its subject, and have it listed.

    `push_blobs(ask_first=...)` has the registry hold what it consists of. A registry can lose a blob that is uploaded
    twice at once; it says so when the manifest comes, and gets all again.
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
    return Attachment(manifest.descriptor, tag, () if listed else _entered(repository, subject, manifest))


def _entered(repository: Repository, subject: str, manifest: StoredManifest) -> tuple[str, ...]:
    """Enter a manifest in the fallback index, whose other entries stay; return a note if it is not there."""
    tag, image = fallback_tag(subject), manifest.image()
    entry = {"mediaType": manifest.media_type, "digest": manifest.digest, "size": len(manifest.content)}
    entry |= {"artifactType": image.kind, **({"annotations": image.annotations} if image.annotations else {})}
    try:
        for number in range(_ENTRIES):
            index = _index(repository, tag, subject)
            if any(isinstance(one, dict) and one.get("digest") == manifest.digest for one in index["manifests"]):
                return ()
            index["manifests"].append(entry)
            repository.push_manifest(encode(index), OCI_INDEX, tag)
            if number:  # others write too
                time.sleep(random.uniform(0.0, 0.1 * number))  # noqa: S311 (no secret)
    except EnvcheckError as error:  # its own tag keeps it
        return (f"other clients may not find it: {error.message}",)
    return (f"other clients may not find it: others write the index {tag} at the same time",)


def _index(repository: Repository, tag: str, subject: str) -> dict[str, Any]:
    """Return the fallback index with all it holds, or an empty one. Raise LyingError if the tag is something else."""
    try:
        manifest = repository.manifest(tag)
    except AbsentError:
        return {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": []}
    document = json.loads(manifest.content)
    if manifest.digest != subject and manifest.is_index and isinstance(document.get("manifests"), list):
        return dict(document)
    message = f"{repository.reference.name} has no index under {tag}"
    raise LyingError(message, fix="ask who runs the registry whether it has the referrers API")


def referrers(
    repository: Repository, subject: str, tags: Sequence[str] | None = None, *, without: str = ""
) -> Referrers:
    """Return what is attached to a digest, in the order of the digests.

    `tags` are those of the repository, for a caller that asks for many subjects. What a list or its own tag calls an
    artifact of the type `without` is not read. Raise an error if one of the places cannot be read: what it would have
    listed may be a failure that revokes an earlier success.
    """
    notes: list[str] = []
    api = _from_api(repository, subject, notes)  # its types are the manifests' own; an index is anybody's word
    listed = {**_from_index(repository, subject, notes), **api}
    starts = _own_tags(subject, repository.tags() if tags is None else tags, without)
    if len(listed) + len(starts) > _MOST:
        total = len(listed) + len(starts)
        message = f"{repository.reference.name} lists {total} artifacts for {subject}, more than {_MOST}"
        raise LyingError(message, fix="delete what nobody needs, or use another repository")

    def read(name: str) -> Referrer | RefusedReferrer | str:
        return _read(repository, subject, name, starts.get(name, ""))

    results = map_in_threads(read, [digest for digest, kind in listed.items() if kind != without or not kind], _AT_ONCE)
    # Only what was read stands for its own tag: a list may name a digest that begins like that of another artifact.
    found = {_start(one.descriptor.digest) for one in results if isinstance(one, Referrer)}
    results += map_in_threads(read, [tag for tag, start in starts.items() if start not in found], _AT_ONCE)
    by_digest = {one.descriptor.digest: one for one in results if isinstance(one, Referrer)}
    refused = [one for one in results if isinstance(one, RefusedReferrer)]
    absent = [one for one in results if isinstance(one, str)]
    told = {_start(name) for name in (*absent, *(one.named for one in refused)) if is_digest(name)}
    return Referrers(
        artifacts=[by_digest[digest] for digest in sorted(by_digest)],
        dangling=sorted(name for name in absent if name not in by_digest and starts.get(name) not in told),
        refused=[one for one in refused if starts.get(one.named) not in told],
        notes=notes,
    )


def _start(digest: str) -> str:
    return digest.partition(":")[2][:_NAMED]


def _own_tags(subject: str, tags: Sequence[str], without: str) -> dict[str, str]:
    """Return the own tags of what is attached to a digest, each with the start of the artifact's digest."""
    before, end = f"{fallback_tag(subject)}.", _ENDS.get(without)
    mine = (_OWN.fullmatch(tag) for tag in tags if tag.startswith(before))
    return {match[0]: match[2] for match in mine if match and match[3] != end}


def _read(repository: Repository, subject: str, name: str, start: str) -> Referrer | RefusedReferrer | str:
    """Return the artifact of a digest or an own tag, or why it does not count; its name alone if it is gone."""
    try:
        manifest = repository.manifest(name)
        named = manifest.subject
        image = manifest.image()
    except AbsentError:
        return name
    except LyingError as error:
        return RefusedReferrer(name, "tampered", error.message)
    if start and not manifest.digest.startswith(f"sha256:{start}"):
        return RefusedReferrer(name, "tampered", f"the tag {name} leads to {manifest.digest}")
    if named is None or named.digest != subject:
        other = "nothing" if named is None else named.digest
        return RefusedReferrer(name, "wrong-subject", f"{manifest.digest} is attached to {other}")
    return Referrer(manifest.descriptor, image, manifest.content)


def _from_index(repository: Repository, subject: str, notes: list[str]) -> dict[str, str]:
    """Return the digests in the fallback index. Some registries resolve its tag to the subject itself."""
    tag = fallback_tag(subject)
    try:
        manifest = repository.manifest(tag)
    except AbsentError:
        return {}
    except LyingError as error:
        notes.append(f"the index {tag} was not used: {error.message}")
        return {}
    if manifest.digest == subject or not manifest.is_index:
        notes.append(f"the tag {tag} leads to no index of artifacts; it was not used")
        return {}
    return _listed(manifest.content, f"the index {tag}", notes)


def _from_api(repository: Repository, subject: str, notes: list[str]) -> dict[str, str]:
    """Return the digests that the referrers API lists. Registries without one answer 404, or 200 with anything."""
    path = f"/v2/{repository.reference.repository}/referrers/{subject}"
    digests: dict[str, str] = {}
    if repository.lacks_referrers:
        return digests
    for number, reply in enumerate(repository.pages(path, f"the referrers of {subject[:19]}", (200, *_NO_API))):
        if reply.status not in _NO_API:
            digests |= _listed(reply.body, "the referrers API", notes)
            if len(digests) > _MOST:
                break  # `referrers` refuses so many; all pages of them would fill the memory
        elif number:
            message = f"{repository.reference.registry} lists the referrers of {subject[:19]} in part only"
            raise RegistryUnavailableError(message, fix="try again; ask who runs the registry")
        elif reply.status == HTTPStatus.NOT_FOUND and not codes_in(reply.body):
            repository.lacks_referrers = True  # no words of a registry: there is no such path, whatever the subject
    return digests


def _listed(content: bytes, where: str, notes: list[str]) -> dict[str, str]:
    """Return the digests of a list, and the artifact types that it states; a bad entry does not hide the others."""
    try:
        entries = msgspec.json.decode(content, type=_List).manifests
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        notes.append(f"{where} answers with no list; it was not used")
        return {}
    named = [(entry.get("digest"), str(entry.get("artifactType", ""))) for entry in entries if isinstance(entry, dict)]
    usable = [(digest, kind) for digest, kind in named if isinstance(digest, str) and is_digest(digest)]
    if len(usable) < len(entries):
        notes.append(f"{where}: {len(entries) - len(usable)} entries name no sha256 digest; they were not used")
    return dict(usable)
