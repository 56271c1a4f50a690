"""The signed word that an alias names an image: a tag alone is moved by whoever can write to the registry."""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import structs

from envcheck.errors import EnvcheckError
from envcheck.registry import attachments, judge
from envcheck.registry.attachments import attach, attached_promotions, promotion_tags, read_proofs, remote_images
from envcheck.registry.envelope import open_envelope, sign
from envcheck.registry.judge import JudgedProof, ListedProof, NamedGpus, NodeFacts, Policy, ProofTerms, judge_image
from envcheck.registry.repository import Repository
from envcheck.registry.statement import Digest, MalformedError, ProofRefusal, Rejection, decode_json, instant, written
from envcheck.signing import PrivateKey
from envcheck.struct_types import LightRecord, know_types

PAYLOAD_TYPE: Final = attachments.PROMOTION_TYPE


class Promotion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The word that an alias is to name an image. `proofs` are the digests of the proofs that were looked at."""

    schema: Literal["envcheck/promotion/1"] = "envcheck/promotion/1"
    alias: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    digest: Digest
    at: str
    proofs: list[Digest]


know_types(Promotion)


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


def judge_gpus(gpus: NamedGpus, images: Mapping[str, Sequence[ListedProof]], terms: ProofTerms) -> GateResult:
    """Judge the images for GPUs that the policy names, whatever their driver; one proof of one image suffices."""
    node = NodeFacts(models=(gpus.gpu,), gpus=gpus.gpus) if gpus.gpus else None
    terms = structs.replace(terms, node=node)
    judged = [judge_image(listed, image, terms) for image, listed in images.items()]
    proof = next((one.chosen for one in judged if one.chosen), None)
    return GateResult(gpus, proof, None if proof else judged[0].refused)


def gate(repository: Repository, tag_or_digest: str, terms: ProofTerms) -> list[GateResult]:
    """Return, for each kind of GPUs that the policy names, or for any node, the proof that holds or why none does."""
    remotes = remote_images(repository, tag_or_digest)
    if len({image.arch for image in remotes}) != len(remotes):
        message = f"{repository.reference.name}@{tag_or_digest} has two images of one architecture"
        raise NotProvenError(message, fix="promote one image by its own digest")
    images = {image.manifest: read_proofs(repository, image.manifest) for image in remotes}
    return [judge_gpus(gpus, images, terms) for gpus in terms.policy.promoted_on or (NamedGpus("any", 0),)]


def promote(
    repository: Repository, tags: Sequence[str], gates: Sequence[GateResult], key: PrivateKey, terms: ProofTerms
) -> list[str]:
    """Sign the promotion of the image to each tag, move the tag after it, and return the aliases that were moved."""
    manifest = repository.manifest(repository.reference.wanted)
    proofs = sorted({one.proof.digest for one in gates if one.proof})
    for tag in tags:
        alias = alias_name(repository, tag)
        document = Promotion(alias=alias, digest=manifest.digest, at=written(terms.now), proofs=proofs)
        envelope = sign(msgspec.json.encode(document), PAYLOAD_TYPE, key)
        attach(repository, manifest.descriptor, PAYLOAD_TYPE, [(PAYLOAD_TYPE, envelope)], {})
        refused = refuse_alias(_signed(repository, manifest.digest, terms), alias, manifest.digest, terms.now)
        if refused is not None:
            message = f"{alias} was not moved: {refused.detail}"
            raise NotProvenError(message, fix="check the clocks of the machines that promote, and promote again later")
        repository.push_manifest(manifest.content, manifest.media_type, tag)
    return [alias_name(repository, tag) for tag in tags]


def alias_name(repository: Repository, tag: str) -> str:
    """Return an alias as promotions name it: a promotion is of one tag of one repository."""
    return f"{repository.reference.name}:{tag}"


def promoted(repository: Repository, tag: str, digest: str, terms: ProofTerms) -> Rejection | None:
    """Return why the image that a tag leads to is not the one that was promoted last; None where it is."""
    try:
        signed = _signed(repository, digest, terms)
    except NotProvenError as error:
        return Rejection(ProofRefusal.ALIAS_NOT_PROMOTED, error.message)
    return refuse_alias(signed, alias_name(repository, tag), digest, terms.now)


def read_promotion(content: bytes, policy: Policy) -> Promotion | Rejection:
    """Return a promotion that an allowed key signed, or why not. It never raises."""
    opened = open_envelope(content, PAYLOAD_TYPE, policy.keys)
    if isinstance(opened, Rejection):
        return opened
    try:
        promotion = decode_json(opened.payload, Promotion)
        instant(promotion.at)
    except MalformedError as error:
        return Rejection(ProofRefusal.UNKNOWN_FORMAT, str(error))
    return promotion


def refuse_alias(promotions: Sequence[Promotion], alias: str, digest: str, now: dt.datetime) -> Rejection | None:
    """Return why the newest promotion of an alias is not to this digest; None where it is."""
    mine = [one for one in promotions if one.alias == alias]
    newest = max((instant(one.at) for one in mine), default=now)
    named = sorted({one.digest for one in mine if instant(one.at) == newest})
    if not mine:
        why = f"nobody promoted {alias}; name the image by its digest, or promote it"
    elif newest > now + judge.CLOCK_SKEW:
        why = f"the promotion of {alias} is from the future"
    elif len(named) > 1:
        why = f"{alias} was promoted to {len(named)} images in the same second"
    elif named != [digest]:
        why = f"{alias} was promoted to {named[0]} at {written(newest)}, not to {digest}"
    else:
        return None
    return Rejection(ProofRefusal.ALIAS_NOT_PROMOTED, why)


def _signed(repository: Repository, digest: str, terms: ProofTerms) -> list[Promotion]:
    """Return the promotions of every image here that an allowed key signed."""
    tags = repository.tags()
    promotions: list[Promotion] = []
    for subject in sorted({digest, *promotion_tags(tags)}):
        attached, unread = attached_promotions(repository, subject, tags)
        if unread:
            # It may be the newest: somebody who moves an alias back would hide it so.
            message = f"the promotion {unread[0]} cannot be read, and may be the newest"
            raise NotProvenError(message, fix="look at who wrote it; delete the tag if it is no promotion of yours")
        for envelope in attached:
            read = read_promotion(envelope, terms.policy)
            if isinstance(read, Promotion):
                promotions.append(read)
            elif not isinstance(open_envelope(envelope, PAYLOAD_TYPE, terms.policy.keys), Rejection):
                message = f"a signed promotion cannot be read, and may be the newest: {read.detail}"
                raise NotProvenError(message, fix="use a newer envcheck")
    return promotions
