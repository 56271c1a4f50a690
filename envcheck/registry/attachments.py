"""What lies beside an image: attach an artifact so that any client finds it and none loses it, and read what is there.

The artifact's manifest is stored under a tag of its own: eight writers at once do not overwrite each other. Where the
registry's answer does not say that it lists the subject's referrers, the manifest is also entered in the fallback index
of OCI's distribution-spec 1.1, for other clients. Writing that index is a race that a registry cannot prevent, so it is
read again and written again a few times, and what is read here does not depend on it.
"""

import contextlib
import random
import re
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NoReturn

import msgspec
from msgspec import structs

from envcheck.errors import EnvcheckError, refuse
from envcheck.mirrors.net.waits import map_in_threads
from envcheck.registry import documents
from envcheck.registry.documents import Descriptor, ImageManifest, LyingError, Platform, StoredManifest, digest_of
from envcheck.registry.envelope import BUNDLE_ANNOTATIONS, BUNDLE_TYPE
from envcheck.registry.judge import ListedProof
from envcheck.registry.repository import Repository, codes_in
from envcheck.registry.statement import (
    MOST_JSON,
    MOST_REPORT,
    MalformedError,
    ProofRefusal,
    Rejection,
    ReportReference,
    decode_json,
)
from envcheck.struct_types import LightRecord

# The artifact types of a proof's evidence and of a promotion: their own tags end otherwise than those of proofs, so
# that who looks for proofs reads neither, and who looks for promotions reads no proof.
REPORT_TYPE: Final = "application/vnd.envcheck.report.v1+json"
PROMOTION_TYPE: Final = "application/vnd.envcheck.promotion.v1+json"
_ENDS: Final = {REPORT_TYPE: ".report", PROMOTION_TYPE: ".promotion"}
_OWN: Final = re.compile(r"sha256-([0-9a-f]{64})\.([0-9a-f]{12})(\.proof|\.report|\.promotion)")
# Also those of other tools, as sha256-DIGEST.att and .sig of cosign.
_ATTACHED: Final = re.compile(r"sha256-[0-9a-f]{64}(\.|$)")
_TRIES: Final = 3
_INLINE: Final = 1 << 15
# Times that the fallback index is written before other writers are left to it.
_ENTRIES: Final = 6
_UNKNOWN: Final = {"MANIFEST_BLOB_UNKNOWN", "BLOB_UNKNOWN"}
# Manifests that are read at once, and the most that are attached to one image before something is wrong.
_AT_ONCE: Final = 8
_MOST: Final = 10_000
# Bytes: an attachment's manifest with its inline proof (ours have 45 KiB), the envelope of a larger one, and all that
# is attached to one image (600 proofs). What all images have grows with the repository, and has no bound.
_MOST_ATTACHED: Final = 1 << 16
_MOST_ENVELOPE: Final = 1 << 18
_MOST_OF_IMAGE: Final = 1 << 25
# Statuses by which a registry says that it has no referrers API.
_NO_API: Final = (400, 404, 405, 501)
# Images for Linux in one index; each is two requests, and one index could name some 20,000.
_MOST_PLATFORMS: Final = 100
# How BuildKit marks what it says of a build in an index (its docs/attestations/attestation-storage.md).
_ATTESTATION: Final = ("vnd.docker.reference.type", "attestation-manifest")
_IN_TOTO: Final = "application/vnd.in-toto+json"


class RemoteImage(LightRecord, frozen=True):
    """One platform's manifest in a repository; `index_digest` is that of the index it was found in."""

    repository: str
    manifest: str
    config: str
    arch: str
    index_digest: str | None = None
    platform: tuple[str, str, str] = ("linux", "", "")


class Attachment(LightRecord, frozen=True):
    """What was attached, and why other clients may not find it, or ""."""

    descriptor: Descriptor
    note: str = ""


class Referrer(LightRecord, frozen=True):
    """An artifact that is attached to the subject: read, hashed, and naming the subject itself."""

    descriptor: Descriptor
    manifest: ImageManifest


class Referrers(LightRecord, frozen=True):
    """What is attached to a manifest; `unread` is by digest or tag what was listed and must not count."""

    artifacts: list[Referrer]
    unread: dict[str, Rejection]


def fallback_tag(subject: str) -> str:
    """Return the tag of the index of what is attached to a digest."""
    return subject.replace(":", "-", 1)


