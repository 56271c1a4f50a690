"""Promote a proven image: copy it with its proofs, sign what the alias is to name, and move the alias last."""

from __future__ import annotations

from collections.abc import Sequence

from envcheck.errors import EnvcheckError
from envcheck.registry.attached_proofs import attached_promotions, read_proofs, remote_images
from envcheck.registry.oci.attachments import PROMOTION_TYPE, attach, promoted_digests
from envcheck.registry.oci.copying import copy_image
from envcheck.registry.oci.documents import StoredManifest
from envcheck.registry.oci.registry_errors import AbsentError, LyingError
from envcheck.registry.oci.repository import Repository
from envcheck.registry.proofs import promotion
from envcheck.registry.proofs.envelope import sign
from envcheck.registry.proofs.judge import JudgedProof, ProofTerms
from envcheck.registry.proofs.policy import NamedGpus
from envcheck.registry.proofs.promotion import Promotion, SignedPromotion
from envcheck.registry.proofs.refusals import ProofRefusal, Rejection
from envcheck.registry.proofs.statement import instant, written
from envcheck.signing import PrivateKey
from envcheck.struct_types import LightRecord


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
    judged = [promotion.judge_named(read_proofs(repository, image).proofs, image, terms) for image in images]
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
        notes += [*(note for incomplete in copied.incomplete for note in incomplete.notes), *copied.notes]
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
        envelope = sign(promotion.encode(document), promotion.PAYLOAD_TYPE, key)
        attach(target, manifest.descriptor, PROMOTION_TYPE, [(PROMOTION_TYPE, envelope)], {})
        signed = _signed(target, digest, terms)
        if promotion.refuse_alias(signed, alias, digest, terms.policy, terms.now) is not None:
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
    return promotion.refuse_alias(signed, alias_name(repository, tag), digest, terms.policy, terms.now)


def _signed(repository: Repository, digest: str, terms: ProofTerms) -> list[SignedPromotion]:
    """Return the promotions of every image here that an allowed key signed, from where the policy promotes from."""
    tags = repository.tags()
    envelopes: list[bytes] = []
    for subject in sorted({digest, *promoted_digests(tags)}):
        attached, unread = attached_promotions(repository, subject, tags)
        if unread:
            # It may be the newest: somebody who moves an alias back would hide it so.
            message = f"the promotion {unread[0]} cannot be read, and may be the newest"
            raise NotProvenError(message, fix="look at who wrote it; delete the tag if it is no promotion of yours")
        envelopes += attached
    read = [promotion.read(envelope, terms.policy) for envelope in envelopes]
    signed = [one for one in read if isinstance(one, SignedPromotion)]
    source = terms.policy.promoted_from
    return [one for one in signed if source is None or one.promotion.source == source]
