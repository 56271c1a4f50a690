"""Copy an image with what is attached to it, and what is attached to that: no other tool's copy does so by itself."""

from __future__ import annotations

import collections
import datetime as dt
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import structs

from envcheck.errors import EnvcheckError
from envcheck.registry import statement
from envcheck.registry.attached_proofs import attached_promotions, read_proofs, remote_images
from envcheck.registry.attachments import PROMOTION_TYPE, attach, attach_manifest, promotion_tags, referrers
from envcheck.registry.documents import INDEXES, MANIFESTS, Descriptor, StoredManifest
from envcheck.registry.envelope import open_envelope, sign
from envcheck.registry.judge import (
    CLOCK_SKEW,
    ImageProofs,
    JudgedProof,
    ListedProof,
    NodeFacts,
    ProofTerms,
    judge_image,
)
from envcheck.registry.policy import NamedGpus, Policy
from envcheck.registry.references import TAMPERED, AbsentError, LyingError
from envcheck.registry.repository import Repository
from envcheck.registry.statement import Digest, ProofRefusal, Rejection, instant, written
from envcheck.signing import PrivateKey
from envcheck.struct_types import LightRecord, know_types

# Indexes in indexes, and attachments of attachments: more than anybody makes.
_DEEPEST: Final = 4
# Layers that only their maker may distribute: they are not in the registry.
_ELSEWHERE: Final = ("foreign", "nondistributable")


class CopyResult(LightRecord, frozen=True):
    """What a copy did: digests of manifests and of blobs that were sent, and what is attached but was not copied."""

    manifests: list[str] = msgspec.field(default_factory=list)
    blobs: list[str] = msgspec.field(default_factory=list)
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


def _copy(
    source: Repository,
    target: Repository,
    manifest: StoredManifest,
    copied: CopyResult,
    depth: int,
    subject: str | None = None,
) -> None:
    """Copy a manifest, or an artifact with the digest that it is attached to."""
    if depth == 0:
        message = f"{source.reference.name}: {manifest.digest} lies too deep below the image"
        raise LyingError(message, fix="copy what it belongs to by itself")

    def push(*, ask_first: bool) -> None:
        _copy_blobs(source, target, manifest.children, copied, ask_first=ask_first)

    if manifest.is_index:
        for child in manifest.index().manifests:
            if child.media_type in (*MANIFESTS, *INDEXES):
                _copy(source, target, source.manifest(child), copied, depth - 1)
    elif subject is None:
        push(ask_first=True)
    if subject is not None:
        copied.notes.extend(attach_manifest(target, subject, manifest, push).notes)
        copied.manifests.append(manifest.digest)
    elif not target.has_manifest(manifest.digest):
        target.push_manifest(manifest.content, manifest.media_type)
        copied.manifests.append(manifest.digest)
    attached = referrers(source, manifest.digest)
    left = [*attached.dangling, *(f"{one.named}: {one.detail}" for one in attached.refused)]
    copied.notes.extend([*attached.notes, *(f"not copied: {one}" for one in left)])
    for one in attached.artifacts:
        artifact = StoredManifest(one.content, one.descriptor.digest, one.descriptor.media_type)
        _copy(source, target, artifact, copied, depth - 1, manifest.digest)


def _copy_blobs(
    source: Repository, target: Repository, blobs: Iterable[Descriptor], copied: CopyResult, *, ask_first: bool = True
) -> None:
    from_, to = source.reference, target.reference
    same_registry = from_.url == to.url and from_.repository != to.repository
    for blob in {blob.digest: blob for blob in blobs}.values():
        if any(word in blob.media_type for word in _ELSEWHERE) or (ask_first and target.has_blob(blob)):
            continue
        if ask_first and same_registry and target.mounted(blob, source.reference.repository):
            continue
        with tempfile.TemporaryFile() as file:  # without a name: a copy that is killed leaves nothing behind
            source.save_blob(blob, file)
            target.push_blob(Path(f"/proc/self/fd/{file.fileno()}"), ask_first=False)
        copied.blobs.append(blob.digest)


PAYLOAD_TYPE: Final = "application/vnd.envcheck.promotion.v1+json"
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]