def own_tag(subject: str, digest: str, kind: str = "") -> str:
    """Return the tag that an artifact of this type has for itself."""
    return f"{fallback_tag(subject)}.{_start(digest)}{_ENDS.get(kind, '.proof')}"


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
    content: bytes,
    annotations: Mapping[str, str] = {},
    *,
    media_type: str = "",
    inline: bool = False,
) -> Attachment:
    """Push an artifact and attach it to a manifest of the same repository. Doing it again changes nothing.

    `media_type` is that of the content, if not the artifact's; with `inline`, a small one is in the manifest too, for
    readers' sake. A registry can lose a blob that is uploaded twice at once; it says so when the manifest comes, and
    gets all again.
    """
    blob = documents.described(content, media_type or artifact_type)
    document = ImageManifest(
        schema_version=2,
        media_type=documents.OCI_MANIFEST,
        artifact_type=artifact_type,
        config=documents.described(documents.EMPTY, documents.EMPTY_TYPE),
        layers=[structs.replace(blob, data=content if inline and len(content) <= _INLINE else b"")],
        subject=structs.replace(subject, data=b"", platform=None),
        annotations=dict(annotations),
    )
    written = msgspec.json.encode(document)
    tag = own_tag(subject.digest, digest_of(written), artifact_type)
    for number in range(1, _TRIES + 1):
        for part in dict.fromkeys([documents.EMPTY, content]):
            repository.push_blob(part, ask_first=number == 1)
        try:
            reply = repository.push_manifest(written, documents.OCI_MANIFEST, tag)
            break
        except documents.RefusedError as error:
            if "MANIFEST_INVALID" in error.codes:  # GitLab's list of types (ocx-sh/ocx#480, fluxcd/flux2#3724)
                error.fix = "use another registry: this one may take only artifacts of types that it knows"
            if number == _TRIES or not _UNKNOWN & set(error.codes):
                raise
    named = documents.described(written, documents.OCI_MANIFEST)
    listed = reply.headers.get("OCI-Subject") == subject.digest
    return Attachment(named, _entered(repository, subject.digest, named, document, listed=listed))


def _entered(repository: Repository, subject: str, named: Descriptor, document: ImageManifest, *, listed: bool) -> str:
    """Enter a manifest in the fallback index, whose other entries stay; return why it is not there, or "".

    `listed`: the registry says that its API lists it. AWS ECR said so without an API (sigstore/sigstore-js#1183).
    """
    tag = fallback_tag(subject)
    entry = {"mediaType": named.media_type, "digest": named.digest, "size": named.size}
    entry |= {"artifactType": document.kind, "annotations": document.annotations}
    if listed:
        with contextlib.suppress(EnvcheckError):  # it may be down, or the token be for pushes alone
            if named.digest in _from_api(repository, subject):
                return ""
    try:
        for number in range(_ENTRIES):
            index = _index(repository, tag, subject)
            if any(isinstance(one, dict) and one.get("digest") == named.digest for one in index["manifests"]):
                return ""
            index["manifests"].append(entry)
            repository.push_manifest(msgspec.json.encode(index), documents.OCI_INDEX, tag)
            time.sleep(random.uniform(0.0, 0.1 * number))  # noqa: S311 (no secret; others may write too)
    except EnvcheckError as error:  # its own tag keeps it
        return f"other clients may not find it: {error.message}"
    return f"other clients may not find it: others write the index {tag} at the same time"


def detach(repository: Repository, subject: str, artifacts: Mapping[str, str]) -> None:
    """Delete artifacts, each a digest with its type, and take them out of the fallback index.

    Raise an EnvcheckError where the registry does not let them be deleted. Some keep tags of what was deleted, others
    delete no tag.
    """
    for digest, kind in artifacts.items():
        with contextlib.suppress(documents.RefusedError):
            repository.delete(own_tag(subject, digest, kind))
        repository.delete(digest)
    tag = fallback_tag(subject)
    try:
        index = _index(repository, tag, subject)
    except LyingError:  # none of ours: GitLab's tag leads to the subject itself (oras-project/oras-go#1396)
        return
    left = [one for one in index["manifests"] if not isinstance(one, dict) or one.get("digest") not in artifacts]
    if len(left) < len(index["manifests"]):
        repository.push_manifest(msgspec.json.encode({**index, "manifests": left}), documents.OCI_INDEX, tag)


