"""Promotions: who moved an alias to which image, signed, so that a tag alone is never believed."""

from __future__ import annotations

import collections
import datetime as dt
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import structs

from envcheck.registry.proofs import strict_json
from envcheck.registry.proofs.covers import NodeFacts
from envcheck.registry.proofs.envelope import open_envelope
from envcheck.registry.proofs.judge import CLOCK_SKEW, ImageProofs, ListedProof, ProofTerms, judge_image
from envcheck.registry.proofs.policy import NamedGpus, Policy
from envcheck.registry.proofs.refusals import ProofRefusal, Rejection
from envcheck.registry.proofs.statement import Digest, instant
from envcheck.struct_types import LightRecord, know_types

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


def encode(promotion: Promotion) -> bytes:
    """Return the same bytes for the same promotion."""
    return msgspec.json.encode(promotion)


def read(content: bytes, policy: Policy) -> SignedPromotion | Rejection:
    """Return a promotion that an allowed key signed, or why not. It never raises; without a signature there is none."""
    opened = open_envelope(content, PAYLOAD_TYPE, policy.keys)
    if isinstance(opened, Rejection):
        return opened
    if opened.signer is None:
        return Rejection(ProofRefusal.UNSIGNED, "nobody signed the promotion")
    try:
        promotion = strict_json.decode(opened.payload, Promotion)
        instant(promotion.at)
    except strict_json.MalformedError as error:
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