class Promotion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One person's or machine's word that an alias is to name an image. `source` is the repository it comes from.

    `at` has the form of a statement's times; `proofs` are the digests of the proofs that were looked at.
    """

    schema: Literal["envcheck/promotion/1"] = "envcheck/promotion/1"
    alias: _Name
    source: str = msgspec.field(name="from")
    digest: Digest
    at: str
    proofs: list[Digest]


know_types(Promotion)


class SignedPromotion(LightRecord, frozen=True):
    """A promotion and the id of the key that signed it."""

    promotion: Promotion
    signer: str


class CurrentPromotion(LightRecord, frozen=True):
    """The image that an alias names by promotion, and who said so."""

    digest: str
    at: dt.datetime
    signers: frozenset[str]


def judge_named(listed: Sequence[ListedProof], image: str, terms: ProofTerms) -> list[tuple[NamedGpus, ImageProofs]]:
    """Judge an image for each of the GPUs that the policy wants a proof on, whatever their driver.

    A policy that names none asks for one proof that holds; its GPUs are called "any". The terms' node is not used.
    """
    nodes: list[tuple[NamedGpus, NodeFacts | None]] = [
        (named, NodeFacts(models=(named.gpu,), gpus=named.gpus)) for named in terms.policy.promoted_on
    ]
    return [
        (named, judge_image(listed, image, structs.replace(terms, node=node)))
        for named, node in nodes or [(NamedGpus("any", 0), None)]
    ]


def encode_promotion(promotion: Promotion) -> bytes:
    """Return the same bytes for the same promotion."""
    return msgspec.json.encode(promotion)


def read_promotion(content: bytes, policy: Policy) -> SignedPromotion | Rejection:
    """Return a promotion that an allowed key signed, or why not. It never raises; without a signature there is none."""
    opened = open_envelope(content, PAYLOAD_TYPE, policy.keys)
    if isinstance(opened, Rejection):
        return opened
    if opened.signer is None:
        return Rejection(ProofRefusal.UNSIGNED, "nobody signed the promotion")
    try:
        promotion = statement.decode_json(opened.payload, Promotion)
        instant(promotion.at)
    except statement.MalformedError as error:
        return Rejection(ProofRefusal.UNKNOWN_FORMAT, str(error))
    return SignedPromotion(promotion, opened.signer)


def in_force(promotions: Sequence[SignedPromotion], alias: str, signers: int) -> CurrentPromotion | None:
    """Return what the alias names: the image that so many different keys promoted last.

    Keys count together when no other image was promoted between them; so nobody goes back to an old image with the
    signatures of then.
    """
    current: CurrentPromotion | None = None
    heard: dict[str, set[str]] = collections.defaultdict(set)
    mine = [each for each in promotions if each.promotion.alias == alias]
    for each in sorted(mine, key=lambda one: (instant(one.promotion.at), one.promotion.digest, one.signer)):
        digest = each.promotion.digest
        heard[digest].add(each.signer)
        if len(heard[digest]) >= signers:
            current = CurrentPromotion(digest, instant(each.promotion.at), frozenset(heard[digest]))
            heard.clear()
    return current


def refuse_alias(
    promotions: Sequence[SignedPromotion], alias: str, digest: str, policy: Policy, now: dt.datetime
) -> Rejection | None:
    """Return why an alias that a registry resolves to `digest` is not believed; None where its promotion names it."""
    wrong = ProofRefusal.ALIAS_NOT_PROMOTED
    current = in_force(promotions, alias, policy.signers)
    if current is None:
        keys = {each.signer for each in promotions if each.promotion.alias == alias}
        promoted = f"nobody promoted {alias} ({len(keys)} of {policy.signers} keys)"
        return Rejection(wrong, f"{promoted}; name the image by its digest, or promote it")
    if current.at > now + CLOCK_SKEW:
        return Rejection(wrong, f"the promotion of {alias} is from the future")
    rivals = {each.promotion.digest for each in promotions if _at_once(each, current, alias)}
    if len(rivals) > 1:
        return Rejection(wrong, f"{alias} was promoted to {len(rivals)} images in the same second")
    if current.digest != digest:
        return Rejection(wrong, f"{alias} was promoted to {current.digest}, and the registry says {digest}")
    return None


def _at_once(each: SignedPromotion, current: CurrentPromotion, alias: str) -> bool:
    return each.promotion.alias == alias and instant(each.promotion.at) == current.at


class NotProvenError(EnvcheckError):
    """The policy asks for what the image or its alias does not have (exit 1)."""

    exit_code = 1


class GateResult(LightRecord, frozen=True):
    """What the proofs say of one kind of GPUs that the policy names."""

    gpus: NamedGpus
    proof: JudgedProof | None
    refused: Rejection | None

    @property
    def name(self) -> str:
        """Return the GPUs as the policy writes them."""
        return f"{self.gpus.gpu} x{self.gpus.gpus}" if self.gpus.gpus else "any node"


class PromotionResult(LightRecord, frozen=True):
    """What a promotion did. `missing` keys must still sign before an alias moves."""

    reference: str
    aliases: list[str]
    missing: int
    notes: list[str]


def gate(repository: Repository, tag_or_digest: str, terms: ProofTerms) -> list[GateResult]:
    """Return, for each kind of GPUs that the policy names, the proof that holds or why none does."""
    remotes = remote_images(repository, tag_or_digest)
    if len({image.arch for image in remotes}) != len(remotes):
        message = f"{repository.reference.name}@{tag_or_digest} has two images of one architecture"
        raise NotProvenError(message, fix="promote one image by its own digest")
    images = [image.manifest for image in remotes]
    judged = [judge_named(read_proofs(repository, image).proofs, image, terms) for image in images]
    results = []
    for of_images in zip(*judged, strict=True):
        proofs = [each for _, each in of_images]
        proven = next((each.chosen for each in proofs if each.chosen and each.chosen.proven), None)
        unsigned = Rejection(ProofRefusal.UNSIGNED, "nobody signed it")
        refused = next((each.refused for each in proofs if each.refused), unsigned)
        results.append(GateResult(of_images[0][0], proven, None if proven else refused))
    return results


def promote(
    source: Repository,
    target: Repository,
    aliases: Sequence[str],
    gates: Sequence[GateResult],
    key: PrivateKey,
    terms: ProofTerms,
) -> PromotionResult:
    """Copy the image with its proofs, sign the promotion of each alias, and move the aliases last.

    An alias moves when as many keys as the policy asks for have promoted the image to it.
    """
    digest = source.manifest(source.reference.wanted).digest
    notes: list[str] = []
    if source.reference.name != target.reference.name:
        copied = copy_image(source, target, digest)
        notes += copied.notes
        _check_copy(target, digest, terms)
    manifest = target.manifest(digest)
    proofs = sorted({one.proof.digest for one in gates if one.proof})
    moved: list[str] = []
    missing = 0
    for tag in aliases:
        alias = alias_name(target, tag)
        document = Promotion(
            alias=alias, source=source.reference.name, digest=digest, at=written(terms.now), proofs=proofs
        )
        envelope = sign(encode_promotion(document), PAYLOAD_TYPE, key)
        attach(target, manifest.descriptor, PROMOTION_TYPE, [(PROMOTION_TYPE, envelope)], {})
        signed = _signed(target, digest, terms)
        if refuse_alias(signed, alias, digest, terms.policy, terms.now) is not None:
            _refuse_newer(signed, alias, digest, terms)
            signers = {one.signer for one in signed if (one.promotion.alias, one.promotion.digest) == (alias, digest)}
            missing = max(missing, terms.policy.signers - len(signers), 1)
            continue
        before = named_now(target, tag)
        _move(target, tag, manifest)
        moved.append(alias)
        if before not in {None, digest}:
            notes.append(f"{alias} named {before} before")
    return PromotionResult(str(target.reference.pinned(digest)), moved, missing, notes)


def named_now(repository: Repository, tag: str) -> str | None:
    """Return the digest that a tag names now, None where it names nothing or what cannot be believed."""
    try:
        return repository.manifest(tag).digest
    except (AbsentError, LyingError):  # who can write to the registry could stop every promotion with a broken alias
        return None


def _check_copy(target: Repository, digest: str, terms: ProofTerms) -> None:
    """Judge by the proofs that the target has now: a failed run may have been published there, and nowhere else."""
    for result in gate(target, digest, terms):
        if result.refused is not None:
            why = f"{result.refused.reason.value}: {result.refused.detail}"
            message = f"the image was copied and is not promoted: in {target.reference.name}, {result.name}: {why}"
            raise NotProvenError(message, fix=f"see `envcheck proof {target.reference.pinned(digest)}`")


def _refuse_newer(signed: Sequence[SignedPromotion], alias: str, digest: str, terms: ProofTerms) -> None:
    """Raise NotProvenError where another image was promoted to the alias at a later time than now, or right now."""
    for one in signed:
        other = one.promotion
        if (other.alias, other.digest != digest) == (alias, True) and instant(other.at) >= terms.now:
            message = f"{alias} was promoted to {other.digest} at {other.at}, and it is {written(terms.now)} here"
            raise NotProvenError(message, fix="check the clocks of the machines that promote, and promote again later")


def _move(repository: Repository, tag: str, manifest: StoredManifest) -> None:
    repository.push_manifest(manifest.content, manifest.media_type, tag)
    if repository.manifest(tag).digest != manifest.digest:
        message = f"{alias_name(repository, tag)} names another image right after it was moved"
        raise NotProvenError(message, fix="somebody else moves it at the same time; promote again")


def alias_name(repository: Repository, tag: str) -> str:
    """Return an alias as promotions name it: a promotion is of one tag of one repository."""
    return f"{repository.reference.name}:{tag}"


def promoted(repository: Repository, tag: str, digest: str, terms: ProofTerms) -> Rejection | None:
    """Return why the image that a tag leads to is not the one that was promoted last; None where it is."""
    try:
        signed = _signed(repository, digest, terms)
    except NotProvenError as error:
        return Rejection(ProofRefusal.ALIAS_NOT_PROMOTED, error.message)
    return refuse_alias(signed, alias_name(repository, tag), digest, terms.policy, terms.now)


def _signed(repository: Repository, digest: str, terms: ProofTerms) -> list[SignedPromotion]:
    """Return the promotions of every image here that an allowed key signed, from where the policy promotes from."""
    tags = repository.tags()
    envelopes: list[bytes] = []
    for subject in sorted({digest, *promotion_tags(tags)}):
        attached, unread = attached_promotions(repository, subject, tags)
        if unread:
            # It may be the newest: somebody who moves an alias back would hide it so.
            message = f"the promotion {unread[0]} cannot be read, and may be the newest"
            raise NotProvenError(message, fix="look at who wrote it; delete the tag if it is no promotion of yours")
        envelopes += attached
    read = [read_promotion(envelope, terms.policy) for envelope in envelopes]
    signed = [one for one in read if isinstance(one, SignedPromotion)]
    source = terms.policy.promoted_from
    return [one for one in signed if source is None or one.promotion.source == source]