def _index(repository: Repository, tag: str, subject: str) -> dict[str, Any]:
    """Return the fallback index with all it holds, or an empty one. Raise LyingError if the tag is something else."""
    try:
        manifest = repository.manifest(tag)
    except documents.AbsentError:
        return {"schemaVersion": 2, "mediaType": documents.OCI_INDEX, "manifests": []}
    document = msgspec.json.decode(manifest.content)
    if manifest.digest == subject or not manifest.is_index or not isinstance(document.get("manifests"), list):
        refuse(f"{repository.reference.name} has no index under {tag}", "ask who runs the registry", LyingError)
    return dict(document)


class Allowance:
    """The bytes that may still be read of what is attached to one image: whoever can push could attach any number."""

    def __init__(self, repository: Repository) -> None:
        self._name, self._of_image = repository.reference.name, 0

    def take(self, size: int) -> None:
        """Count bytes that are about to be read, at most. Raise LyingError where they are too many."""
        self._of_image += size
        if self._of_image > _MOST_OF_IMAGE:
            what = f"{self._name}: what is attached to one image has over {_MOST_OF_IMAGE} bytes"
            refuse(what, "delete attachments that nobody needs, as proofs older than max_age", LyingError)


def referrers(
    repository: Repository,
    subject: str,
    tags: Sequence[str] | None = None,
    *,
    without: str = "",
    allowance: Allowance | None = None,
) -> Referrers:
    """Return what is attached to a digest, in the order of the digests.

    `tags` are those of the repository, for a caller that asks for many subjects. What a list or its own tag calls an
    artifact of the type `without` is not read. Raise an error if one of the places cannot be read: what it would have
    listed may be a failure that revokes an earlier success.
    """
    listed: dict[str, str] = {}
    with contextlib.suppress(LyingError):  # anybody who can write to the registry could put something else there
        listed = _listed(_index(repository, fallback_tag(subject), subject))
    listed |= _from_api(repository, subject)  # the API's types are the manifests' own; an index is anybody's word
    # The own tags, each with the start of its artifact's digest.
    before = f"{fallback_tag(subject)}."
    mine = (_OWN.fullmatch(tag) for tag in (repository.tags() if tags is None else tags) if tag.startswith(before))
    own = {match[0]: match[2] for match in mine if match and match[3] != _ENDS.get(without)}
    if (count := len(listed) + len(own)) > _MOST:
        message = f"{repository.reference.name} lists {count} artifacts for {subject}, more than {_MOST}"
        raise LyingError(message, fix="delete what nobody needs, or use another repository")

    allowance = allowance or Allowance(repository)

    def read(name: str) -> Referrer | Rejection:
        result = _read(repository, subject, name, own.get(name, ""))
        absent = isinstance(result, Rejection) and result.reason is ProofRefusal.DANGLING
        allowance.take(result.descriptor.size if isinstance(result, Referrer) else 0 if absent else _MOST_ATTACHED)
        return result

    names = [digest for digest, kind in listed.items() if kind != without or not kind]
    results = dict(zip(names, map_in_threads(read, names, _AT_ONCE), strict=True))
    # Only what was read stands for its own tag: a list may name a digest that begins like that of another artifact.
    found = {_start(one.descriptor.digest) for one in results.values() if isinstance(one, Referrer)}
    left = [tag for tag, start in own.items() if start not in found]
    results |= zip(left, map_in_threads(read, left, _AT_ONCE), strict=True)
    artifacts = {one.descriptor.digest: one for one in results.values() if isinstance(one, Referrer)}
    told = {_start(digest) for digest in artifacts}
    unread: dict[str, Rejection] = {}
    for name, result in results.items():
        start = own.get(name) or _start(name)
        if isinstance(result, Rejection) and start not in told:
            told.add(start)
            unread[name] = result
    return Referrers([artifacts[digest] for digest in sorted(artifacts)], unread)


def _start(digest: str) -> str:
    return digest.partition(":")[2][:12]


