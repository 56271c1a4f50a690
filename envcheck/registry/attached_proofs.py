"""Read what lies beside an image: its proofs, their evidence, the promotions, and which images a reference names."""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from envcheck.registry.attachments import PROMOTION_TYPE, REPORT_TYPE, Referrer, own_tag, promotion_tags, referrers
from envcheck.registry.documents import Descriptor, StoredManifest
from envcheck.registry.envelope import BUNDLE_TYPE, bundle_annotations
from envcheck.registry.evidence import RemoteImage
from envcheck.registry.judge import ListedProof
from envcheck.registry.references import AbsentError, LyingError
from envcheck.registry.repository import Repository
from envcheck.registry.statement import (
    MOST_JSON,
    MOST_REPORT,
    PREDICATE_TYPE,
    ProofRefusal,
    Rejection,
    ReportReference,
)
from envcheck.struct_types import know_types

_ANNOTATIONS: Final = bundle_annotations(PREDICATE_TYPE)
_MOST_CONFIG: Final = 4 << 20
# Images for Linux in one index; each is two requests, and one index could name some 20,000.
_MOST_PLATFORMS: Final = 100


class _Config(msgspec.Struct):
    architecture: Annotated[str, msgspec.Meta(max_length=64)] = ""


know_types(_Config)


def remote_images(repository: Repository, tag_or_digest: str, arch: str | None = None) -> list[RemoteImage]:
    """Return the images that a tag or digest names: one of a manifest, one for each platform of an index."""
    manifest = repository.manifest(tag_or_digest)
    if not manifest.is_index:
        return [_remote(repository, manifest)]
    # What else is in an index (a builder's provenance) has the platform "unknown".
    linux = [entry for entry in manifest.index().manifests if entry.platform and entry.platform.os == "linux"]
    if not linux or len(linux) > _MOST_PLATFORMS:
        message = f"{repository.reference.name}: the index {tag_or_digest} names {len(linux)} images for Linux"
        raise LyingError(message, fix="name one image for Linux by its digest")
    wanted = [entry for entry in linux if entry.platform and arch in (None, entry.platform.architecture)]
    return [_remote(repository, repository.manifest(entry), manifest.digest) for entry in wanted]


def _remote(repository: Repository, manifest: StoredManifest, index: str | None = None) -> RemoteImage:
    config = manifest.image().config
    try:
        read = msgspec.json.decode(repository.blob(config, _MOST_CONFIG), type=_Config)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        message = f"{repository.reference.name}@{manifest.digest}: its config is not that of an image"
        raise LyingError(message, fix="name an image; this is another artifact") from None
    return RemoteImage(repository.reference.name, manifest.digest, config.digest, read.architecture, index)


def read_proofs(repository: Repository, digest: str, tags: Sequence[str] | None = None) -> list[ListedProof]:
    """Return what lies beside a digest. `tags` are those of the repository, for a caller that asks for many digests."""
    attachments = referrers(repository, digest, tags, without=REPORT_TYPE)
    proofs = [_proof(repository, artifact) for artifact in attachments.artifacts if _is_proof(artifact)]
    return proofs + [_unread(named, why) for named, why in attachments.unread.items()]


def attached_promotions(repository: Repository, digest: str, tags: Sequence[str]) -> tuple[list[bytes], list[str]]:
    """Return the envelopes of the promotions beside a digest, and the own tags of those that cannot be read."""
    listed = [one for one in referrers(repository, digest, tags).artifacts if one.manifest.kind == PROMOTION_TYPE]
    envelopes = {own_tag(digest, one.descriptor.digest, PROMOTION_TYPE): _envelope(repository, one) for one in listed}
    read = {tag: envelope for tag, envelope in envelopes.items() if isinstance(envelope, bytes)}
    return list(read.values()), [tag for tag in promotion_tags(tags).get(digest, []) if tag not in read]


def _is_proof(artifact: Referrer) -> bool:
    """Tell whether an artifact can be a proof; tools attach other statements (SBOMs, provenance) as bundles, too."""
    annotations = {name: artifact.manifest.annotations.get(name, value) for name, value in _ANNOTATIONS.items()}
    return artifact.manifest.kind == BUNDLE_TYPE and annotations == _ANNOTATIONS


def _unread(named: str, why: Rejection) -> ListedProof:
    return ListedProof(named, why, lambda _: why)


def _proof(repository: Repository, artifact: Referrer) -> ListedProof:
    def report_of(report: ReportReference) -> bytes | Rejection:
        # By the size in the statement, which is signed: what an artifact says of its layer may be another's word.
        blob = Descriptor(media_type=REPORT_TYPE, digest=report.digest, size=report.size)
        return _blob(repository, blob, MOST_REPORT, "its report")

    return ListedProof(artifact.descriptor.digest, _envelope(repository, artifact), report_of)


def _envelope(repository: Repository, artifact: Referrer) -> bytes | Rejection:
    layers = artifact.manifest.layers
    if len(layers) != 1 or layers[0].size > MOST_JSON:
        why = f"{len(layers)} layers of {sum(layer.size for layer in layers)} bytes, not one of at most {MOST_JSON}"
        return Rejection(ProofRefusal.UNKNOWN_FORMAT, why)
    return _blob(repository, layers[0], MOST_JSON, "its content")


def _blob(repository: Repository, descriptor: Descriptor, most: int, label: str) -> bytes | Rejection:
    """Return a blob, or why it does not count. A registry that does not answer is an error: nothing is known then."""
    try:
        return repository.blob(descriptor, most)
    except AbsentError:
        return Rejection(ProofRefusal.DANGLING, f"{label} {descriptor.digest} is not there")
    except LyingError as error:
        return Rejection(ProofRefusal.TAMPERED, error.message)