def _read(repository: Repository, subject: str, name: str, start: str) -> Referrer | Rejection:
    try:
        manifest = repository.manifest(name, _MOST_ATTACHED)
        image = manifest.image()
    except documents.AbsentError:
        return Rejection(ProofRefusal.DANGLING, "the registry lists it, and does not have it: it may have been deleted")
    except LyingError as error:
        return Rejection(ProofRefusal.TAMPERED, error.message)
    if start and not manifest.digest.startswith(f"sha256:{start}"):
        return Rejection(ProofRefusal.TAMPERED, f"the tag {name} leads to {manifest.digest}")
    if image.subject is None or image.subject.digest != subject:
        other = "nothing" if image.subject is None else image.subject.digest
        return Rejection(ProofRefusal.WRONG_SUBJECT, f"{manifest.digest} is attached to {other}")
    return Referrer(manifest.descriptor, image)


def _from_api(repository: Repository, subject: str) -> dict[str, str]:
    """Return the digests that the referrers API lists. Registries without one answer 404, or 200 with anything."""
    path, label = f"/v2/{repository.reference.repository}/referrers/{subject}", f"the referrers of {subject[:19]}"
    digests: dict[str, str] = {}
    if repository.lacks_referrers:
        return digests
    for number, reply in enumerate(repository.pages(path, label, (200, *_NO_API))):
        if reply.status in _NO_API and number:
            what = f"{repository.reference.name}: {label} are listed in part only"
            refuse(what, "try again", documents.RegistryUnavailableError)
        if reply.status in _NO_API:
            # No words of a registry: there is no such path, whatever the subject.
            repository.lacks_referrers = reply.status == HTTPStatus.NOT_FOUND and not codes_in(reply.body)
            break
        with contextlib.suppress(MalformedError):
            digests |= _listed(decode_json(reply.body, dict[str, Any]))
        if len(digests) > _MOST:
            break  # `referrers` refuses so many; all pages of them would fill the memory
    return digests


def _listed(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of a list, and the artifact types that it states; a bad entry does not hide the others."""
    entries = document.get("manifests")
    rows = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    named = [(str(row.get("digest")), str(row.get("artifactType", ""))) for row in rows]
    return {digest: kind for digest, kind in named if documents.is_digest(digest)}


def remote_images(repository: Repository, tag_or_digest: str, arch: str | None = None) -> list[RemoteImage]:
    """Return the images that a tag or digest names: one of a manifest, one for each platform of an index."""
    manifest = repository.manifest(tag_or_digest)
    if not manifest.is_index:
        return [_remote(repository, manifest)]
    # What else is in an index (a builder's provenance) has the platform "unknown".
    entries = manifest.index().manifests
    linux = [entry for entry in entries if entry.platform and entry.platform.normal[0] == "linux"]
    if not linux or len(linux) > _MOST_PLATFORMS:
        what = f"{repository.reference.name}: the index {tag_or_digest} names {len(linux)} images for Linux"
        refuse(what, "name one by its digest", LyingError)
    wanted = [entry for entry in linux if entry.platform and arch in (None, entry.platform.normal[1])]
    return [_remote(repository, repository.manifest(entry), manifest.digest) for entry in wanted]


def whole_images(repository: Repository, tag_or_digest: str) -> list[RemoteImage]:
    """Return every image that an engine could take by this name. Raise LyingError for what is no image for Linux.

    Engines take an entry without a platform by its config, and compare names of platforms normalised.
    """
    manifest = repository.manifest(tag_or_digest)
    if not manifest.is_index:
        return [_remote(repository, manifest)]
    documents.refuse_two_readings(manifest)
    entries, images = manifest.index().manifests, list[RemoteImage]()
    if len(entries) > 2 * _MOST_PLATFORMS:
        _refuse_entry(repository, manifest.digest, f"the index has {len(entries)} entries")
    for entry in entries:
        stored = repository.manifest(entry)
        if _is_attestation(entry, stored):
            continue
        image = _remote(repository, stored, manifest.digest)
        stated = entry.platform.normal if entry.platform else image.platform
        if image.platform[0] != "linux" or stated != image.platform:
            named = ["/".join(filter(None, one)) for one in (image.platform, stated)]
            what = f"is {named[0]} by its config and {named[1]} in the index"
            _refuse_entry(repository, entry.digest, what)
        images.append(image)
    if not images:
        _refuse_entry(repository, manifest.digest, "is an index of no image")
    return images


def _refuse_entry(repository: Repository, digest: str, what: str) -> NoReturn:
    fix = "an alias must name images for Linux and attestations of their builder alone"
    refuse(f"{repository.reference.name}@{digest} {what}", fix, LyingError)


def _is_attestation(entry: Descriptor, stored: StoredManifest) -> bool:
    """Tell whether an entry is what a builder says of an image: no engine runs it, whatever its platform."""
    marked = (entry.annotations or {}).get(_ATTESTATION[0]) == _ATTESTATION[1]
    nowhere = entry.platform is not None and entry.platform.normal[:2] == ("unknown", "unknown")
    return marked and nowhere and all(layer.media_type == _IN_TOTO for layer in stored.image().layers)


def _remote(repository: Repository, manifest: StoredManifest, index: str | None = None) -> RemoteImage:
    config = manifest.image().config
    try:
        read = decode_json(repository.blob(config, MOST_JSON), Platform)
    except MalformedError:
        message = f"{repository.reference.name}@{manifest.digest}: its config is not that of an image"
        raise LyingError(message, fix="name an image; this is another artifact") from None
    return RemoteImage(
        repository.reference.name, manifest.digest, config.digest, read.normal[1], index, platform=read.normal
    )


def read_proofs(repository: Repository, digest: str, tags: Sequence[str] | None = None) -> list[ListedProof]:
    """Return what lies beside a digest. `tags` are those of the repository, for a caller that asks for many digests."""

    def evidence(report: ReportReference) -> bytes | Rejection:
        # By the size in the statement, which is signed: what an artifact says of its layer may be another's word.
        blob = Descriptor(media_type=REPORT_TYPE, digest=report.digest, size=report.size)
        return _blob(repository, blob, MOST_REPORT, "its report")

    allowance = Allowance(repository)
    attachments = referrers(repository, digest, tags, without=REPORT_TYPE, allowance=allowance)
    # Tools attach other statements (SBOMs, provenance) as bundles, too.
    proofs = [
        ListedProof(one.descriptor.digest, _envelope(repository, one, allowance), evidence)
        for one in attachments.artifacts
        if one.manifest.kind == BUNDLE_TYPE
        and {**BUNDLE_ANNOTATIONS, **one.manifest.annotations}.items() >= BUNDLE_ANNOTATIONS.items()
    ]
    return proofs + [ListedProof(named, why, evidence) for named, why in attachments.unread.items()]


def attached_promotions(repository: Repository, digest: str, tags: Sequence[str]) -> tuple[list[bytes], list[str]]:
    """Return the envelopes of the promotions beside a digest, and the own tags of those that cannot be read."""
    allowance = Allowance(repository)
    everything = referrers(repository, digest, tags, allowance=allowance).artifacts
    listed = {own_tag(digest, one.descriptor.digest, PROMOTION_TYPE): one for one in everything}
    promotions = {tag: one for tag, one in listed.items() if one.manifest.kind == PROMOTION_TYPE}
    envelopes = {tag: _envelope(repository, one, allowance) for tag, one in promotions.items()}
    read = {tag: envelope for tag, envelope in envelopes.items() if isinstance(envelope, bytes)}
    return list(read.values()), [tag for tag in promotion_tags(tags).get(digest, []) if tag not in read]


def _envelope(repository: Repository, artifact: Referrer, allowance: Allowance) -> bytes | Rejection:
    layers = artifact.manifest.layers
    if len(layers) != 1 or layers[0].size > _MOST_ENVELOPE:
        size = sum(layer.size for layer in layers)
        why = f"{len(layers)} layers of {size} bytes, not one of at most {_MOST_ENVELOPE}"
        return Rejection(ProofRefusal.UNKNOWN_FORMAT, why)
    allowance.take(0 if layers[0].content else layers[0].size)
    return _blob(repository, layers[0], _MOST_ENVELOPE, "its content")


def _blob(repository: Repository, descriptor: Descriptor, most: int, label: str) -> bytes | Rejection:
    """Return a blob, or why it does not count. A registry that does not answer is an error: nothing is known then."""
    try:
        return repository.blob(descriptor, most)
    except documents.AbsentError:
        return Rejection(ProofRefusal.DANGLING, f"{label} {descriptor.digest} is not there")
    except LyingError as error:
        return Rejection(ProofRefusal.TAMPERED, error.message)
